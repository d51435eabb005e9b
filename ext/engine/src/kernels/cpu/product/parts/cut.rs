//! Numbers cut into parts by AVX-512, which every CPU with tiles has.

use std::arch::x86_64::*;

use super::{factor, unit, Line, LINES, STEP};
use crate::kernels::cpu::product::amx::TILE;

/// Numbers of a vector.
const LANES: usize = 16;

/// The bits of the largest of some numbers, without its sign; above those of infinity if one is not a
/// number.
#[target_feature(enable = "avx512f,avx512bw")]
fn largest(numbers: &[f32]) -> u32 {
    let mut most = _mm512_setzero_si512();
    let mut vectors = numbers.chunks_exact(LANES);
    for vector in vectors.by_ref() {
        most = _mm512_max_epu32(most, _mm512_castps_si512(_mm512_abs_ps(load(vector))));
    }
    let rest = _mm512_abs_ps(load(vectors.remainder()));
    _mm512_reduce_max_epu32(_mm512_max_epu32(most, _mm512_castps_si512(rest)))
}

/// The first numbers, and zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(numbers: &[f32]) -> __m512 {
    let mask = match numbers.len() {
        LANES.. => u16::MAX,
        count => (1 << count) - 1,
    };
    // SAFETY: the mask keeps to the numbers.
    unsafe { _mm512_maskz_loadu_ps(mask, numbers.as_ptr()) }
}

/// The three parts of four numbers in every lane: the highest of all, the middle, the lowest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn parts(numbers: __m512, factor: __m512) -> __m512i {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let whole = _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(numbers, factor));
    // Bytes of what is larger by 128 in every place, less 128 each.
    let middle = _mm512_set1_epi32(0x0080_8080);
    let bytes = _mm512_xor_si512(_mm512_add_epi32(whole, middle), middle);
    let order = _mm_setr_epi8(2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1);
    _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(order))
}

/// Stores the parts of a step's numbers, which are in lanes of four.
///
/// # Safety
/// `to` has a line in every tile of the step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store([a, b, c, d]: [__m512i; 4], to: *mut Line) {
    // The highest and the middle parts of 32 numbers, and their lowest.
    let upper = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    let lower = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 2, 6, 10, 14, 18, 22, 26, 30);
    let first = _mm512_permutex2var_epi32(a, upper, b);
    let second = _mm512_permutex2var_epi32(c, upper, d);
    let highest = _mm512_shuffle_i64x2::<0x44>(first, second);
    let middle = _mm512_shuffle_i64x2::<0xee>(first, second);
    let first = _mm512_permutex2var_epi32(a, lower, b);
    let second = _mm512_permutex2var_epi32(c, lower, d);
    let lowest = _mm512_shuffle_i64x2::<0x44>(first, second);
    for (part, numbers) in [highest, middle, lowest].into_iter().enumerate() {
        // SAFETY: the caller vouches for the lines.
        unsafe { _mm512_store_si512(to.add(part * TILE).cast(), numbers) };
    }
}

/// Cuts a row into its line of every tile of a block's steps, and says the unit of its highest parts.
///
/// # Safety
/// The block has all steps of the row, `to` being its line of the first tile; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn cut_row(row: &[f32], to: *mut Line) -> f32 {
    let unit = unit(largest(row));
    let factor = _mm512_set1_ps(factor(unit));
    let mut steps = row.chunks_exact(STEP);
    let whole = steps.len();
    // SAFETY: a step has four vectors; the caller vouches for the lines.
    unsafe {
        for (step, numbers) in steps.by_ref().enumerate() {
            let vector = |number| _mm512_loadu_ps(numbers.as_ptr().add(number * LANES));
            let vectors = [vector(0), vector(1), vector(2), vector(3)];
            store(vectors.map(|v| parts(v, factor)), to.add(step * LINES));
        }
        let rest = steps.remainder();
        if !rest.is_empty() {
            let vector = |number| load(&rest[rest.len().min(number * LANES)..]);
            let vectors = [vector(0), vector(1), vector(2), vector(3)];
            store(vectors.map(|v| parts(v, factor)), to.add(whole * LINES));
        }
    }
    unit
}
