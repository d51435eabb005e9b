//! LayerNorm and RMSNorm, alone or after an addition.

use super::isa::{dispatched, Isa};
use super::lanes::{fold_row, write_row, Lanes, RowFold, RowValue};
use super::simd::Simd;
use super::{build, for_each_range, prefetch, read, with_scratch, write, Element, Output, RowView};

/// Weight and bias in f32, the weight's offset included.
pub(crate) struct NormRows {
    pub centered: bool,
    pub epsilon: f32,
    pub weight: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

struct Sum;

impl<S: Simd> RowFold<S> for Sum {
    type State = S::V;

    #[inline(always)]
    unsafe fn start() -> S::V {
        unsafe { S::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn fold(sum: S::V, v: S::V) -> S::V {
        unsafe { S::add(sum, v) }
    }
}

struct Squares;

impl<S: Simd> RowFold<S> for Squares {
    type State = S::V;

    #[inline(always)]
    unsafe fn start() -> S::V {
        unsafe { S::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn fold(sum: S::V, v: S::V) -> S::V {
        unsafe { S::fma(v, v, sum) }
    }
}

struct Both;

impl<S: Simd> RowFold<S> for Both {
    type State = (S::V, S::V);

    #[inline(always)]
    unsafe fn start() -> Self::State {
        unsafe { (S::splat(0.0), S::splat(0.0)) }
    }
    #[inline(always)]
    unsafe fn fold((sum, squares): Self::State, v: S::V) -> Self::State {
        unsafe { (S::add(sum, v), S::fma(v, v, squares)) }
    }
}

#[inline(always)]
unsafe fn total<S: Simd>(v: [S::V; 4]) -> f32 {
    unsafe { S::sum(S::add(S::add(v[0], v[1]), S::add(v[2], v[3]))) }
}

/// Σ x² over a row.
#[inline(always)]
pub(super) unsafe fn squares<S: Simd>(x: *const f32, width: usize) -> f32 {
    unsafe { total::<S>(fold_row::<S, Squares>(x, width, 0.0)) }
}

/// Σ (x − shift) and Σ (x − shift)² over a row.
#[inline(always)]
unsafe fn moments<S: Simd>(x: *const f32, width: usize, shift: f32) -> (f32, f32) {
    unsafe {
        let [a, b, c, d] = fold_row::<S, Both>(x, width, shift);
        (
            total::<S>([a.0, b.0, c.0, d.0]),
            total::<S>([a.1, b.1, c.1, d.1]),
        )
    }
}

/// Where a row's norm comes from and goes to.
#[derive(Clone, Copy)]
struct RowPointers {
    x: *const f32,
    weight: *const f32,
    /// May be null.
    bias: *const f32,
    out: *mut f32,
    width: usize,
}

/// (x − mean) · inverse · weight, the mean as a float and the little that it misses.
#[derive(Clone, Copy)]
struct Scaled<V> {
    x: *const f32,
    weight: *const f32,
    mean: V,
    drift: V,
    inverse: V,
}

impl<S: Simd> RowValue<S> for Scaled<S::V> {
    #[inline(always)]
    unsafe fn at(self, lanes: Lanes) -> S::V {
        unsafe {
            let centered = S::sub(S::sub(lanes.load::<S>(self.x), self.mean), self.drift);
            S::mul(S::mul(centered, self.inverse), lanes.load::<S>(self.weight))
        }
    }
}

/// The same plus a bias.
#[derive(Clone, Copy)]
struct Biased<V>(Scaled<V>, *const f32);

impl<S: Simd> RowValue<S> for Biased<S::V> {
    #[inline(always)]
    unsafe fn at(self, lanes: Lanes) -> S::V {
        unsafe {
            let Self(scaled, bias) = self;
            let centered = S::sub(S::sub(lanes.load::<S>(scaled.x), scaled.mean), scaled.drift);
            let normed = S::mul(centered, scaled.inverse);
            S::fma(
                normed,
                lanes.load::<S>(scaled.weight),
                lanes.load::<S>(bias),
            )
        }
    }
}

#[inline(always)]
unsafe fn scale_row<S: Simd>(row: RowPointers, (mean, drift, inverse): (f32, f32, f32)) {
    unsafe {
        let scaled = Scaled {
            x: row.x,
            weight: row.weight,
            mean: S::splat(mean),
            drift: S::splat(drift),
            inverse: S::splat(inverse),
        };
        if row.bias.is_null() {
            write_row::<S, _>(row.out, row.width, scaled);
        } else {
            write_row::<S, _>(row.out, row.width, Biased(scaled, row.bias));
        }
    }
}

/// Two passes: the mean from differences to the first element, so that a large offset costs no
/// digits, then the variance around it, corrected by what the rounded mean misses.
#[inline(always)]
unsafe fn layer_norm_row_with<S: Simd>(row: RowPointers, epsilon: f32) {
    unsafe {
        let (x, width, count) = (row.x, row.width, row.width as f32);
        let mean = *x + total::<S>(fold_row::<S, Sum>(x, width, *x)) / count;
        let (sum, squares) = moments::<S>(x, width, mean);
        let drift = sum / count;
        let variance = squares / count - drift * drift;
        // Not max(), which would drop a NaN.
        let variance = if variance < 0.0 { 0.0 } else { variance };
        let inverse = 1.0 / (variance + epsilon).sqrt();
        scale_row::<S>(row, (mean, drift, inverse));
    }
}

#[inline(always)]
unsafe fn rms_norm_row_with<S: Simd>(row: RowPointers, epsilon: f32) {
    unsafe {
        let squares = squares::<S>(row.x, row.width);
        let inverse = 1.0 / (squares / row.width as f32 + epsilon).sqrt();
        scale_row::<S>(row, (0.0, 0.0, inverse));
    }
}

#[derive(Clone, Copy)]
struct Added(*const f32, *const f32);

impl<S: Simd> RowValue<S> for Added {
    #[inline(always)]
    unsafe fn at(self, lanes: Lanes) -> S::V {
        unsafe { S::add(lanes.load::<S>(self.0), lanes.load::<S>(self.1)) }
    }
}

#[inline(always)]
unsafe fn add_row_with<S: Simd>(a: *const f32, b: *const f32, out: *mut f32, width: usize) {
    unsafe { write_row::<S, _>(out, width, Added(a, b)) }
}

dispatched! {
    unsafe fn layer_norm_row(row: RowPointers, epsilon: f32) = layer_norm_row_with
}
dispatched! {
    unsafe fn rms_norm_row(row: RowPointers, epsilon: f32) = rms_norm_row_with
}
dispatched! {
    /// out = a + b; `out` may be `a`.
    pub(crate) unsafe fn add_row(a: *const f32, b: *const f32, out: *mut f32, width: usize)
        = add_row_with
}

impl NormRows {
    /// # Safety
    /// `x` is valid for reads and `out` for writes of as many elements as the weight has.
    unsafe fn row(&self, isa: Isa, x: *const f32, out: *mut f32) {
        let row = RowPointers {
            x,
            weight: self.weight.as_ptr(),
            bias: self.bias.as_ref().map_or(std::ptr::null(), |b| b.as_ptr()),
            out,
            width: self.weight.len(),
        };
        if row.width == 0 {
            return;
        }
        // SAFETY: the caller vouches for x and out; weight and bias were checked to be as long.
        unsafe {
            if self.centered {
                layer_norm_row(isa, row, self.epsilon);
            } else {
                rms_norm_row(isa, row, self.epsilon);
            }
        }
    }

    /// # Safety
    /// `sum` and `normed` are valid for writes of a row, `scratch` holds three.
    unsafe fn add_row<T: Element>(
        &self,
        isa: Isa,
        (x, residual): (&[T], &[T]),
        (sum, normed): (*mut T, *mut T),
        scratch: &mut [f32],
    ) {
        let width = x.len();
        let (first, rest) = scratch.split_at_mut(width);
        let (second, sums) = rest.split_at_mut(width);
        let a = read(isa, x, first).as_ptr();
        let b = read(isa, residual, second).as_ptr();
        // SAFETY: the caller vouches for the outputs; the inputs are rows of equal width.
        unsafe {
            if T::IS_F32 {
                add_row(isa, a, b, sum.cast(), width);
                self.row(isa, sum.cast(), normed.cast());
            } else {
                add_row(isa, a, b, sums.as_mut_ptr(), width);
                T::narrow(isa, sums, sum);
                write(isa, normed, first, |to| self.row(isa, sums.as_ptr(), to));
            }
        }
    }
}

pub(crate) fn norm<T: Element>(isa: Isa, x: &RowView<'_, T>, norm: &NormRows) -> Vec<T> {
    let (rows, width) = (x.rows.count, x.rows.width);
    // SAFETY: every row of the output is written once.
    unsafe {
        build(rows * width, |out| {
            for_each_range(rows, width, |range| {
                with_scratch(2 * width, |scratch| {
                    let (from, to) = scratch.split_at_mut(width);
                    for row in range {
                        prefetch(x.row((row + 1).min(rows - 1)));
                        let values = read(isa, x.row(row), from);
                        let target = out.at(row * width);
                        write(isa, target, to, |to| norm.row(isa, values.as_ptr(), to));
                    }
                })
            })
        })
    }
}

/// The sums of all rows, and the norms of all rows.
pub(crate) fn add_norm<T: Element>(
    isa: Isa,
    x: &RowView<'_, T>,
    residual: &RowView<'_, T>,
    norm: &NormRows,
) -> (Vec<T>, Vec<T>) {
    let (rows, width) = (x.rows.count, x.rows.width);
    let mut normed = Vec::new();
    // SAFETY: every row of both outputs is written once.
    let sums = unsafe {
        build(rows * width, |sums: Output<T>| {
            normed = build(rows * width, |normed: Output<T>| {
                for_each_range(rows, 2 * width, |range| {
                    with_scratch(3 * width, |scratch| {
                        for row in range {
                            let (at, next) = (row * width, (row + 1).min(rows - 1));
                            prefetch(x.row(next));
                            prefetch(residual.row(next));
                            let inputs = (x.row(row), residual.row(row));
                            let outputs = (sums.at(at), normed.at(at));
                            norm.add_row(isa, inputs, outputs, scratch);
                        }
                    })
                })
            })
        })
    };
    (sums, normed)
}
