//! Products of heads with a matrix for each head.

use std::ops::Range;

use crate::cpu::isa::Isa;
use crate::cpu::product::gemm::{multiply_cached_panel, Operands, PANEL};
use crate::cpu::product::Sums;
use crate::cpu::{build, for_each_range, with_scratch, Output};

/// Rows that are worked on together.
const BLOCK: usize = 48;

/// A matrix [width, columns] for each head, as panels of 32 columns, [width, 32] each, the last padded by
/// zeros.
#[derive(Clone)]
pub struct HeadPanels {
    panels: Vec<f32>,
    heads: usize,
    width: usize,
    columns: usize,
}

impl std::fmt::Debug for HeadPanels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "HeadPanels[{}, {}, {}]",
            self.heads, self.width, self.columns
        )
    }
}

impl HeadPanels {
    /// `matrices` are [heads, width, columns].
    pub fn new(matrices: &[f32], (heads, width, columns): (usize, usize, usize)) -> Self {
        assert_eq!(matrices.len(), heads * width * columns);
        let length = width * PANEL;
        let count = columns.div_ceil(PANEL);
        let mut panels = vec![0.0; heads * count * length];
        for (row, values) in matrices.chunks_exact(columns.max(1)).enumerate() {
            let (head, at) = (row / width, row % width);
            for (panel, part) in values.chunks(PANEL).enumerate() {
                let start = (head * count + panel) * length + at * PANEL;
                panels[start..][..part.len()].copy_from_slice(part);
            }
        }
        Self {
            panels,
            heads,
            width,
            columns,
        }
    }

    pub fn bytes(&self) -> usize {
        size_of_val(self.panels.as_slice())
    }

    /// Some columns of the product of each head of `x`, [tokens, heads, width], with its matrix:
    /// [tokens, heads, columns]. The products of a sum are added one after the other, however many rows
    /// there are.
    pub fn multiply(&self, isa: Isa, x: &[f32], columns: Range<usize>) -> Vec<f32> {
        let (heads, width) = (self.heads, self.width);
        let row = (heads * width).max(1);
        assert!(x.len().is_multiple_of(row) && columns.end <= self.columns);
        let tokens = x.len() / row;
        let blocks = tokens.div_ceil(BLOCK);
        let cost = BLOCK.min(tokens) * width * columns.len() / PANEL;
        // SAFETY: the blocks cover every token, and the heads every head.
        unsafe {
            build(tokens * heads * columns.len(), |out: Output<f32>| {
                for_each_range(blocks * heads, cost, |range| {
                    with_scratch(BLOCK * PANEL, |sums| {
                        for unit in range {
                            let (first, head) = (unit / heads * BLOCK, unit % heads);
                            let rows = first..tokens.min(first + BLOCK);
                            self.multiply_head(isa, (x, rows), head, &columns, sums, out);
                        }
                    })
                })
            })
        }
    }

    /// # Safety
    /// `out` has room for a row of every token and head.
    unsafe fn multiply_head(
        &self,
        isa: Isa,
        (x, rows): (&[f32], Range<usize>),
        head: usize,
        columns: &Range<usize>,
        sums: &mut [f32],
        out: Output<f32>,
    ) {
        let (heads, width, length) = (self.heads, self.width, self.width * PANEL);
        let panels = self.columns.div_ceil(PANEL);
        let start = (rows.start * heads + head) * width;
        for panel in columns.start / PANEL..columns.end.div_ceil(PANEL) {
            let operands = Operands {
                x: x[start..].as_ptr(),
                x_stride: heads * width,
                panel: self.panels[(head * panels + panel) * length..][..length].as_ptr(),
                inputs: width,
            };
            let to = Sums {
                start: sums.as_mut_ptr(),
                stride: PANEL,
            };
            // SAFETY: x has the rows, the panel is as deep as they are wide, and the sums have room.
            unsafe { multiply_cached_panel(isa, operands, rows.len(), to) };
            let first = columns.start.max(panel * PANEL);
            let last = columns.end.min((panel + 1) * PANEL);
            for (row, sums) in rows.clone().zip(sums.chunks_exact(PANEL)) {
                let kept = &sums[first - panel * PANEL..last - panel * PANEL];
                let at = (row * heads + head) * columns.len() + first - columns.start;
                // SAFETY: the caller vouches for `out`, and the columns lie within the row.
                unsafe { std::ptr::copy_nonoverlapping(kept.as_ptr(), out.at(at), kept.len()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::test_numbers::numbers;

    #[test]
    fn heads_multiply_like_the_definition_and_rows_alone_as_together() {
        // Miri would take an hour for more.
        let tokens = if cfg!(miri) { 5 } else { 101 };
        let (heads, width, all) = (3, 7, 70);
        let (x, matrices) = (
            numbers(tokens * heads * width, 1),
            numbers(heads * width * all, 2),
        );
        let panels = HeadPanels::new(&matrices, (heads, width, all));
        for isa in Isa::of_numbers() {
            for columns in [0..all, 5..40, 33..34, 64..70] {
                let count = columns.len();
                let found = panels.multiply(isa, &x, columns.clone());
                for (at, &found) in found.iter().enumerate() {
                    let (row, column) = (at / count, columns.start + at % count);
                    let products = (0..width).map(|i| {
                        let weight = matrices[(row % heads * width + i) * all + column];
                        f64::from(x[row * width + i]) * f64::from(weight)
                    });
                    let want: f64 = products.sum();
                    assert!((f64::from(found) - want).abs() < 1e-5, "{}", isa.name());
                }
                let rows = x.chunks(heads * width);
                let alone = rows.flat_map(|row| panels.multiply(isa, row, columns.clone()));
                assert!(alone.eq(found), "{}", isa.name());
            }
        }
    }
}
