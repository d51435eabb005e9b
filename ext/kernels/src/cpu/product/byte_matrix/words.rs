//! Bytes of columns, widened as they are read, against words of a row: sums of pairs of words need no care for signs.

use std::arch::x86_64::*;

use super::{Operands, OFFSET};
use crate::cpu::product::driver::Sums;
use crate::cpu::product::panels::PANEL;
use crate::cpu::product::row_tiles::in_row_tiles;

/// Bytes that are widened together.
const VECTOR: usize = 32;

/// How far ahead of the arithmetic a panel is asked for, in bytes: a page.
const AHEAD: usize = 4096;

/// Takes a row of bytes, which stand in the second half of its place, for words without their offset.
///
/// # Safety
/// `row` has room for `depth` words, whole vectors, the second half of it are the bytes, and the CPU has AVX-512BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn widen(row: *mut i16, depth: usize) {
    let bytes = row.cast::<u8>().wrapping_add(depth);
    // SAFETY: words and bytes lie within the row, as the caller vouches; AVX-512BW is enabled. Words end, at twice `at`
    // and a vector, before the bytes that are read next, at `depth` and `at` and a vector.
    unsafe {
        let offset = _mm512_set1_epi16(OFFSET as i16);
        for at in (0..depth).step_by(VECTOR) {
            let words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(bytes.add(at).cast()));
            _mm512_storeu_si512(row.add(at).cast(), _mm512_sub_epi16(words, offset));
        }
    }
}

/// R rows of words against a panel. Every column has two sums, which are added at the end.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn tile<const R: usize>(operands: Operands, sums: Sums) {
    let (x, groups) = (operands.x.cast::<i64>(), operands.depth / 4);
    // SAFETY: x has R rows of `depth` words, the panel as many groups of 32 columns, and the sums room for R rows
    // of 32, as the caller vouches; AVX-512BW is enabled, and nothing needs alignment. What is asked for ahead may
    // lie anywhere.
    unsafe {
        let mut totals = [[_mm512_setzero_si512(); 4]; R];
        for group in 0..groups {
            let from = operands.panel.add(group * PANEL).cast::<i8>();
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD));
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD + 2 * VECTOR));
            let mut columns = [_mm512_setzero_si512(); 4];
            for (number, columns) in columns.iter_mut().enumerate() {
                let bytes = _mm256_loadu_si256(from.add(number * VECTOR).cast());
                *columns = _mm512_cvtepi8_epi16(bytes);
            }
            for (r, totals) in totals.iter_mut().enumerate() {
                let row = _mm512_set1_epi64(x.add(r * groups + group).read_unaligned());
                for (total, columns) in totals.iter_mut().zip(columns) {
                    *total = _mm512_add_epi32(*total, _mm512_madd_epi16(row, columns));
                }
            }
        }
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        for (r, totals) in totals.iter().enumerate() {
            let to = sums.row(r);
            for (half, pair) in totals.chunks_exact(2).enumerate() {
                let sum = _mm512_add_epi32(
                    _mm512_permutex2var_epi32(pair[0], even, pair[1]),
                    _mm512_permutex2var_epi32(pair[0], odd, pair[1]),
                );
                _mm512_storeu_si512(to.add(16 * half).cast(), sum);
            }
        }
    }
}

/// # Safety
/// x, as words, and the sums, which are written as i32, have the rows, and the CPU has AVX-512BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn multiply(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x, the panel and the sums have the rows and the depth, as the caller vouches; AVX-512BW is enabled.
    unsafe {
        in_row_tiles!(rows, most 6, (row, HEIGHT) => {
            let x = operands.x.add(row * operands.depth * size_of::<i16>());
            tile::<HEIGHT>(Operands { x, ..operands }, sums.at(row, 0));
        });
    }
}
