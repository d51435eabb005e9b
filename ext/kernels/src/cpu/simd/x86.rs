//! AVX2 and AVX-512.

use super::{gelu, Simd};
#[cfg(not(miri))]
use super::{narrow_tile, wide_tile, Turns};
use crate::cpu::math;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub struct Avx2;

/// -1 for the first `count` lanes, when read from `8 - count`.
static FIRST: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

impl Avx2 {
    #[inline(always)]
    unsafe fn first(count: usize) -> __m256i {
        // SAFETY: the CPU has AVX2; `count` is at most 8, so that the eight numbers lie within the 16 of the table.
        unsafe { _mm256_loadu_si256(FIRST.as_ptr().add(8 - count).cast()) }
    }
    #[inline(always)]
    unsafe fn power(n: __m256i) -> __m256 {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe {
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                n,
                _mm256_set1_epi32(127),
            )))
        }
    }
    /// Four numbers of the rows `row` and `row` + 4, side by side.
    #[inline(always)]
    unsafe fn two_rows(from: *const f32, stride: usize, row: usize, last: usize) -> __m256 {
        // SAFETY: the CPU has AVX2; the caller has rows up to the `last`, of four numbers each from where it
        // points, and no later row is read.
        unsafe {
            let low = _mm_loadu_ps(from.add(row.min(last) * stride));
            let high = _mm_loadu_ps(from.add((row + 4).min(last) * stride));
            _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
        }
    }
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    const ALIGNS: bool = true;

    #[inline(always)]
    unsafe fn prefetch(from: *const f32) {
        _mm_prefetch::<_MM_HINT_T0>(from.cast());
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the CPU has AVX2, and the caller has eight numbers at `from`, which need no alignment.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        // SAFETY: the CPU has AVX2, and the caller has room for eight numbers at `to`, unaligned.
        unsafe { _mm256_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V {
        // SAFETY: the CPU has AVX2; masked lanes are not read, and the caller has `count` numbers at `from`.
        unsafe { _mm256_maskload_ps(from, Self::first(count)) }
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut f32, v: Self::V, count: usize) {
        // SAFETY: the CPU has AVX2; masked lanes are not written, and the caller has room for `count` numbers at
        // `to`.
        unsafe { _mm256_maskstore_ps(to, Self::first(count), v) }
    }
    #[inline(always)]
    unsafe fn keep_first(v: Self::V, count: usize) -> Self::V {
        // SAFETY: the CPU has AVX2, and `count` is less than 8, as `first` asks for.
        unsafe { _mm256_and_ps(v, _mm256_castsi256_ps(Self::first(count))) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the CPU has FMA, which this level includes; this touches registers alone.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[cfg(not(miri))]
    #[inline(always)]
    unsafe fn add_products<const R: usize, const C: usize>(
        sums: &mut [[Self::V; C]; R],
        turns: Turns,
        asks: bool,
    ) -> bool {
        if R == 3 && C == 4 {
            // SAFETY: the CPU has AVX2 and FMA, which this level includes; the sums are of this size; the caller vouches
            // for the turns.
            unsafe { narrow_tile::add_products(&mut *(&raw mut *sums).cast(), turns, asks) };
        }
        R == 3 && C == 4
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe {
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let rest = _mm256_sub_epi32(n, half);
            _mm256_mul_ps(_mm256_mul_ps(v, Self::power(half)), Self::power(rest))
        }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn highest(v: Self::V) -> f32 {
        // SAFETY: the CPU has AVX2; this touches registers alone.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn store_signed_bytes(to: *mut i8, v: Self::V) {
        // SAFETY: the CPU has AVX2, and the caller has room for eight bytes at `to`.
        unsafe {
            let whole = _mm256_cvtps_epi32(v);
            let low = _mm256_castsi256_si128(whole);
            let words = _mm_packs_epi32(low, _mm256_extracti128_si256::<1>(whole));
            _mm_storel_epi64(to.cast(), _mm_packs_epi16(words, words));
        }
    }
    #[inline(always)]
    unsafe fn sum_each([a, b, c, d]: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the CPU has AVX2; four numbers are stored to an array of four.
        unsafe {
            let all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
            let mut sums = [0.0; 4];
            _mm_storeu_ps(sums.as_mut_ptr(), four);
            sums
        }
    }
    #[inline(always)]
    unsafe fn load_columns(from: *const f32, stride: usize, last: usize) -> [Self::V; 4] {
        // SAFETY: the CPU has AVX2; the caller has four numbers in each row up to the `last`, as `two_rows` asks
        // for.
        unsafe {
            let (a, b) = (
                Self::two_rows(from, stride, 0, last),
                Self::two_rows(from, stride, 1, last),
            );
            let (c, d) = (
                Self::two_rows(from, stride, 2, last),
                Self::two_rows(from, stride, 3, last),
            );
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (lower, higher) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            [
                _mm256_shuffle_ps::<0x44>(low, lower),
                _mm256_shuffle_ps::<0xee>(low, lower),
                _mm256_shuffle_ps::<0x44>(high, higher),
                _mm256_shuffle_ps::<0xee>(high, higher),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::V {
        // SAFETY: the CPU has AVX2, and the caller has eight numbers of 16 bits at `from`, unaligned.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::V {
        // SAFETY: the CPU has F16C, which this level includes, and the caller has eight numbers of 16 bits at
        // `from`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, v: Self::V) {
        // SAFETY: the CPU has F16C, which this level includes, and the caller has room for eight numbers of 16 bits
        // at `to`.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn bf16_pairs(from: *const u32) -> [Self::V; 2] {
        // SAFETY: the CPU has AVX2, and the caller has eight pairs at `from`, unaligned.
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let high = _mm256_set1_epi32(!0xffff);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)),
                _mm256_castsi256_ps(_mm256_and_si256(pairs, high)),
            ]
        }
    }
}

#[derive(Clone, Copy)]
pub struct Avx512;

impl Avx512 {
    /// GELU by pieces where it holds, and else without them.
    #[inline(always)]
    unsafe fn where_near(x: __m512, by_pieces: __m512) -> __m512 {
        // SAFETY: the CPU has AVX-512F, which `math::gelu` is then compiled for too; this touches registers alone.
        unsafe {
            // What is not a number is not near either.
            let is_near = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(-gelu::END));
            match is_near {
                0xffff => by_pieces,
                _ => _mm512_mask_blend_ps(is_near, math::gelu::<Self>(x), by_pieces),
            }
        }
    }
    /// Where the upper halves of 16 words of 32 bits lie.
    #[inline(always)]
    unsafe fn upper_halves() -> __m512i {
        static PLACES: [u16; 32] = {
            let mut places = [0; 32];
            let mut word = 0;
            while word < 16 {
                places[word] = 2 * word as u16 + 1;
                word += 1;
            }
            places
        };
        // SAFETY: the CPU has AVX-512F, and the table has 32 places of 16 bits, one vector.
        unsafe { _mm512_loadu_si512(PLACES.as_ptr().cast()) }
    }
    /// Four numbers of the rows `row`, `row` + 4, `row` + 8 and `row` + 12, side by side.
    #[inline(always)]
    unsafe fn four_rows(from: *const f32, stride: usize, row: usize, last: usize) -> __m512 {
        // SAFETY: the CPU has AVX-512F; the caller has rows up to the `last`, of four numbers each from where it
        // points, and no later row is read.
        unsafe {
            let first = _mm_loadu_ps(from.add(row.min(last) * stride));
            let second = _mm_loadu_ps(from.add((row + 4).min(last) * stride));
            let third = _mm_loadu_ps(from.add((row + 8).min(last) * stride));
            let fourth = _mm_loadu_ps(from.add((row + 12).min(last) * stride));
            let rows = _mm512_castps128_ps512(first);
            let rows = _mm512_insertf32x4::<1>(rows, second);
            let rows = _mm512_insertf32x4::<2>(rows, third);
            _mm512_insertf32x4::<3>(rows, fourth)
        }
    }
}

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    const ALIGNS: bool = true;

    #[inline(always)]
    unsafe fn prefetch(from: *const f32) {
        _mm_prefetch::<_MM_HINT_T0>(from.cast());
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the CPU has AVX-512F, and the caller has 16 numbers at `from`, which need no alignment.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        // SAFETY: the CPU has AVX-512F, and the caller has room for 16 numbers at `to`, unaligned.
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V {
        // SAFETY: the CPU has AVX-512F; masked lanes are not read, and the caller has `count` numbers at `from`.
        unsafe { _mm512_maskz_loadu_ps(((1u32 << count) - 1) as __mmask16, from) }
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut f32, v: Self::V, count: usize) {
        // SAFETY: the CPU has AVX-512F; masked lanes are not written, and the caller has room for `count` numbers
        // at `to`.
        unsafe { _mm512_mask_storeu_ps(to, ((1u32 << count) - 1) as __mmask16, v) }
    }
    #[inline(always)]
    unsafe fn keep_first(v: Self::V, count: usize) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone, and a mask has 16 bits for a `count` below
        // 16.
        unsafe { _mm512_maskz_mov_ps(((1u32 << count) - 1) as __mmask16, v) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn reciprocal(a: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe {
            // 14 bits, doubled by one step of Newton's: a quarter of a division's time.
            let rough = _mm512_rcp14_ps(a);
            let missing = _mm512_fnmadd_ps(a, rough, _mm512_set1_ps(1.0));
            _mm512_fmadd_ps(rough, missing, rough)
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[cfg(not(miri))]
    #[inline(always)]
    unsafe fn add_products<const R: usize, const C: usize>(
        sums: &mut [[Self::V; C]; R],
        turns: Turns,
        asks: bool,
    ) -> bool {
        if R == 12 && C == 2 {
            // SAFETY: the CPU has AVX-512F, which this level includes; the sums are of this size; the caller vouches
            // for the turns.
            unsafe { wide_tile::add_products(&mut *(&raw mut *sums).cast(), turns, asks) };
        }
        R == 12 && C == 2
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_scalef_ps(v, n) }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_reduce_add_ps(v) }
    }
    #[inline(always)]
    unsafe fn highest(v: Self::V) -> f32 {
        // SAFETY: the CPU has AVX-512F; this touches registers alone.
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    unsafe fn store_signed_bytes(to: *mut i8, v: Self::V) {
        // SAFETY: the CPU has AVX-512F, and the caller has room for 16 bytes at `to`.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn sum_each([a, b, c, d]: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the CPU has AVX-512F and AVX-512DQ; four numbers are stored to an array of four.
        unsafe {
            let pairs = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let [ab, cd] = [_mm512_castps_pd(pairs(a, b)), _mm512_castps_pd(pairs(c, d))];
            let [low, high] = [_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd)];
            let all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
            let half = _mm256_add_ps(
                _mm512_castps512_ps256(all),
                _mm512_extractf32x8_ps::<1>(all),
            );
            let four = _mm_add_ps(
                _mm256_castps256_ps128(half),
                _mm256_extractf128_ps::<1>(half),
            );
            let mut sums = [0.0; 4];
            _mm_storeu_ps(sums.as_mut_ptr(), four);
            sums
        }
    }
    #[inline(always)]
    unsafe fn gelu(x: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F, which is all that both functions ask for.
        unsafe { Self::where_near(x, gelu::by_pieces(x, &gelu::TAILS)) }
    }
    #[inline(always)]
    unsafe fn rough_gelu(x: Self::V) -> Self::V {
        // SAFETY: the CPU has AVX-512F, which is all that both functions ask for; only the table is a shorter one.
        unsafe { Self::where_near(x, gelu::by_pieces(x, &gelu::ROUGH_TAILS)) }
    }
    #[inline(always)]
    unsafe fn store_raised_bytes(to: *mut u8, v: Self::V) {
        // SAFETY: the CPU has AVX-512F, and the caller has room for 16 bytes at `to`.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
            let raised = _mm_xor_si128(bytes, _mm_set1_epi8(i8::MIN));
            _mm_storeu_si128(to.cast(), raised);
        }
    }
    #[inline(always)]
    unsafe fn load_columns(from: *const f32, stride: usize, last: usize) -> [Self::V; 4] {
        // SAFETY: the CPU has AVX-512F; the caller has four numbers in each row up to the `last`, as `four_rows`
        // asks for.
        unsafe {
            let (a, b) = (
                Self::four_rows(from, stride, 0, last),
                Self::four_rows(from, stride, 1, last),
            );
            let (c, d) = (
                Self::four_rows(from, stride, 2, last),
                Self::four_rows(from, stride, 3, last),
            );
            let (low, high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (lower, higher) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            [
                _mm512_shuffle_ps::<0x44>(low, lower),
                _mm512_shuffle_ps::<0xee>(low, lower),
                _mm512_shuffle_ps::<0x44>(high, higher),
                _mm512_shuffle_ps::<0xee>(high, higher),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::V {
        // SAFETY: the CPU has AVX-512F, and the caller has 16 numbers of 16 bits at `from`, unaligned.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(to: *mut u16, v: Self::V) {
        // SAFETY: the CPU has AVX-512F and AVX-512BW, and the caller has room for 16 numbers of 16 bits at `to`.
        unsafe {
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let nearly = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_mask_add_epi32(nearly, odd, nearly, _mm512_set1_epi32(1));
            let quiet = _mm512_set1_epi32(0x40_0000);
            let out = _mm512_mask_or_epi32(rounded, nan, bits, quiet);
            let halves = _mm512_permutexvar_epi16(Self::upper_halves(), out);
            _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(halves));
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::V {
        // SAFETY: the CPU has AVX-512F, and the caller has 16 numbers of 16 bits at `from`, unaligned.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, v: Self::V) {
        // SAFETY: the CPU has AVX-512F, and the caller has room for 16 numbers of 16 bits at `to`.
        unsafe {
            let out = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(to.cast(), out);
        }
    }
    #[inline(always)]
    unsafe fn bf16_pairs(from: *const u32) -> [Self::V; 2] {
        // SAFETY: the CPU has AVX-512F, and the caller has 16 pairs at `from`, unaligned.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let high = _mm512_set1_epi32(!0xffff);
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                _mm512_castsi512_ps(_mm512_and_si512(pairs, high)),
            ]
        }
    }
}
