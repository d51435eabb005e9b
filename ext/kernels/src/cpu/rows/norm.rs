//! LayerNorm and RMSNorm, alone or after an addition.

use std::ops::Range;

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::{fold_row, write_row, Lanes, RowFold, RowValue};
use crate::cpu::simd::Simd;
use crate::cpu::{build, for_each_range, with_scratch, Element, Output, RowView};
use crate::rows::Rows;

/// Weight and bias in f32, the weight's offset included.
pub struct NormRows {
    pub centered: bool,
    pub epsilon: f32,
    pub weight: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

struct Squares;

impl<S: Simd> RowFold<S> for Squares {
    type State = S::V;

    #[inline(always)]
    unsafe fn start() -> S::V {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { S::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn fold(sum: S::V, v: S::V) -> S::V {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { S::fma(v, v, sum) }
    }
    #[inline(always)]
    unsafe fn join(a: S::V, b: S::V) -> S::V {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { S::add(a, b) }
    }
}

struct Both;

impl<S: Simd> RowFold<S> for Both {
    type State = (S::V, S::V);

    #[inline(always)]
    unsafe fn start() -> Self::State {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { (S::splat(0.0), S::splat(0.0)) }
    }
    #[inline(always)]
    unsafe fn fold((sum, squares): Self::State, v: S::V) -> Self::State {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { (S::add(sum, v), S::fma(v, v, squares)) }
    }
    #[inline(always)]
    unsafe fn join(a: Self::State, b: Self::State) -> Self::State {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { (S::add(a.0, b.0), S::add(a.1, b.1)) }
    }
}

/// Σ x² over a row.
#[inline(always)]
pub(super) unsafe fn squares<S: Simd>(row: impl RowValue<S>, width: usize) -> f32 {
    // SAFETY: the row has `width` numbers, as the caller vouches, who has the instruction set.
    unsafe { S::sum(fold_row::<S, Squares>(row, width, 0.0)) }
}

/// The mean of x − shift over a row, and the variance.
#[inline(always)]
unsafe fn mean_and_variance<S: Simd>(
    row: impl RowValue<S>,
    width: usize,
    shift: f32,
) -> (f32, f32) {
    // SAFETY: the row has `width` numbers, as the caller vouches, who has the instruction set.
    unsafe {
        let (sum, squares) = fold_row::<S, Both>(row, width, shift);
        let mean = S::sum(sum) / width as f32;
        let variance = S::sum(squares) / width as f32 - mean * mean;
        // Not max(), which would drop a NaN.
        (mean, if variance < 0.0 { 0.0 } else { variance })
    }
}

/// A row as it is first read. The next one is asked for on the way: passes over it would else wait for
/// memory.
#[derive(Clone, Copy)]
struct Read {
    x: *const f32,
    next: *const f32,
}

impl<S: Simd> RowValue<S> for Read {
    #[inline(always)]
    unsafe fn at(self, lanes: Lanes) -> S::V {
        // SAFETY: the lanes lie within the row, as the caller vouches, who has the instruction set; a prefetch may
        // be given any address.
        unsafe {
            S::prefetch(self.next.wrapping_add(lanes.at));
            lanes.load::<S>(self.x)
        }
    }
}

/// The sum of two rows, written over the first of them as it is made.
#[derive(Clone, Copy)]
struct Accumulated {
    x: *mut f32,
    residual: *const f32,
    next: [*const f32; 2],
}

impl<S: Simd> RowValue<S> for Accumulated {
    #[inline(always)]
    unsafe fn at(self, lanes: Lanes) -> S::V {
        // SAFETY: the lanes lie within both rows, of which the first may be written and nobody else has, as the
        // caller vouches; the caller has the instruction set, and a prefetch may be given any address.
        unsafe {
            S::prefetch(self.next[0].wrapping_add(lanes.at));
            S::prefetch(self.next[1].wrapping_add(lanes.at));
            let sum = S::add(lanes.load::<S>(self.x), lanes.load::<S>(self.residual));
            lanes.store::<S>(self.x, sum);
            sum
        }
    }
}

/// What rows are normalized by, and where to.
#[derive(Clone, Copy)]
struct Target {
    centered: bool,
    epsilon: f32,
    weight: *const f32,
    /// May be null.
    bias: *const f32,
    out: *mut f32,
    width: usize,
}

impl Target {
    #[inline(always)]
    unsafe fn row(self, row: usize) -> Self {
        Self {
            // SAFETY: the caller vouches that the row lies within the output.
            out: unsafe { self.out.add(row * self.width) },
            ..self
        }
    }
}

/// ((x − center) · inverse + offset) · weight.
#[derive(Clone, Copy)]
struct Scaled<V> {
    x: *const f32,
    weight: *const f32,
    center: V,
    inverse: V,
    offset: V,
}

impl<V: Copy> Scaled<V> {
    #[inline(always)]
    unsafe fn normed<S: Simd<V = V>>(self, lanes: Lanes) -> V {
        // SAFETY: the lanes lie within `x`, as the caller vouches, who has the instruction set.
        unsafe {
            let centered = S::sub(lanes.load::<S>(self.x), self.center);
            S::fma(centered, self.inverse, self.offset)
        }
    }
}

impl<S: Simd> RowValue<S> for Scaled<S::V> {
    #[inline(always)]
    unsafe fn at(self, lanes: Lanes) -> S::V {
        // SAFETY: the lanes lie within `x` and the weight, which are equally long, as the caller vouches, who has
        // the instruction set.
        unsafe { S::mul(self.normed::<S>(lanes), lanes.load::<S>(self.weight)) }
    }
}

/// A scaled value plus a bias.
#[derive(Clone, Copy)]
struct Biased<V>(Scaled<V>, *const f32);

impl<S: Simd> RowValue<S> for Biased<S::V> {
    #[inline(always)]
    unsafe fn at(self, lanes: Lanes) -> S::V {
        // SAFETY: the lanes lie within `x`, the weight and the bias, which are equally long, as the caller vouches,
        // who has the instruction set.
        unsafe {
            let Self(scaled, bias) = self;
            let (weight, bias) = (lanes.load::<S>(scaled.weight), lanes.load::<S>(bias));
            S::fma(scaled.normed::<S>(lanes), weight, bias)
        }
    }
}

/// Where the mean may lie, by the first vectors of a row whose first element is `first`; 0 where no
/// mean is taken.
#[inline(always)]
unsafe fn estimate<S: Simd>(row: impl RowValue<S>, first: f32, to: Target) -> f32 {
    // SAFETY: the row has as many numbers as the target is wide, as the caller vouches, and no vector reaches
    // beyond; the caller has the instruction set.
    unsafe {
        if !to.centered {
            return 0.0;
        }
        if to.width < S::LANES {
            return first;
        }
        let shift = S::splat(first);
        let mut apart = S::sub(row.at(Lanes { at: 0, count: 0 }), shift);
        let mut at = S::LANES;
        while at < 4 * S::LANES && at + S::LANES <= to.width {
            apart = S::add(apart, S::sub(row.at(Lanes { at, count: 0 }), shift));
            at += S::LANES;
        }
        first + S::sum(apart) / at as f32
    }
}

/// Normalizes the row that lies at `x` once `row` was read.
///
/// Mean and variance are taken from differences to an estimate of the mean, so that a large offset costs no
/// digits. Where the estimate was bad, a second pass takes them from differences to the mean; what the
/// rounded mean misses is made up for.
#[inline(always)]
unsafe fn normalize<S: Simd>(row: impl RowValue<S>, estimate: f32, x: *const f32, to: Target) {
    // SAFETY: `row`, `x`, the weight, the bias unless null, and `out` have as many numbers as the target is wide,
    // as the caller vouches, who has the instruction set.
    unsafe {
        let (mut center, mut drift) = (estimate, 0.0);
        let mut variance;
        if to.centered {
            (drift, variance) = mean_and_variance::<S>(row, to.width, center);
            let near = drift * drift <= 0.25 * variance;
            if !near {
                center += drift;
                (drift, variance) = mean_and_variance::<S>(x, to.width, center);
            }
        } else {
            variance = squares::<S>(row, to.width) / to.width as f32;
        }
        let inverse = 1.0 / (variance + to.epsilon).sqrt();
        let scaled = Scaled {
            x,
            weight: to.weight,
            center: S::splat(center),
            inverse: S::splat(inverse),
            offset: S::splat(-drift * inverse),
        };
        if to.bias.is_null() {
            write_row::<S, _>(to.out, to.width, scaled);
        } else {
            write_row::<S, _>(to.out, to.width, Biased(scaled, to.bias));
        }
    }
}

/// Where a row lies, and the one after it; the last one is followed by itself.
#[inline(always)]
unsafe fn row_and_next(base: *const f32, rows: &Rows, row: usize) -> (*const f32, *const f32) {
    let next = (row + 1).min(rows.count - 1);
    // SAFETY: the caller vouches that the row lies within the storage; the next one is a row of it too, or the
    // same.
    unsafe { (base.add(rows.at(row)), base.add(rows.at(next))) }
}

#[inline(always)]
unsafe fn norm_rows_with<S: Simd>(x: *const f32, rows: &Rows, range: Range<usize>, to: Target) {
    // SAFETY: the rows of `range` lie within `x` and the output and are not empty, as the caller vouches, who has
    // the instruction set.
    unsafe {
        for row in range {
            let (x, next) = row_and_next(x, rows, row);
            let estimate = estimate::<S>(x, *x, to);
            normalize::<S>(Read { x, next }, estimate, x, to.row(row));
        }
    }
}

#[inline(always)]
unsafe fn add_norm_rows_with<S: Simd>(
    (x, rows): (*mut f32, &Rows),
    (residual, residual_rows): (*const f32, &Rows),
    range: Range<usize>,
    to: Target,
) {
    // SAFETY: the rows of `range` lie within `x`, the residual and the output and are not empty, and nobody else
    // has those of `x`, as the caller vouches, who has the instruction set.
    unsafe {
        for row in range {
            let (at, next) = row_and_next(x, rows, row);
            let (residual, next_residual) = row_and_next(residual, residual_rows, row);
            let estimate = estimate::<S>(Added(at, residual), *at + *residual, to);
            let sum = Accumulated {
                x: at.cast_mut(),
                residual,
                next: [next, next_residual],
            };
            normalize::<S>(sum, estimate, at, to.row(row));
        }
    }
}

#[derive(Clone, Copy)]
struct Added(*const f32, *const f32);

impl<S: Simd> RowValue<S> for Added {
    #[inline(always)]
    unsafe fn at(self, lanes: Lanes) -> S::V {
        // SAFETY: the lanes lie within both rows, as the caller vouches, who has the instruction set.
        unsafe { S::add(lanes.load::<S>(self.0), lanes.load::<S>(self.1)) }
    }
}

#[inline(always)]
unsafe fn add_row_with<S: Simd>(a: *const f32, b: *const f32, out: *mut f32, width: usize) {
    // SAFETY: `a`, `b` and `out` have `width` numbers, as the caller vouches, who has the instruction set; each
    // vector is read before it is written, so `out` may be `a`.
    unsafe { write_row::<S, _>(out, width, Added(a, b)) }
}

dispatched! {
    unsafe fn norm_rows(x: *const f32, rows: &Rows, range: Range<usize>, to: Target) = norm_rows_with
}
dispatched! {
    /// The sums are written over `x`.
    unsafe fn add_norm_rows(
        x: (*mut f32, &Rows),
        residual: (*const f32, &Rows),
        range: Range<usize>,
        to: Target,
    ) = add_norm_rows_with
}
dispatched! {
    /// out = a + b; `out` may be `a`.
    pub unsafe fn add_row(a: *const f32, b: *const f32, out: *mut f32, width: usize)
        = add_row_with
}

impl NormRows {
    fn target(&self, out: *mut f32) -> Target {
        Target {
            centered: self.centered,
            epsilon: self.epsilon,
            weight: self.weight.as_ptr(),
            bias: self.bias.as_ref().map_or(std::ptr::null(), |b| b.as_ptr()),
            out,
            width: self.weight.len(),
        }
    }
}

/// Weight and bias were checked to be as long as the rows.
pub fn norm<T: Element>(isa: Isa, x: &RowView<'_, T>, norm: &NormRows) -> Vec<T> {
    let (rows, width) = (x.rows.count, x.rows.width);
    // SAFETY: the rows lie within x, every row of the output is written once, and an empty one has no
    // first element to read.
    unsafe {
        build(rows * width, |out: Output<T>| {
            for_each_range(rows.min(rows * width), width, |range| {
                if T::IS_F32 {
                    let to = norm.target(out.at(0).cast());
                    return norm_rows(isa, x.as_ptr().cast(), &x.rows, range, to);
                }
                with_scratch(2 * width, |scratch| {
                    let (from, to) = scratch.split_at_mut(width);
                    let alone = Rows::single(width);
                    for row in range {
                        T::widen(isa, x.row(row), from);
                        let target = norm.target(to.as_mut_ptr());
                        norm_rows(isa, from.as_ptr(), &alone, 0..1, target);
                        T::narrow(isa, to, out.at(row * width));
                    }
                })
            })
        })
    }
}

/// Adds the residual to `x`, whose rows are apart from each other, and returns the norms of the sums.
pub fn add_norm<T: Element>(
    isa: Isa,
    (x, rows): (&mut [T], &Rows),
    residual: &RowView<'_, T>,
    norm: &NormRows,
) -> Vec<T> {
    let (count, width) = (rows.count, rows.width);
    assert!(rows.end() <= x.len());
    let x = Output(x.as_mut_ptr());
    // SAFETY: the rows lie within x and the residual, every row of both outputs is written once, and an
    // empty one has no first element to read.
    unsafe {
        build(count * width, |out: Output<T>| {
            for_each_range(count.min(count * width), 2 * width, |range| {
                if T::IS_F32 {
                    let (x, to) = (x.at(0).cast(), norm.target(out.at(0).cast()));
                    let residual = (residual.as_ptr().cast(), &residual.rows);
                    return add_norm_rows(isa, (x, rows), residual, range, to);
                }
                with_scratch(3 * width, |scratch| {
                    let (sum, rest) = scratch.split_at_mut(width);
                    let (addend, normed) = rest.split_at_mut(width);
                    let alone = Rows::single(width);
                    for row in range {
                        let x = x.at(rows.at(row));
                        T::widen(isa, std::slice::from_raw_parts(x, width), sum);
                        T::widen(isa, residual.row(row), addend);
                        let target = norm.target(normed.as_mut_ptr());
                        let addend = (addend.as_ptr(), &alone);
                        add_norm_rows(isa, (sum.as_mut_ptr(), &alone), addend, 0..1, target);
                        T::narrow(isa, sum, x);
                        T::narrow(isa, normed, out.at(row * width));
                    }
                })
            })
        })
    }
}
