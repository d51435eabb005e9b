//! Rows of f32 against halves that are widened as they are read.

use std::cell::Cell;

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::product::driver::Sums;
use crate::cpu::product::gemm::{self, multiply_cached_panel, multiply_panel};
use crate::cpu::product::panels::PANEL;
use crate::cpu::product::row_tiles::in_row_tiles;
use crate::cpu::simd::Simd;

/// Bytes of a cache line.
const LINE: usize = 64;

/// While so many rows are multiplied, the next panel is asked for.
const FIRST_ROWS: usize = 12;

/// Rows that are multiplied faster than memory brings a panel, which is then asked for ahead.
const FEW_ROWS: usize = 4;

/// How many pairs ahead: 4 KiB.
const AHEAD: usize = 1024;

/// Rows of x and one panel, as deep as one another.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// [rows, depth]
    pub x: *const f32,
    /// [depth / 2, 32] pairs of bf16, or [depth, 32] numbers of f16
    pub panel: *const u32,
    pub depth: usize,
    /// Whether the pairs are bf16 rather than f16.
    pub is_bf16: bool,
}

/// Panels of f32, for rows that are many enough to be worth it. Sums are added in the same order as
/// those of a panel that is widened as it is read.
pub struct WidePanels(Vec<WidePanel>);

struct WidePanel {
    /// What was widened; null where nothing was.
    from: *const u32,
    /// As many as the panel has, and more.
    numbers: Vec<f32>,
}

thread_local! {
    static KEPT: Cell<Vec<WidePanel>> = const { Cell::new(Vec::new()) };
}

impl Default for WidePanels {
    fn default() -> Self {
        let mut panels = KEPT.take();
        panels
            .iter_mut()
            .for_each(|panel| panel.from = std::ptr::null());
        Self(panels)
    }
}

impl Drop for WidePanels {
    fn drop(&mut self) {
        KEPT.set(std::mem::take(&mut self.0));
    }
}

impl WidePanels {
    /// Whether a panel is there, at its place.
    pub(super) fn holds(&self, panel: *const u32, place: usize) -> bool {
        self.0.get(place).is_some_and(|held| held.from == panel)
    }

    /// The widened panel stays at its place until another takes it.
    ///
    /// # Safety
    /// As `multiply_widened`; what is held still exists.
    pub(super) unsafe fn multiply(
        &mut self,
        isa: Isa,
        operands: Operands,
        place: usize,
        rows: usize,
        sums: Sums,
    ) {
        let Operands {
            x, panel, depth, ..
        } = operands;
        let is_held = self.holds(panel, place);
        while self.0.len() <= place {
            self.0.push(WidePanel {
                from: std::ptr::null(),
                numbers: Vec::new(),
            });
        }
        let wide = &mut self.0[place];
        if wide.numbers.len() < depth * PANEL {
            wide.numbers.resize(depth * PANEL, 0.0);
        }
        let to = wide.numbers.as_mut_ptr();
        let of_rows = |first: usize| gemm::Operands {
            x: x.wrapping_add(first * depth),
            x_stride: depth,
            panel: to,
            inputs: depth,
        };
        if is_held {
            // SAFETY: the caller vouches for the operands.
            return unsafe { multiply_cached_panel(isa, of_rows(0), rows, sums) };
        }
        wide.from = panel;
        let first = rows.min(FIRST_ROWS);
        // The panel behind this one, whose inputs take a cache line each, is widened next.
        let line = LINE / size_of::<f32>();
        let next = (panel.cast::<f32>().wrapping_add(depth * line), line);
        // SAFETY: there is room for the panel; the caller vouches for the rows, the panels and the sums, and an `Isa`
        // comes from detection.
        unsafe {
            widen(isa, (panel, to), depth, operands.is_bf16);
            multiply_panel(isa, of_rows(0), next, first, sums);
            multiply_cached_panel(isa, of_rows(first), rows - first, sums.at(first, 0));
        }
    }
}

/// Two vectors of columns, of which the first begins at `column`, at two neighbouring inputs: those of the first input,
/// then those of the second.
///
/// # Safety
/// The panel has the pair, and two vectors from the column on; the CPU has the instruction set.
#[inline(always)]
unsafe fn columns<S: Simd, const BF16: bool>(
    panel: *const u32,
    pair: usize,
    column: usize,
) -> [[S::V; 2]; 2] {
    let pair = panel.wrapping_add(pair * PANEL);
    // SAFETY: the caller vouches for the panel; a pair of inputs takes 32 words: of f16, 32 numbers of each input.
    unsafe {
        if BF16 {
            let [a, c] = S::bf16_pairs(pair.add(column));
            let [b, d] = S::bf16_pairs(pair.add(column + S::LANES));
            [[a, b], [c, d]]
        } else {
            let first = pair.cast::<u16>().add(column);
            let second = first.add(PANEL);
            [
                [S::load_f16(first), S::load_f16(first.add(S::LANES))],
                [S::load_f16(second), S::load_f16(second.add(S::LANES))],
            ]
        }
    }
}

#[inline(always)]
unsafe fn widen_type<S: Simd, const BF16: bool>((panel, to): (*const u32, *mut f32), depth: usize) {
    // SAFETY: the panel has the depth and `to` room for `depth` rows of 32 numbers, as the caller vouches, who has the
    // instruction set; two vectors divide a panel.
    unsafe {
        for pair in 0..depth / 2 {
            let mut column = 0;
            while column < PANEL {
                let inputs = columns::<S, BF16>(panel, pair, column);
                let mut input = 0;
                while input < 2 {
                    let to = to.add((2 * pair + input) * PANEL + column);
                    S::store(to, inputs[input][0]);
                    S::store(to.add(S::LANES), inputs[input][1]);
                    input += 1;
                }
                column += 2 * S::LANES;
            }
        }
    }
}

#[inline(always)]
unsafe fn widen_with<S: Simd>(panels: (*const u32, *mut f32), depth: usize, is_bf16: bool) {
    // SAFETY: the caller vouches for both panels and the instruction set.
    unsafe {
        if is_bf16 {
            widen_type::<S, true>(panels, depth)
        } else {
            widen_type::<S, false>(panels, depth)
        }
    }
}

dispatched! {
    /// A panel of halves to [depth, 32] numbers.
    ///
    /// # Safety
    /// Both have the depth.
    unsafe fn widen(panels: (*const u32, *mut f32), depth: usize, is_bf16: bool) = widen_with
}

/// R rows of x against two vectors of columns.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const BF16: bool>(
    operands: Operands,
    column: usize,
    sums: Sums,
) {
    let Operands {
        x, panel, depth, ..
    } = operands;
    // SAFETY: x has R rows of `depth` numbers, the panel is as deep and has two vectors from the column on, and the
    // sums have room for R rows of them, as the caller vouches, who has the instruction set.
    unsafe {
        let mut totals = [[S::splat(0.0); 2]; R];
        for pair in 0..depth / 2 {
            if R <= FEW_ROWS {
                let later = panel.wrapping_add(pair * PANEL + column + AHEAD);
                S::prefetch(later.cast());
                S::prefetch(later.wrapping_add(PANEL / 2).cast());
            }
            let [first, second] = columns::<S, BF16>(panel, pair, column);
            let mut r = 0;
            while r < R {
                let row = x.add(r * depth + 2 * pair);
                let (one, other) = (S::splat(*row), S::splat(*row.add(1)));
                totals[r][0] = S::fma(one, first[0], totals[r][0]);
                totals[r][1] = S::fma(one, first[1], totals[r][1]);
                totals[r][0] = S::fma(other, second[0], totals[r][0]);
                totals[r][1] = S::fma(other, second[1], totals[r][1]);
                r += 1;
            }
        }
        let mut r = 0;
        while r < R {
            S::store(sums.row(r).add(column), totals[r][0]);
            S::store(sums.row(r).add(column + S::LANES), totals[r][1]);
            r += 1;
        }
    }
}

#[inline(always)]
unsafe fn multiply_type<S: Simd, const BF16: bool>(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x and the sums have the rows and the panel the depth, as the caller vouches, who has the instruction
    // set; tiles lie within the rows, and their columns within the panel.
    unsafe {
        let mut column = 0;
        while column < PANEL {
            in_row_tiles!(rows, most if S::REGISTERS >= 32 { 12 } else { 4 }, (row, HEIGHT) => {
                let operands = Operands {
                    x: operands.x.add(row * operands.depth),
                    ..operands
                };
                tile::<S, HEIGHT, BF16>(operands, column, sums.at(row, 0));
            });
            column += 2 * S::LANES;
        }
    }
}

#[inline(always)]
unsafe fn multiply_widened_with<S: Simd>(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x and the sums have the rows and the panel the depth, in pairs of the type that `is_bf16` says, as
    // the caller vouches, who has the instruction set.
    unsafe {
        if operands.is_bf16 {
            multiply_type::<S, true>(operands, rows, sums)
        } else {
            multiply_type::<S, false>(operands, rows, sums)
        }
    }
}

dispatched! {
    /// The sums of `rows` rows of x with a panel.
    ///
    /// # Safety
    /// x and the sums have the rows.
    pub(super) unsafe fn multiply_widened(
        operands: Operands, rows: usize, sums: Sums,
    ) = multiply_widened_with
}
