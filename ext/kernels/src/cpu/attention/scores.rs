//! The products inside attention, on blocks of queries against keys and values in panels.

use std::ops::Range;

use super::few_queries::StridedRows;
use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::product::gemm::{multiply_cached_panel, Operands, PANEL};
use crate::cpu::product::Sums;
use crate::cpu::simd::Simd;

/// Queries that are worked on together: whole tiles of every instruction set.
pub const BLOCK: usize = 48;

/// Rows are padded to whole panels.
pub fn packed_width(width: usize) -> usize {
    width.next_multiple_of(PANEL)
}

/// A panel [width, 32] of at most 32 keys; columns beyond the last key are unused.
pub fn pack_keys(isa: Isa, (rows, count): (StridedRows<'_>, usize), panel: &mut [f32]) {
    assert!(rows.holds(&(0..count)) && (1..=PANEL).contains(&count));
    assert!(panel.len() == rows.width * PANEL);
    // SAFETY: the assertions checked that `rows` holds `count` rows, from 1 to a panel's, and that `panel` has
    // their width times a panel's columns; `isa` was detected.
    unsafe { pack_keys_on(isa, rows, count, panel.as_mut_ptr()) }
}

#[inline(always)]
unsafe fn pack_keys_with<S: Simd>(rows: StridedRows<'_>, count: usize, panel: *mut f32) {
    // SAFETY: there are `count` ≥ 1 rows, of which no later one is read, and room for a panel as deep as they are
    // wide, as the caller vouches, who has the instruction set; vectors divide a panel.
    unsafe {
        let (last, mut column) = (count - 1, 0);
        while column < PANEL {
            let from = rows.values.as_ptr().add(last.min(column) * rows.stride);
            let mut at = 0;
            while at + 4 <= rows.width {
                let last = last.saturating_sub(column);
                let values = S::load_columns(from.add(at), rows.stride, last);
                for (next, values) in values.into_iter().enumerate() {
                    S::store(panel.add((at + next) * PANEL + column), values);
                }
                at += 4;
            }
            for at in at..rows.width {
                for lane in 0..S::LANES {
                    let row = rows
                        .values
                        .as_ptr()
                        .add(last.min(column + lane) * rows.stride);
                    *panel.add(at * PANEL + column + lane) = *row.add(at);
                }
            }
            column += S::LANES;
        }
    }
}

dispatched! {
    /// # Safety
    /// There are the rows, at least one, and room for a panel.
    unsafe fn pack_keys_on(rows: StridedRows<'_>, count: usize, panel: *mut f32) = pack_keys_with
}

/// Values of the keys from the first on into panels of 32 columns, [keys, 32] each, the last filled up by
/// zeros.
pub fn pack_values(
    isa: Isa,
    (rows, count): (StridedRows<'_>, usize),
    (first, keys): (usize, usize),
    panels: &mut [f32],
) {
    assert!(rows.holds(&(0..count)) && first + count <= keys);
    assert!(panels.len() == packed_width(rows.width) * keys);
    // SAFETY: the assertions checked that `rows` holds `count` rows and that `panels` has room for the packed
    // width of `keys` rows; `isa` was detected.
    unsafe { pack_values_on(isa, rows, count, (first, keys), panels.as_mut_ptr()) }
}

#[inline(always)]
unsafe fn pack_values_with<S: Simd>(
    rows: StridedRows<'_>,
    count: usize,
    (first, keys): (usize, usize),
    panels: *mut f32,
) {
    // SAFETY: there are `count` rows and room for `keys` rows in every panel, of which these are some from `first`
    // on, as the caller vouches, who has the instruction set; what lies beyond a row's width is not read.
    unsafe {
        for row in 0..count {
            let from = rows.values.as_ptr().add(row * rows.stride);
            let mut column = 0;
            while column < packed_width(rows.width) {
                let values = match rows.width.saturating_sub(column) {
                    left if left >= S::LANES => S::load(from.add(column)),
                    0 => S::splat(0.0),
                    left => S::load_first(from.add(column), left),
                };
                let at = (column / PANEL * keys + first + row) * PANEL + column % PANEL;
                S::store(panels.add(at), values);
                column += S::LANES;
            }
        }
    }
}

dispatched! {
    /// # Safety
    /// There are the rows, and room for the panels of all keys.
    unsafe fn pack_values_on(
        rows: StridedRows<'_>, count: usize, place: (usize, usize), panels: *mut f32,
    ) = pack_values_with
}

/// Scores of `count` queries against keys in panels, [width, 32] each; `out` has rows of `stride`, and
/// whole panels of it are written.
pub fn block_scores(
    isa: Isa,
    (queries, count): (StridedRows<'_>, usize),
    keys: &[f32],
    seen: &Range<usize>,
    (out, stride): (&mut [f32], usize),
) {
    let width = queries.width;
    assert!(queries.holds(&(0..count)) && out.len() >= count * stride);
    assert!(seen.end <= stride && stride.is_multiple_of(PANEL) && keys.len() >= stride * width);
    for first in (seen.start / PANEL * PANEL..seen.end).step_by(PANEL) {
        let operands = Operands {
            x: queries.values.as_ptr(),
            x_stride: queries.stride,
            panel: keys[first * width..].as_ptr(),
            inputs: width,
        };
        let start = out[first..].as_mut_ptr();
        // SAFETY: the lengths were just checked; a panel ends within the padded stride.
        unsafe { multiply_cached_panel(isa, operands, count, Sums { start, stride }) };
    }
}

/// Sums of the values of `seen` keys by probabilities [count, stride]: values in panels, [keys, 32] each,
/// of whole panels in all.
///
/// # Safety
/// There is room for so many rows of sums of `value_width`.
pub unsafe fn block_weigh(
    isa: Isa,
    (probabilities, count, stride): (&[f32], usize, usize),
    (values, keys, value_width): (&[f32], usize, usize),
    seen: &Range<usize>,
    out: Sums,
) {
    assert!(probabilities.len() >= count * stride && seen.end <= stride && seen.end <= keys);
    assert!(values.len() >= keys * value_width);
    assert!(value_width.is_multiple_of(PANEL) && count > 0);
    for column in (0..value_width).step_by(PANEL) {
        let operands = Operands {
            x: probabilities[seen.start..].as_ptr(),
            x_stride: stride,
            panel: values[column * keys + seen.start * PANEL..].as_ptr(),
            inputs: seen.len(),
        };
        // SAFETY: the lengths were just checked; the caller vouches for the sums.
        unsafe { multiply_cached_panel(isa, operands, count, out.at(0, column)) };
    }
}
