//! Mean over sequences, and rows of length 1.

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::rows::norm::{add_row, squares};
use crate::cpu::rows::softmax::multiply;
use crate::cpu::simd::Simd;
use crate::cpu::{build, for_each_range, read, with_scratch, write, Element, RowView};

#[inline(always)]
unsafe fn divide_row_with<S: Simd>(x: *const f32, out: *mut f32, width: usize, least: f32) {
    // SAFETY: `x` and `out` have `width` numbers, as the caller vouches, and all lanes lie within; the caller has
    // the instruction set.
    unsafe {
        let norm = squares::<S>(x, width).sqrt();
        // Not max(), which would drop a NaN.
        let divisor = S::splat(if norm < least { least } else { norm });
        for_lanes!(S, width, lanes => {
            lanes.store::<S>(out, S::div(lanes.load::<S>(x), divisor));
        });
    }
}

dispatched! {
    unsafe fn divide_row(x: *const f32, out: *mut f32, width: usize, least: f32) = divide_row_with
}

pub fn l2_normalize<T: Element>(isa: Isa, x: &RowView<'_, T>, least: f32) -> Vec<T> {
    let (rows, width) = (x.rows.count, x.rows.width);
    // SAFETY: every row of the output is written once.
    unsafe {
        build(rows * width, |out| {
            for_each_range(rows, width, |range| {
                with_scratch(2 * width, |scratch| {
                    let (from, to) = scratch.split_at_mut(width);
                    for row in range {
                        let values = read(isa, x.row(row), from);
                        write(isa, out.at(row * width), to, |to| {
                            divide_row(isa, values.as_ptr(), to, width, least);
                        });
                    }
                })
            })
        })
    }
}

/// The boundaries were checked to rise within the rows.
pub fn mean_pool<T: Element>(isa: Isa, x: &RowView<'_, T>, boundaries: &[u32]) -> Vec<T> {
    let width = x.rows.width;
    let sequences = boundaries.len().saturating_sub(1);
    let cost = width * (x.rows.count / sequences.max(1)).max(1);
    // SAFETY: every row of the output is written once.
    unsafe {
        build(sequences * width, |out| {
            for_each_range(sequences, cost, |range| {
                with_scratch(2 * width, |scratch| {
                    let (from, to) = scratch.split_at_mut(width);
                    for sequence in range {
                        let tokens =
                            boundaries[sequence] as usize..boundaries[sequence + 1] as usize;
                        let factor = 1.0 / tokens.len().max(1) as f32;
                        write(isa, out.at(sequence * width), to, |to| {
                            std::ptr::write_bytes(to, 0, width);
                            for token in tokens {
                                let values = read(isa, x.row(token), from);
                                add_row(isa, to, values.as_ptr(), to, width);
                            }
                            multiply(isa, to, width, factor);
                        });
                    }
                })
            })
        })
    }
}
