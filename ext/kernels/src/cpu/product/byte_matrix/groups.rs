//! Groups of four bytes of a row against those of 32 columns.

use std::arch::x86_64::*;

use super::{Operands, OFFSET};
use crate::cpu::product::driver::Sums;
use crate::cpu::product::panels::PANEL;
use crate::cpu::product::row_tiles::in_row_tiles;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn vnni_tile<const R: usize>(operands: Operands, sums: Sums) {
    let (x, groups) = (operands.x.cast::<i32>(), operands.depth / 4);
    // SAFETY: x has R rows of `depth` bytes, the panel as many groups of 32 columns, and the sums room for R rows
    // of 32, as the caller vouches; AVX-512 with VNNI is enabled, and nothing needs alignment.
    unsafe {
        let mut totals = [[_mm512_setzero_si512(); 2]; R];
        for group in 0..groups {
            let from = operands.panel.add(group * PANEL);
            let columns = [
                _mm512_loadu_si512(from.cast()),
                _mm512_loadu_si512(from.add(16).cast()),
            ];
            for (r, totals) in totals.iter_mut().enumerate() {
                let row = _mm512_set1_epi32(x.add(r * groups + group).read_unaligned());
                totals[0] = _mm512_dpbusd_epi32(totals[0], row, columns[0]);
                totals[1] = _mm512_dpbusd_epi32(totals[1], row, columns[1]);
            }
        }
        for (r, totals) in totals.iter().enumerate() {
            let to = sums.row(r);
            _mm512_storeu_si512(to.cast(), totals[0]);
            _mm512_storeu_si512(to.add(16).cast(), totals[1]);
        }
    }
}

/// # Safety
/// x and the sums, which are written as i32, have the rows, and the CPU has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn multiply_vnni(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x, the panel and the sums have the rows and the depth, as the caller vouches; AVX512-VNNI is enabled.
    unsafe {
        in_row_tiles!(rows, most 12, (row, HEIGHT) => {
            let x = operands.x.add(row * operands.depth);
            vnni_tile::<HEIGHT>(Operands { x, ..operands }, sums.at(row, 0));
        });
    }
}

/// Half a panel at a time: the sums of six rows and what is multiplied fill the sixteen registers.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn avx_vnni_tile<const R: usize>(operands: Operands, sums: Sums) {
    let (x, groups) = (operands.x.cast::<i32>(), operands.depth / 4);
    // SAFETY: x has R rows of `depth` bytes, the panel as many groups of 32 columns, and the sums room for R rows
    // of 32, as the caller vouches; AVX-VNNI is enabled, and nothing needs alignment.
    unsafe {
        for column in (0..PANEL).step_by(16) {
            let mut totals = [[_mm256_setzero_si256(); 2]; R];
            for group in 0..groups {
                let from = operands.panel.add(group * PANEL + column);
                let columns = [
                    _mm256_loadu_si256(from.cast()),
                    _mm256_loadu_si256(from.add(8).cast()),
                ];
                for (r, totals) in totals.iter_mut().enumerate() {
                    let row = _mm256_set1_epi32(x.add(r * groups + group).read_unaligned());
                    totals[0] = _mm256_dpbusd_avx_epi32(totals[0], row, columns[0]);
                    totals[1] = _mm256_dpbusd_avx_epi32(totals[1], row, columns[1]);
                }
            }
            for (r, totals) in totals.iter().enumerate() {
                let to = sums.row(r).add(column);
                _mm256_storeu_si256(to.cast(), totals[0]);
                _mm256_storeu_si256(to.add(8).cast(), totals[1]);
            }
        }
    }
}

/// # Safety
/// As above.
#[target_feature(enable = "avx2,avxvnni")]
pub(super) unsafe fn multiply_avx_vnni(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x, the panel and the sums have the rows and the depth, as the caller vouches; AVX-VNNI is enabled.
    unsafe {
        in_row_tiles!(rows, most 6, (row, HEIGHT) => {
            let x = operands.x.add(row * operands.depth);
            avx_vnni_tile::<HEIGHT>(Operands { x, ..operands }, sums.at(row, 0));
        });
    }
}

/// Signs change sides, so that unsigned times signed bytes never leave 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn avx2_tile<const R: usize>(operands: Operands, sums: Sums) {
    let (x, groups) = (operands.x.cast::<i32>(), operands.depth / 4);
    // SAFETY: x has R rows of `depth` bytes, the panel as many groups of 32 columns, and the sums room for R rows
    // of 32, as the caller vouches; AVX2 is enabled, and nothing needs alignment.
    unsafe {
        let (ones, offset) = (_mm256_set1_epi16(1), _mm256_set1_epi8(OFFSET as u8 as i8));
        for column in (0..PANEL).step_by(16) {
            let mut totals = [[_mm256_setzero_si256(); 2]; R];
            for group in 0..groups {
                let from = operands.panel.add(group * PANEL + column);
                let columns = [
                    _mm256_loadu_si256(from.cast()),
                    _mm256_loadu_si256(from.add(8).cast()),
                ];
                for (r, totals) in totals.iter_mut().enumerate() {
                    let row = _mm256_set1_epi32(x.add(r * groups + group).read_unaligned());
                    let row = _mm256_xor_si256(row, offset);
                    let size = _mm256_abs_epi8(row);
                    for (total, columns) in totals.iter_mut().zip(columns) {
                        let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(columns, row));
                        *total = _mm256_add_epi32(*total, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            for (r, totals) in totals.iter().enumerate() {
                let to = sums.row(r).add(column);
                _mm256_storeu_si256(to.cast(), totals[0]);
                _mm256_storeu_si256(to.add(8).cast(), totals[1]);
            }
        }
    }
}

/// # Safety
/// As above.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn multiply_avx2(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x, the panel and the sums have the rows and the depth, as the caller vouches; AVX2 is enabled.
    unsafe {
        in_row_tiles!(rows, most 4, (row, HEIGHT) => {
            let x = operands.x.add(row * operands.depth);
            avx2_tile::<HEIGHT>(Operands { x, ..operands }, sums.at(row, 0));
        });
    }
}
