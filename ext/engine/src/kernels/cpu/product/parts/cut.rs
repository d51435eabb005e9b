//! Numbers cut into parts by AVX-512, which every CPU with tiles has.

use std::arch::x86_64::*;

use super::{Line, LINES, PART, PARTS, STEP};
use crate::kernels::cpu::product::panels::PANEL;

/// Numbers of a vector.
const LANES: usize = 16;

/// The high and the middle part of numbers: bf16 in the upper halves of lanes. Their sum is the number
/// but for 2⁻¹⁷ of it.
#[inline(always)]
unsafe fn parts(v: __m512) -> [__m512i; PARTS] {
    unsafe {
        let half = _mm512_set1_epi32(0x8000);
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let rounded = |v| _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(v), half), upper);
        let high = rounded(v);
        [high, rounded(_mm512_sub_ps(v, _mm512_castsi512_ps(high)))]
    }
}

/// The bits of the largest of some numbers, without its sign; above those of infinity if one is not a
/// number.
///
/// # Safety
/// The CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn largest(numbers: &[f32]) -> u32 {
    let mut most = _mm512_setzero_si512();
    for vector in numbers.chunks(LANES) {
        let mask = u16::MAX >> (LANES - vector.len());
        // SAFETY: the mask keeps to the numbers.
        let v = unsafe { _mm512_maskz_loadu_ps(mask, vector.as_ptr()) };
        most = _mm512_max_epu32(most, _mm512_castps_si512(_mm512_abs_ps(v)));
    }
    _mm512_reduce_max_epu32(most)
}

/// Cuts some rows [rows, inputs] into a block's lines of every step.
///
/// # Safety
/// The rows are there and fit a block, `to` has its lines, and the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn cut_rows(from: *const f32, inputs: usize, rows: usize, to: *mut Line) {
    // SAFETY: masks keep to the rows; the caller vouches for the lines.
    unsafe {
        // The upper halves of two vectors, one after the other.
        let order: [i16; 32] = std::array::from_fn(|at| (2 * at + 1) as i16);
        let order = _mm512_loadu_si512(order.as_ptr().cast());
        for step in 0..inputs.div_ceil(STEP) {
            let mask = u32::MAX >> (STEP - STEP.min(inputs - step * STEP));
            let (from, to) = (from.add(step * STEP), to.add(step * LINES));
            for row in 0..rows {
                let from = from.add(row * inputs);
                let a = _mm512_maskz_loadu_ps(mask as u16, from);
                let b = _mm512_maskz_loadu_ps((mask >> LANES) as u16, from.wrapping_add(LANES));
                for (part, (a, b)) in parts(a).into_iter().zip(parts(b)).enumerate() {
                    let line = _mm512_permutex2var_epi16(a, order, b);
                    _mm512_store_si512(to.add(part * PART + row).cast(), line);
                }
            }
        }
    }
}

/// Cuts a panel [inputs, 32] into its lines of every step: pairs of inputs, one after the other.
///
/// # Safety
/// The numbers are whole inputs, `to` has the lines of all steps, and the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn cut_panel(panel: &[f32], to: *mut Line) {
    let inputs = panel.len() / PANEL;
    // SAFETY: numbers are loaded where there are any; the caller vouches for the lines.
    unsafe {
        // The upper halves of two vectors, one of each in turn.
        let order: [i16; 32] = std::array::from_fn(|at| (at / 2 * 2 + 1 + at % 2 * 32) as i16);
        let order = _mm512_loadu_si512(order.as_ptr().cast());
        for pair in 0..inputs.div_ceil(STEP) * STEP / 2 {
            let (step, pair) = (pair / (STEP / 2), pair % (STEP / 2));
            for half in 0..PANEL / LANES {
                let load = |input: usize| match input < inputs {
                    true => _mm512_loadu_ps(panel.as_ptr().add(input * PANEL + half * LANES)),
                    false => _mm512_setzero_ps(),
                };
                let first = step * STEP + 2 * pair;
                let (a, b) = (parts(load(first)), parts(load(first + 1)));
                let to = to.add(step * LINES + pair * PANEL / LANES + half);
                for (part, (a, b)) in a.into_iter().zip(b).enumerate() {
                    let line = _mm512_permutex2var_epi16(a, order, b);
                    _mm512_store_si512(to.add(part * PART).cast(), line);
                }
            }
        }
    }
}
