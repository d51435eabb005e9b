//! AVX512-BF16: pairs of a row against pairs of 32 columns.

use std::arch::x86_64::*;
use std::mem::transmute;

use crate::cpu::product::driver::Sums;
use crate::cpu::product::panels::PANEL;
use crate::cpu::product::row_tiles::in_row_tiles;

/// Rows of x and one panel, as deep as one another.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// [rows, pairs]
    pub x: *const i32,
    /// [pairs, 32]
    pub panel: *const u32,
    pub pairs: usize,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn tile<const R: usize>(operands: Operands, sums: Sums) {
    let Operands { x, panel, pairs } = operands;
    // SAFETY: x has R rows of `pairs` pairs, the panel as many rows of 32, and the sums room for R rows of 32, as
    // the caller vouches; AVX512-BF16 is enabled. 512 bits of integers are 32 bf16.
    unsafe {
        let mut totals = [[_mm512_setzero_ps(); 2]; R];
        for pair in 0..pairs {
            let from = panel.add(pair * PANEL);
            let columns: [__m512bh; 2] = [
                transmute::<__m512i, __m512bh>(_mm512_loadu_si512(from.cast())),
                transmute::<__m512i, __m512bh>(_mm512_loadu_si512(from.add(16).cast())),
            ];
            for (r, totals) in totals.iter_mut().enumerate() {
                let row = _mm512_set1_epi32(*x.add(r * pairs + pair));
                let row = transmute::<__m512i, __m512bh>(row);
                totals[0] = _mm512_dpbf16_ps(totals[0], row, columns[0]);
                totals[1] = _mm512_dpbf16_ps(totals[1], row, columns[1]);
            }
        }
        for (r, totals) in totals.iter().enumerate() {
            _mm512_storeu_ps(sums.row(r), totals[0]);
            _mm512_storeu_ps(sums.row(r).add(16), totals[1]);
        }
    }
}

/// # Safety
/// x and the sums have the rows, and the CPU has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn multiply(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x, the panel and the sums have the rows and the pairs, as the caller vouches; AVX512-BF16 is enabled.
    unsafe {
        in_row_tiles!(rows, most 12, (row, HEIGHT) => {
            let x = operands.x.add(row * operands.pairs);
            tile::<HEIGHT>(Operands { x, ..operands }, sums.at(row, 0));
        });
    }
}
