//! The products inside attention, on blocks of queries against keys and values in panels.

use std::ops::Range;

use crate::kernels::cpu::isa::Isa;
use crate::kernels::cpu::product::gemm::{multiply_cached_panel, Operands, PANEL};
use crate::kernels::cpu::product::Sums;

/// Queries that are worked on together: whole tiles of every instruction set.
pub(crate) const BLOCK: usize = 48;

/// Rows are padded to whole panels.
pub(crate) fn packed_width(width: usize) -> usize {
    width.next_multiple_of(PANEL)
}

/// Scores of `count` queries [count, width] against keys in panels, [width, 32] each; `out` has rows
/// of `stride`, and whole panels of it are written.
pub(crate) fn block_scores(
    isa: Isa,
    (queries, count): (&[f32], usize),
    keys: &[f32],
    width: usize,
    seen: &Range<usize>,
    (out, stride): (&mut [f32], usize),
) {
    assert!(queries.len() >= count * width && out.len() >= count * stride);
    assert!(seen.end <= stride && stride.is_multiple_of(PANEL) && keys.len() >= stride * width);
    for first in (seen.start / PANEL * PANEL..seen.end).step_by(PANEL) {
        let operands = Operands {
            x: queries.as_ptr(),
            x_stride: width,
            panel: keys[first * width..].as_ptr(),
            inputs: width,
        };
        let start = out[first..].as_mut_ptr();
        // SAFETY: the lengths were just checked; a panel ends within the padded stride.
        unsafe { multiply_cached_panel(isa, operands, count, Sums { start, stride }) };
    }
}

/// Sums of the values of `seen` keys by probabilities [count, stride]: values in panels, [keys, 32] each, and
/// `out` has rows of `value_width`, which is whole panels.
pub(crate) fn block_weigh(
    isa: Isa,
    (probabilities, count, stride): (&[f32], usize, usize),
    (values, keys): (&[f32], usize),
    value_width: usize,
    seen: &Range<usize>,
    out: &mut [f32],
) {
    assert!(probabilities.len() >= count * stride && seen.end <= stride && seen.end <= keys);
    assert!(values.len() >= keys * value_width && out.len() >= count * value_width);
    assert!(value_width.is_multiple_of(PANEL) && count > 0);
    for column in (0..value_width).step_by(PANEL) {
        let operands = Operands {
            x: probabilities[seen.start..].as_ptr(),
            x_stride: stride,
            panel: values[column * keys + seen.start * PANEL..].as_ptr(),
            inputs: seen.len(),
        };
        let sums = Sums {
            start: out[column..].as_mut_ptr(),
            stride: value_width,
        };
        // SAFETY: the lengths were just checked.
        unsafe { multiply_cached_panel(isa, operands, count, sums) };
    }
}
