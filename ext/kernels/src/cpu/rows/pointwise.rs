//! Functions with parameters, of every element or of every pair of elements.

use super::activation::{combined, BLOCK};
use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::math;
use crate::cpu::simd::Simd;
use crate::cpu::{Element, RowView};
use crate::{ClampedGlu, Pointwise, Xielu};

/// A NaN stays.
#[inline(always)]
unsafe fn clamp<S: Simd>(x: S::V, least: f32, most: f32) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe { S::max(S::splat(least), S::min(S::splat(most), x)) }
}

#[inline(always)]
unsafe fn xielu<S: Simd>(x: S::V, xielu: Xielu) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let linear = S::mul(S::splat(xielu.linear), x);
        let above = S::fma(S::mul(S::splat(xielu.positive), x), x, linear);
        let exponent = S::min(S::splat(xielu.most), x);
        let curve = math::exp_less_line::<S>(exponent, x);
        let below = S::fma(curve, S::splat(xielu.negative), linear);
        S::select_less(S::splat(0.0), x, above, below)
    }
}

#[inline(always)]
unsafe fn pointwise_row_with<S: Simd>(
    x: *const f32,
    out: *mut f32,
    width: usize,
    function: Pointwise,
) {
    // SAFETY: `x` and `out` have `width` numbers, as the caller vouches, and all lanes lie within; the caller has the
    // instruction set.
    unsafe {
        match function {
            Pointwise::Clamp { least, most } => {
                for_lanes!(S, width, lanes => {
                    lanes.store::<S>(out, clamp::<S>(lanes.load::<S>(x), least, most));
                });
            }
            Pointwise::Xielu(parameters) => {
                for_lanes!(S, width, lanes => {
                    lanes.store::<S>(out, xielu::<S>(lanes.load::<S>(x), parameters));
                });
            }
        }
    }
}

dispatched! {
    unsafe fn pointwise_row(
        x: *const f32, out: *mut f32, width: usize, function: Pointwise,
    ) = pointwise_row_with
}

#[inline(always)]
unsafe fn clamped_glu_row_with<S: Simd>(
    gate: *const f32,
    up: *const f32,
    out: *mut f32,
    width: usize,
    glu: ClampedGlu,
) {
    // SAFETY: all three have `width` numbers, as the caller vouches, and all lanes lie within; the caller has the
    // instruction set.
    unsafe {
        for_lanes!(S, width, lanes => {
            let gate = S::min(S::splat(glu.limit), lanes.load::<S>(gate));
            let up = clamp::<S>(lanes.load::<S>(up), -glu.limit, glu.limit);
            let open = math::logistic::<S>(S::mul(S::splat(glu.alpha), gate));
            let up = S::add(up, S::splat(1.0));
            lanes.store::<S>(out, S::mul(up, S::mul(gate, open)));
        });
    }
}

dispatched! {
    unsafe fn clamped_glu_row(
        gate: *const f32, up: *const f32, out: *mut f32, width: usize, glu: ClampedGlu,
    ) = clamped_glu_row_with
}

pub fn pointwise<T: Element>(isa: Isa, x: &mut RowView<'_, T>, function: Pointwise) -> Vec<T> {
    if let Some(rows) = x.rows.rewidth(BLOCK) {
        x.rows = rows;
    }
    let width = x.rows.width;
    // SAFETY: rows have the width, and the instruction set is the machine's.
    combined(isa, x, None, |x, _, to| unsafe {
        pointwise_row(isa, x, to, width, function);
    })
}

pub fn clamped_glu<T: Element>(
    isa: Isa,
    gate: &RowView<'_, T>,
    up: &RowView<'_, T>,
    glu: ClampedGlu,
) -> Vec<T> {
    let width = gate.rows.width;
    // SAFETY: rows of both have the width, and the instruction set is the machine's.
    combined(isa, gate, Some(up), |gate, up, to| unsafe {
        clamped_glu_row(isa, gate, up, to, width, glu);
    })
}
