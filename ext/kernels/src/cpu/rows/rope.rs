//! Rotary positions.

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::simd::Simd;
use crate::cpu::{build, for_each_range, read, with_scratch, write, Element, RowView};
use crate::RopeKind;

pub struct RopeTables<'a> {
    /// [positions, pairs] each.
    pub cosines: RowView<'a, f32>,
    pub sines: RowView<'a, f32>,
    pub positions: &'a [u32],
    pub kind: RopeKind,
}

/// Turns `pairs` pairs, (i, i + pairs) each.
#[inline(always)]
unsafe fn turn_halves_with<S: Simd>(
    x: *const f32,
    cosines: *const f32,
    sines: *const f32,
    out: *mut f32,
    pairs: usize,
) {
    // SAFETY: `x` and `out` have 2 · `pairs` numbers and the tables `pairs`, as the caller vouches; all lanes lie
    // within `pairs`. The caller has the instruction set.
    unsafe {
        let (upper, out_upper) = (x.add(pairs), out.add(pairs));
        for_lanes!(S, pairs, lanes => {
            let (a, b) = (lanes.load::<S>(x), lanes.load::<S>(upper));
            let (cosine, sine) = (lanes.load::<S>(cosines), lanes.load::<S>(sines));
            lanes.store::<S>(out, S::sub(S::mul(a, cosine), S::mul(b, sine)));
            lanes.store::<S>(out_upper, S::add(S::mul(b, cosine), S::mul(a, sine)));
        });
    }
}

/// Turns `pairs` pairs, (2i, 2i + 1) each. The compiler vectorizes it for the instruction set.
#[inline(always)]
unsafe fn turn_interleaved_with<S: Simd>(
    x: *const f32,
    cosines: *const f32,
    sines: *const f32,
    out: *mut f32,
    pairs: usize,
) {
    for i in 0..pairs {
        // SAFETY: `x` and `out` have 2 · `pairs` numbers and the tables `pairs`, as the caller vouches, and `i` is
        // below `pairs`.
        unsafe {
            let (a, b) = (*x.add(2 * i), *x.add(2 * i + 1));
            let (cosine, sine) = (*cosines.add(i), *sines.add(i));
            *out.add(2 * i) = a * cosine - b * sine;
            *out.add(2 * i + 1) = b * cosine + a * sine;
        }
    }
}

dispatched! {
    unsafe fn turn_halves(
        x: *const f32, cosines: *const f32, sines: *const f32, out: *mut f32, pairs: usize,
    ) = turn_halves_with
}
dispatched! {
    unsafe fn turn_interleaved(
        x: *const f32, cosines: *const f32, sines: *const f32, out: *mut f32, pairs: usize,
    ) = turn_interleaved_with
}

/// `x` has one row per token and head; the positions were checked to lie within the tables.
pub fn rope<T: Element>(
    isa: Isa,
    x: &RowView<'_, T>,
    heads: usize,
    tables: &RopeTables<'_>,
) -> Vec<T> {
    let (rows, width) = (x.rows.count, x.rows.width);
    let pairs = tables.cosines.rows.width;
    let rotate = match tables.kind {
        RopeKind::Half => turn_halves,
        RopeKind::Interleaved => turn_interleaved,
    };
    // SAFETY: every row of the output is written once; 2 · pairs ≤ width was checked.
    unsafe {
        build(rows * width, |out| {
            for_each_range(rows, width, |range| {
                with_scratch(2 * width, |scratch| {
                    let (from, to) = scratch.split_at_mut(width);
                    for row in range {
                        let position = tables.positions[row / heads] as usize;
                        let cosines = tables.cosines.row(position).as_ptr();
                        let sines = tables.sines.row(position).as_ptr();
                        let values = read(isa, x.row(row), from);
                        write(isa, out.at(row * width), to, |to| {
                            rotate(isa, values.as_ptr(), cosines, sines, to, pairs);
                            let kept = &values[2 * pairs..];
                            let target = to.add(2 * pairs);
                            std::ptr::copy_nonoverlapping(kept.as_ptr(), target, kept.len());
                        });
                    }
                })
            })
        })
    }
}
