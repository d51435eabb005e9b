//! f32 vectors of four instruction sets behind one trait.
//!
//! Kernels are generic over `Simd`, `#[inline(always)]` all the way down, and instantiated inside
//! functions that enable the features (`dispatched!`). Every method is unsafe for one reason: the
//! CPU must have the instruction set. Pointers need no alignment.

/// A vector of f32 and what the kernels do with it.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Simd: Copy {
    type V: Copy;
    const LANES: usize;
    /// Vector registers of the instruction set.
    const REGISTERS: usize;
    /// Whether a row is better begun by what is missing to an aligned address: vectors that
    /// straddle cache lines cost twice.
    const ALIGNS: bool = false;

    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    /// The first `count` < LANES elements; the others are 0.
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V;
    unsafe fn store_first(to: *mut f32, v: Self::V, count: usize);
    /// The first `count` < LANES lanes of `v`, the others 0.
    #[inline(always)]
    unsafe fn keep_first(v: Self::V, count: usize) -> Self::V {
        let mut values = [0.0f32; 16];
        unsafe {
            Self::store(values.as_mut_ptr(), v);
            Self::load_first(values.as_ptr(), count)
        }
    }
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// a · b + c, fused where the hardware fuses.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; where `a` is NaN the result is `b` or NaN, where `b` is NaN it is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller, with `max`'s treatment of NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn abs(a: Self::V) -> Self::V;
    /// `yes` where a < b, else `no`; NaN is never less.
    unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    unsafe fn round(a: Self::V) -> Self::V;
    /// v · 2ⁿ for whole n in -252..=254.
    unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V;
    unsafe fn sum(v: Self::V) -> f32;
    unsafe fn highest(v: Self::V) -> f32;

    /// LANES numbers of bf16.
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::V {
        unsafe { load_each::<Self>(from, bf16_to_f32) }
    }
    #[inline(always)]
    unsafe fn store_bf16(to: *mut u16, v: Self::V) {
        unsafe { store_each::<Self>(to, v, f32_to_bf16) }
    }
    /// LANES numbers of f16.
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::V {
        unsafe { load_each::<Self>(from, |bits| half::f16::from_bits(bits).to_f32()) }
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, v: Self::V) {
        unsafe { store_each::<Self>(to, v, |value| half::f16::from_f32(value).to_bits()) }
    }
    /// The first and the second numbers of LANES pairs of bf16.
    #[inline(always)]
    unsafe fn bf16_pairs(from: *const u32) -> [Self::V; 2] {
        unsafe { pairs_each::<Self>(from, bf16_to_f32) }
    }
    /// The same of f16.
    #[inline(always)]
    unsafe fn f16_pairs(from: *const u32) -> [Self::V; 2] {
        unsafe { pairs_each::<Self>(from, |bits| half::f16::from_bits(bits).to_f32()) }
    }
}

/// No vector is longer.
const MOST_LANES: usize = 16;

#[inline(always)]
fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// To the nearest, ties to even; a NaN stays one.
#[inline(always)]
pub(super) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

#[inline(always)]
unsafe fn load_each<S: Simd>(from: *const u16, widen: impl Fn(u16) -> f32) -> S::V {
    let mut values = [0.0f32; MOST_LANES];
    for (i, value) in values.iter_mut().enumerate().take(S::LANES) {
        *value = widen(unsafe { *from.add(i) });
    }
    unsafe { S::load(values.as_ptr()) }
}

#[inline(always)]
unsafe fn store_each<S: Simd>(to: *mut u16, v: S::V, narrow: impl Fn(f32) -> u16) {
    let mut values = [0.0f32; MOST_LANES];
    unsafe { S::store(values.as_mut_ptr(), v) };
    for (i, &value) in values.iter().enumerate().take(S::LANES) {
        unsafe { *to.add(i) = narrow(value) };
    }
}

#[inline(always)]
unsafe fn pairs_each<S: Simd>(from: *const u32, widen: impl Fn(u16) -> f32) -> [S::V; 2] {
    let mut values = [[0.0f32; MOST_LANES]; 2];
    for i in 0..S::LANES {
        let pair = unsafe { *from.add(i) };
        values[0][i] = widen(pair as u16);
        values[1][i] = widen((pair >> 16) as u16);
    }
    unsafe { [S::load(values[0].as_ptr()), S::load(values[1].as_ptr())] }
}

/// Plain Rust, which the compiler turns into whatever the target's baseline has.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const PORTABLE: usize = 8;

#[inline(always)]
fn each(a: [f32; PORTABLE], b: [f32; PORTABLE], f: impl Fn(f32, f32) -> f32) -> [f32; PORTABLE] {
    let mut out = a;
    for (o, b) in out.iter_mut().zip(b) {
        *o = f(*o, b);
    }
    out
}

impl Simd for Portable {
    type V = [f32; PORTABLE];
    const LANES: usize = PORTABLE;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        [value; PORTABLE]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        unsafe { to.cast::<Self::V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V {
        let mut v = [0.0; PORTABLE];
        unsafe { std::ptr::copy_nonoverlapping(from, v.as_mut_ptr(), count) };
        v
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut f32, v: Self::V, count: usize) {
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), to, count) };
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(each(a, b, |a, b| a * b), c, |p, c| p + c)
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        a.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        let mut out = no;
        for i in 0..PORTABLE {
            if a[i] < b[i] {
                out[i] = yes[i];
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        // Adding 1.5 · 2²³ leaves no fraction bits; |a| is far below 2²².
        const MAGIC: f32 = 12_582_912.0;
        a.map(|v| (v + MAGIC) - MAGIC)
    }
    #[inline(always)]
    unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V {
        let mut out = v;
        for (o, n) in out.iter_mut().zip(n) {
            // A NaN becomes 0 here and stays in `v`.
            let n = n as i32;
            let half = n >> 1;
            let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
            *o = *o * power(half) * power(n - half);
        }
        out
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]))
    }
    #[inline(always)]
    unsafe fn highest(v: Self::V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub(crate) struct Avx2;

    /// -1 for the first `count` lanes, when read from `8 - count`.
    static FIRST: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    impl Avx2 {
        #[inline(always)]
        unsafe fn first(count: usize) -> __m256i {
            unsafe { _mm256_loadu_si256(FIRST.as_ptr().add(8 - count).cast()) }
        }
        #[inline(always)]
        unsafe fn power(n: __m256i) -> __m256 {
            unsafe {
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                    n,
                    _mm256_set1_epi32(127),
                )))
            }
        }
    }

    impl Simd for Avx2 {
        type V = __m256;
        const LANES: usize = 8;
        const REGISTERS: usize = 16;
        const ALIGNS: bool = true;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self::V {
            unsafe { _mm256_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self::V {
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, v: Self::V) {
            unsafe { _mm256_storeu_ps(to, v) }
        }
        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self::V {
            unsafe { _mm256_maskload_ps(from, Self::first(count)) }
        }
        #[inline(always)]
        unsafe fn store_first(to: *mut f32, v: Self::V, count: usize) {
            unsafe { _mm256_maskstore_ps(to, Self::first(count), v) }
        }
        #[inline(always)]
        unsafe fn keep_first(v: Self::V, count: usize) -> Self::V {
            unsafe { _mm256_and_ps(v, _mm256_castsi256_ps(Self::first(count))) }
        }
        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm256_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm256_div_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm256_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm256_min_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn abs(a: Self::V) -> Self::V {
            unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
        }
        #[inline(always)]
        unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
            unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
        }
        #[inline(always)]
        unsafe fn round(a: Self::V) -> Self::V {
            unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        }
        #[inline(always)]
        unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V {
            unsafe {
                let n = _mm256_cvtps_epi32(n);
                let half = _mm256_srai_epi32::<1>(n);
                let rest = _mm256_sub_epi32(n, half);
                _mm256_mul_ps(_mm256_mul_ps(v, Self::power(half)), Self::power(rest))
            }
        }
        #[inline(always)]
        unsafe fn sum(v: Self::V) -> f32 {
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }
        #[inline(always)]
        unsafe fn highest(v: Self::V) -> f32 {
            unsafe {
                let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
                let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self::V {
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self::V {
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }
        #[inline(always)]
        unsafe fn store_f16(to: *mut u16, v: Self::V) {
            unsafe {
                _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v))
            }
        }
        #[inline(always)]
        unsafe fn bf16_pairs(from: *const u32) -> [Self::V; 2] {
            unsafe {
                let pairs = _mm256_loadu_si256(from.cast());
                let high = _mm256_set1_epi32(!0xffff);
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)),
                    _mm256_castsi256_ps(_mm256_and_si256(pairs, high)),
                ]
            }
        }
        #[inline(always)]
        unsafe fn f16_pairs(from: *const u32) -> [Self::V; 2] {
            unsafe {
                let pairs = _mm256_loadu_si256(from.cast());
                // Packing works within halves of 128 bits, so their middle quarters change places.
                let narrow = |v: __m256i| {
                    let packed = _mm256_packus_epi32(v, v);
                    _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(packed))
                };
                let low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
                [
                    _mm256_cvtph_ps(narrow(low)),
                    _mm256_cvtph_ps(narrow(_mm256_srli_epi32::<16>(pairs))),
                ]
            }
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Avx512;

    impl Simd for Avx512 {
        type V = __m512;
        const LANES: usize = 16;
        const REGISTERS: usize = 32;
        const ALIGNS: bool = true;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self::V {
            unsafe { _mm512_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self::V {
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, v: Self::V) {
            unsafe { _mm512_storeu_ps(to, v) }
        }
        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self::V {
            unsafe { _mm512_maskz_loadu_ps(((1u32 << count) - 1) as __mmask16, from) }
        }
        #[inline(always)]
        unsafe fn store_first(to: *mut f32, v: Self::V, count: usize) {
            unsafe { _mm512_mask_storeu_ps(to, ((1u32 << count) - 1) as __mmask16, v) }
        }
        #[inline(always)]
        unsafe fn keep_first(v: Self::V, count: usize) -> Self::V {
            unsafe { _mm512_maskz_mov_ps(((1u32 << count) - 1) as __mmask16, v) }
        }
        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm512_div_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm512_min_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn abs(a: Self::V) -> Self::V {
            unsafe { _mm512_abs_ps(a) }
        }
        #[inline(always)]
        unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
            unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
        }
        #[inline(always)]
        unsafe fn round(a: Self::V) -> Self::V {
            unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        }
        #[inline(always)]
        unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V {
            unsafe { _mm512_scalef_ps(v, n) }
        }
        #[inline(always)]
        unsafe fn sum(v: Self::V) -> f32 {
            unsafe { _mm512_reduce_add_ps(v) }
        }
        #[inline(always)]
        unsafe fn highest(v: Self::V) -> f32 {
            unsafe { _mm512_reduce_max_ps(v) }
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self::V {
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn store_bf16(to: *mut u16, v: Self::V) {
            unsafe {
                let bits = _mm512_castps_si512(v);
                let high = _mm512_srli_epi32::<16>(bits);
                let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
                let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
                let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
                let quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
                let out = _mm512_mask_mov_epi32(rounded, nan, quiet);
                _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(out));
            }
        }
        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self::V {
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }
        #[inline(always)]
        unsafe fn store_f16(to: *mut u16, v: Self::V) {
            unsafe {
                let out = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
                _mm256_storeu_si256(to.cast(), out);
            }
        }
        #[inline(always)]
        unsafe fn bf16_pairs(from: *const u32) -> [Self::V; 2] {
            unsafe {
                let pairs = _mm512_loadu_si512(from.cast());
                let high = _mm512_set1_epi32(!0xffff);
                [
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                    _mm512_castsi512_ps(_mm512_and_si512(pairs, high)),
                ]
            }
        }
        #[inline(always)]
        unsafe fn f16_pairs(from: *const u32) -> [Self::V; 2] {
            unsafe {
                let pairs = _mm512_loadu_si512(from.cast());
                [
                    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)),
                    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs))),
                ]
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Simd;
    use std::arch::aarch64::*;

    #[derive(Clone, Copy)]
    pub(crate) struct Neon;

    impl Neon {
        #[inline(always)]
        unsafe fn power(n: int32x4_t) -> float32x4_t {
            unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127)))) }
        }
    }

    impl Simd for Neon {
        type V = float32x4_t;
        const LANES: usize = 4;
        const REGISTERS: usize = 32;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self::V {
            unsafe { vdupq_n_f32(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self::V {
            unsafe { vld1q_f32(from) }
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, v: Self::V) {
            unsafe { vst1q_f32(to, v) }
        }
        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self::V {
            let mut v = [0.0f32; 4];
            unsafe {
                std::ptr::copy_nonoverlapping(from, v.as_mut_ptr(), count);
                vld1q_f32(v.as_ptr())
            }
        }
        #[inline(always)]
        unsafe fn store_first(to: *mut f32, v: Self::V, count: usize) {
            let mut values = [0.0f32; 4];
            unsafe {
                vst1q_f32(values.as_mut_ptr(), v);
                std::ptr::copy_nonoverlapping(values.as_ptr(), to, count);
            }
        }
        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            unsafe { vaddq_f32(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
            unsafe { vsubq_f32(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            unsafe { vmulq_f32(a, b) }
        }
        #[inline(always)]
        unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
            unsafe { vdivq_f32(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            unsafe { vfmaq_f32(c, a, b) }
        }
        #[inline(always)]
        unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
            unsafe { vmaxq_f32(a, b) }
        }
        #[inline(always)]
        unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
            unsafe { vminq_f32(a, b) }
        }
        #[inline(always)]
        unsafe fn abs(a: Self::V) -> Self::V {
            unsafe { vabsq_f32(a) }
        }
        #[inline(always)]
        unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
            unsafe { vbslq_f32(vcltq_f32(a, b), yes, no) }
        }
        #[inline(always)]
        unsafe fn round(a: Self::V) -> Self::V {
            unsafe { vrndnq_f32(a) }
        }
        #[inline(always)]
        unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V {
            unsafe {
                let n = vcvtq_s32_f32(n);
                let half = vshrq_n_s32::<1>(n);
                let rest = vsubq_s32(n, half);
                vmulq_f32(vmulq_f32(v, Self::power(half)), Self::power(rest))
            }
        }
        #[inline(always)]
        unsafe fn sum(v: Self::V) -> f32 {
            unsafe { vaddvq_f32(v) }
        }
        #[inline(always)]
        unsafe fn highest(v: Self::V) -> f32 {
            unsafe { vmaxvq_f32(v) }
        }
    }
}
