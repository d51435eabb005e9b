//! How codes become vectors of numbers, by instruction set.

use crate::cpu::simd::{Portable, Simd, MOST_LANES};
use base::quant::{half_of_e4m3, of_e5m2, Rounding};

/// Every method is unsafe for one reason: the CPU must have the instruction set.
#[allow(clippy::missing_safety_doc)]
pub(super) trait Decode: Simd {
    /// A word of 32 bits in each lane.
    type Words: Copy;
    /// 16 levels.
    type Table: Copy;

    /// `levels` are at least 16.
    unsafe fn table(levels: &[f32]) -> Self::Table;
    /// The words from `from` on, of any alignment.
    unsafe fn words(from: *const u8) -> Self::Words;
    /// The level of the four bits of each word from `BIT` on.
    unsafe fn look_up<const BIT: i32>(words: Self::Words, table: Self::Table) -> Self::V;

    /// LANES bytes as numbers.
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::V {
        // SAFETY: the caller vouches for the bytes and the instruction set.
        unsafe { each::<Self>(from, f32::from) }
    }

    /// A 256th of LANES floats of e4m3.
    #[inline(always)]
    unsafe fn floats(from: *const u8) -> Self::V {
        // SAFETY: the caller vouches for the bytes and the instruction set.
        unsafe { each::<Self>(from, half_of_e4m3) }
    }

    /// LANES floats of e5m2.
    #[inline(always)]
    unsafe fn wide_floats(from: *const u8) -> Self::V {
        // SAFETY: the caller vouches for the bytes and the instruction set.
        unsafe { each::<Self>(from, of_e5m2) }
    }

    /// The nearest number of bf16, ties to even.
    #[inline(always)]
    unsafe fn as_bf16(v: Self::V) -> Self::V {
        let mut halves = [0u16; MOST_LANES];
        // SAFETY: the array has as many numbers as the longest vector; the caller has the instruction set.
        unsafe {
            Self::store_bf16(halves.as_mut_ptr(), v);
            Self::load_bf16(halves.as_ptr())
        }
    }

    /// The nearest number of f16, ties to even.
    #[inline(always)]
    unsafe fn as_f16(v: Self::V) -> Self::V {
        let mut halves = [0u16; MOST_LANES];
        // SAFETY: the array has as many numbers as the longest vector; the caller has the instruction set.
        unsafe {
            Self::store_f16(halves.as_mut_ptr(), v);
            Self::load_f16(halves.as_ptr())
        }
    }

    /// a · b + c, rounded once on every instruction set.
    #[inline(always)]
    unsafe fn fuse(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { Self::fma(a, b, c) }
    }
}

#[inline(always)]
unsafe fn each<S: Simd>(from: *const u8, number: impl Fn(u8) -> f32) -> S::V {
    let mut values = [0.0f32; MOST_LANES];
    for (at, value) in values.iter_mut().enumerate().take(S::LANES) {
        // SAFETY: the caller has LANES bytes at `from`.
        *value = number(unsafe { *from.add(at) });
    }
    // SAFETY: the array has as many numbers as the longest vector; the caller has the instruction set.
    unsafe { S::load(values.as_ptr()) }
}

/// `table`, `words` and `look_up` one lane after the other.
macro_rules! lane_by_lane {
    ($lanes:expr) => {
        type Words = [u32; $lanes];
        type Table = [f32; 16];

        #[inline(always)]
        unsafe fn table(levels: &[f32]) -> Self::Table {
            std::array::from_fn(|code| levels[code])
        }
        #[inline(always)]
        unsafe fn words(from: *const u8) -> Self::Words {
            // SAFETY: the caller has four bytes for each lane at `from`, unaligned.
            unsafe { from.cast::<[[u8; 4]; $lanes]>().read_unaligned() }.map(u32::from_le_bytes)
        }
        #[inline(always)]
        unsafe fn look_up<const BIT: i32>(words: Self::Words, table: Self::Table) -> Self::V {
            let levels = words.map(|word| table[(word >> BIT & 15) as usize]);
            // SAFETY: there is a level for each lane; the caller has the instruction set.
            unsafe { <Self as Simd>::load(levels.as_ptr()) }
        }
    };
}

impl Decode for Portable {
    lane_by_lane!(<Portable as Simd>::LANES);

    #[inline(always)]
    unsafe fn as_bf16(v: Self::V) -> Self::V {
        v.map(|value| Rounding::Bf16.of(value))
    }
    #[inline(always)]
    unsafe fn as_f16(v: Self::V) -> Self::V {
        v.map(|value| Rounding::F16.of(value))
    }
    #[inline(always)]
    unsafe fn fuse(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }
}

#[cfg(target_arch = "aarch64")]
impl Decode for crate::cpu::simd::Neon {
    lane_by_lane!(<crate::cpu::simd::Neon as Simd>::LANES);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Decode;
    use crate::cpu::simd::{Avx2, Avx512};

    /// The bits of a half but for the one that the sign of a byte was copied to.
    const HALF: i16 = 0xbfff_u16 as i16;
    /// The bits of an f32 that a bf16 has.
    const UPPER: i32 = 0xffff_0000_u32 as i32;

    impl Decode for Avx2 {
        type Words = __m256i;
        type Table = [__m256; 2];

        #[inline(always)]
        unsafe fn table(levels: &[f32]) -> Self::Table {
            let (low, high) = (&levels[..8], &levels[8..16]);
            // SAFETY: the CPU has AVX2; both halves have eight numbers.
            unsafe {
                [
                    _mm256_loadu_ps(low.as_ptr()),
                    _mm256_loadu_ps(high.as_ptr()),
                ]
            }
        }
        #[inline(always)]
        unsafe fn words(from: *const u8) -> Self::Words {
            // SAFETY: the CPU has AVX2, and the caller has 32 bytes at `from`, unaligned.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }
        #[inline(always)]
        unsafe fn look_up<const BIT: i32>(words: Self::Words, [low, high]: Self::Table) -> __m256 {
            // SAFETY: the CPU has AVX2; this touches registers alone. Three bits number a lane, and the fourth, as
            // a sign, chooses between the halves.
            unsafe {
                let code = _mm256_srlv_epi32(words, _mm256_set1_epi32(BIT));
                let sign = _mm256_sllv_epi32(words, _mm256_set1_epi32(28 - BIT));
                _mm256_blendv_ps(
                    _mm256_permutevar8x32_ps(low, code),
                    _mm256_permutevar8x32_ps(high, code),
                    _mm256_castsi256_ps(sign),
                )
            }
        }
        #[inline(always)]
        unsafe fn bytes(from: *const u8) -> __m256 {
            // SAFETY: the CPU has AVX2, and the caller has eight bytes at `from`.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
        }
        #[inline(always)]
        unsafe fn floats(from: *const u8) -> __m256 {
            // SAFETY: the CPU has AVX2 and F16C, and the caller has eight bytes at `from`.
            unsafe {
                let wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast()));
                let half = _mm_and_si128(_mm_slli_epi16::<7>(wide), _mm_set1_epi16(HALF));
                _mm256_cvtph_ps(half)
            }
        }
        #[inline(always)]
        unsafe fn wide_floats(from: *const u8) -> __m256 {
            // SAFETY: the CPU has AVX2 and F16C, and the caller has eight bytes at `from`.
            unsafe {
                let wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast()));
                _mm256_cvtph_ps(_mm_slli_epi16::<8>(wide))
            }
        }
        #[inline(always)]
        unsafe fn as_bf16(v: __m256) -> __m256 {
            // SAFETY: the CPU has AVX2; this touches registers alone.
            unsafe {
                let bits = _mm256_castps_si256(v);
                let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let raised = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
                let rounded = _mm256_add_epi32(raised, last);
                _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32(UPPER)))
            }
        }
        #[inline(always)]
        unsafe fn as_f16(v: __m256) -> __m256 {
            // SAFETY: the CPU has AVX2 and F16C; this touches registers alone.
            unsafe { _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
        }
    }

    impl Decode for Avx512 {
        type Words = __m512i;
        type Table = __m512;

        #[inline(always)]
        unsafe fn table(levels: &[f32]) -> Self::Table {
            let levels = &levels[..16];
            // SAFETY: the CPU has AVX-512F; there are 16 numbers.
            unsafe { _mm512_loadu_ps(levels.as_ptr()) }
        }
        #[inline(always)]
        unsafe fn words(from: *const u8) -> Self::Words {
            // SAFETY: the CPU has AVX-512F, and the caller has 64 bytes at `from`, unaligned.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }
        #[inline(always)]
        unsafe fn look_up<const BIT: i32>(words: Self::Words, table: Self::Table) -> __m512 {
            // SAFETY: the CPU has AVX-512F; this touches registers alone. Four bits number a lane.
            unsafe {
                let code = _mm512_srlv_epi32(words, _mm512_set1_epi32(BIT));
                _mm512_permutexvar_ps(code, table)
            }
        }
        #[inline(always)]
        unsafe fn bytes(from: *const u8) -> __m512 {
            // SAFETY: the CPU has AVX-512F, and the caller has 16 bytes at `from`.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
        }
        #[inline(always)]
        unsafe fn floats(from: *const u8) -> __m512 {
            // SAFETY: the CPU has AVX-512F, and AVX2 with it, and the caller has 16 bytes at `from`.
            unsafe {
                let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()));
                let half = _mm256_and_si256(_mm256_slli_epi16::<7>(wide), _mm256_set1_epi16(HALF));
                _mm512_cvtph_ps(half)
            }
        }
        #[inline(always)]
        unsafe fn wide_floats(from: *const u8) -> __m512 {
            // SAFETY: the CPU has AVX-512F, and AVX2 with it, and the caller has 16 bytes at `from`.
            unsafe {
                let wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
                _mm512_cvtph_ps(_mm256_slli_epi16::<8>(wide))
            }
        }
        #[inline(always)]
        unsafe fn as_bf16(v: __m512) -> __m512 {
            // SAFETY: the CPU has AVX-512F; this touches registers alone.
            unsafe {
                let bits = _mm512_castps_si512(v);
                let last = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let raised = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
                let rounded = _mm512_add_epi32(raised, last);
                _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(UPPER)))
            }
        }
        #[inline(always)]
        unsafe fn as_f16(v: __m512) -> __m512 {
            // SAFETY: the CPU has AVX-512F; this touches registers alone.
            unsafe { _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
        }
    }
}
