//! AVX2 and AVX-512, each without and with the instructions for products of bytes.

use std::arch::x86_64::*;

use super::integers::Integers;
use crate::cpu::simd::{Avx2, Avx512};

#[derive(Clone, Copy)]
pub(super) struct Avx2Dot;
#[derive(Clone, Copy)]
pub(super) struct Avx512Dot;

/// What the two flavours of 256 bits have in common.
macro_rules! narrow_methods {
    () => {
        type Float = Avx2;
        type V = __m256i;
        const ROWS: usize = 2;
        const ROWS_OF_RUNS: usize = 1;
        const PANELS: usize = 2;

        #[inline(always)]
        unsafe fn splat(value: i32) -> Self::V {
            // SAFETY: the CPU has AVX2; this touches registers alone.
            unsafe { _mm256_set1_epi32(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self::V {
            // SAFETY: the CPU has AVX2, and the caller has 32 bytes at `from`, unaligned.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }
        #[inline(always)]
        unsafe fn right<const N: i32>(v: Self::V, mask: u8) -> Self::V {
            // SAFETY: the CPU has AVX2; this touches registers alone.
            unsafe { _mm256_and_si256(_mm256_srli_epi16::<N>(v), _mm256_set1_epi8(mask as i8)) }
        }
        #[inline(always)]
        unsafe fn left<const N: i32>(v: Self::V, mask: u8) -> Self::V {
            // SAFETY: the CPU has AVX2; this touches registers alone.
            unsafe { _mm256_and_si256(_mm256_slli_epi16::<N>(v), _mm256_set1_epi8(mask as i8)) }
        }
        #[inline(always)]
        unsafe fn or(a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: the CPU has AVX2; this touches registers alone.
            unsafe { _mm256_or_si256(a, b) }
        }
        #[inline(always)]
        unsafe fn add_bits(v: Self::V, bits: *const u8, value: u8) -> Self::V {
            // SAFETY: the CPU has AVX2, and the caller has 32 bits at `bits`, unaligned.
            unsafe {
                // Byte i gets the mask's byte i / 8, of which it keeps bit i % 8.
                let spread = _mm256_setr_epi64x(
                    0,
                    0x0101_0101_0101_0101,
                    0x0202_0202_0202_0202,
                    0x0303_0303_0303_0303,
                );
                let select = _mm256_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
                let bits = _mm256_set1_epi32(bits.cast::<i32>().read_unaligned());
                let bits = _mm256_and_si256(_mm256_shuffle_epi8(bits, spread), select);
                let set = _mm256_cmpeq_epi8(bits, select);
                _mm256_or_si256(v, _mm256_and_si256(set, _mm256_set1_epi8(value as i8)))
            }
        }
        #[inline(always)]
        unsafe fn look_up(v: Self::V, table: &[u8; 16]) -> Self::V {
            // SAFETY: the CPU has AVX2; the table has the 16 bytes that are read.
            unsafe {
                let table = _mm_loadu_si128(table.as_ptr().cast());
                _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), v)
            }
        }
        #[inline(always)]
        unsafe fn to_float(v: Self::V) -> __m256 {
            // SAFETY: the CPU has AVX2; this touches registers alone.
            unsafe { _mm256_cvtepi32_ps(v) }
        }
        #[inline(always)]
        unsafe fn load_halves(from: *const u8) -> __m256 {
            // SAFETY: the CPU has F16C, which this level includes, and the caller has eight numbers of 16 bits at
            // `from`.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bytes(from: *const u8) -> __m256 {
            // SAFETY: the CPU has AVX2, and the caller has eight bytes at `from`.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
        }
    };
}

/// What the two flavours of 512 bits have in common.
macro_rules! broad_methods {
    () => {
        type Float = Avx512;
        type V = __m512i;
        const ROWS_OF_RUNS: usize = 4;
        const PANELS: usize = 4;

        #[inline(always)]
        unsafe fn splat(value: i32) -> Self::V {
            // SAFETY: the CPU has AVX-512F; this touches registers alone.
            unsafe { _mm512_set1_epi32(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self::V {
            // SAFETY: the CPU has AVX-512F, and the caller has 64 bytes at `from`, unaligned.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }
        #[inline(always)]
        unsafe fn right<const N: i32>(v: Self::V, mask: u8) -> Self::V {
            // SAFETY: the CPU has AVX-512BW; this touches registers alone.
            unsafe {
                let shifted = match N {
                    0 => v,
                    2 => _mm512_srli_epi16::<2>(v),
                    4 => _mm512_srli_epi16::<4>(v),
                    _ => _mm512_srli_epi16::<6>(v),
                };
                _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
            }
        }
        #[inline(always)]
        unsafe fn left<const N: i32>(v: Self::V, mask: u8) -> Self::V {
            // SAFETY: the CPU has AVX-512BW; this touches registers alone.
            unsafe {
                let shifted = match N {
                    2 => _mm512_slli_epi16::<2>(v),
                    _ => _mm512_slli_epi16::<4>(v),
                };
                _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
            }
        }
        #[inline(always)]
        unsafe fn or(a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: the CPU has AVX-512F; this touches registers alone.
            unsafe { _mm512_or_si512(a, b) }
        }
        #[inline(always)]
        unsafe fn add_bits(v: Self::V, bits: *const u8, value: u8) -> Self::V {
            // SAFETY: the CPU has AVX-512BW, and the caller has 64 bits at `bits`, unaligned.
            unsafe {
                let set = bits.cast::<u64>().read_unaligned();
                _mm512_mask_add_epi8(v, set, v, _mm512_set1_epi8(value as i8))
            }
        }
        #[inline(always)]
        unsafe fn look_up(v: Self::V, table: &[u8; 16]) -> Self::V {
            // SAFETY: the CPU has AVX-512BW; the table has the 16 bytes that are read.
            unsafe {
                let table = _mm_loadu_si128(table.as_ptr().cast());
                _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), v)
            }
        }
        #[inline(always)]
        unsafe fn to_float(v: Self::V) -> __m512 {
            // SAFETY: the CPU has AVX-512F; this touches registers alone.
            unsafe { _mm512_cvtepi32_ps(v) }
        }
        #[inline(always)]
        unsafe fn load_halves(from: *const u8) -> __m512 {
            // SAFETY: the CPU has AVX-512F, and the caller has 16 numbers of 16 bits at `from`.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bytes(from: *const u8) -> __m512 {
            // SAFETY: the CPU has AVX-512F, and the caller has 16 bytes at `from`.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
        }
    };
}

impl Integers for Avx2 {
    narrow_methods!();
    const WIDE_OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the CPU has AVX2, and the caller has four bytes at `x`, unaligned.
        unsafe {
            // Two products of at most 127² each fit 16 bits.
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let pairs = _mm256_maddubs_epi16(codes, x);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the CPU has AVX2, and the caller has four bytes at `x`, unaligned.
        unsafe {
            // The sign goes to x, so that two products of at most 128 · 127 fit 16 bits.
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let levels = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
            let x = _mm256_sign_epi8(x, levels);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(levels), x);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}

impl Integers for Avx2Dot {
    narrow_methods!();
    const WIDE_OFFSET: i32 = 128;

    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the CPU has AVX-VNNI, which this level is chosen by, and the caller has four bytes at `x`,
        // unaligned.
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            _mm256_dpbusd_avx_epi32(sums, codes, x)
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: `x` has the four bytes that `dot` reads, unaligned, as the caller vouches, who has its instruction.
        unsafe { Self::dot(sums, codes, x) }
    }
}

impl Integers for Avx512 {
    broad_methods!();
    const ROWS: usize = 6;
    const WIDE_OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the CPU has AVX-512BW, and the caller has four bytes at `x`, unaligned.
        unsafe {
            let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
            let pairs = _mm512_maddubs_epi16(codes, x);
            _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the CPU has AVX-512BW, and the caller has four bytes at `x`, unaligned.
        unsafe {
            let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
            let levels = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
            let negative = _mm512_movepi8_mask(levels);
            let x = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
            let pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(levels), x);
            _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }
}

impl Integers for Avx512Dot {
    broad_methods!();
    const ROWS: usize = 8;
    const WIDE_OFFSET: i32 = 128;

    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the CPU has AVX512-VNNI, which this level is chosen by, and the caller has four bytes at `x`,
        // unaligned.
        unsafe {
            let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
            _mm512_dpbusd_epi32(sums, codes, x)
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: `x` has the four bytes that `dot` reads, unaligned, as the caller vouches, who has its instruction.
        unsafe { Self::dot(sums, codes, x) }
    }
}
