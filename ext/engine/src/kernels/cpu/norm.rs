//! LayerNorm and RMSNorm, alone or after an addition.

use super::isa::{dispatched, Isa};
use super::simd::Simd;
use super::{build, for_each_range, prefetch, read, with_scratch, write, Element, Output, RowView};

/// Weight and bias in f32, the weight's offset included.
pub(crate) struct NormRows {
    pub centered: bool,
    pub epsilon: f32,
    pub weight: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

/// Reads a row in vectors, the last one short, and folds it into N accumulators side by side.
macro_rules! for_vectors {
    ($S:ident, $width:ident, |$i:ident, $load:ident| $whole:block, |$k:ident| $tail:block) => {{
        let mut $i = 0;
        while $i + $S::LANES <= $width {
            let $load = |from: *const f32| $S::load(from.add($i));
            $whole
            $i += $S::LANES;
        }
        if $i < $width {
            let $k = $width - $i;
            let $load = |from: *const f32| $S::load_first(from.add($i), $k);
            $tail
        }
    }};
}
pub(super) use for_vectors;

/// Σ (x − shift) over a row.
#[inline(always)]
unsafe fn shifted_sum<S: Simd>(x: *const f32, width: usize, shift: f32) -> f32 {
    unsafe {
        let shift = S::splat(shift);
        let mut sums = [S::splat(0.0); 4];
        let mut i = 0;
        while i + 4 * S::LANES <= width {
            for (lane, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(*sum, S::sub(S::load(x.add(i + lane * S::LANES)), shift));
            }
            i += 4 * S::LANES;
        }
        let mut sum = S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])));
        while i + S::LANES <= width {
            sum += S::sum(S::sub(S::load(x.add(i)), shift));
            i += S::LANES;
        }
        if i < width {
            let rest = S::sub(S::load_first(x.add(i), width - i), shift);
            sum += S::sum(first_lanes::<S>(rest, width - i));
        }
        sum
    }
}

/// The first `count` lanes, the others 0.
#[inline(always)]
unsafe fn first_lanes<S: Simd>(v: S::V, count: usize) -> S::V {
    let mut values = [0.0f32; 16];
    unsafe {
        S::store(values.as_mut_ptr(), v);
        S::load_first(values.as_ptr(), count)
    }
}

/// Σ (x − shift) and Σ (x − shift)² over a row.
#[inline(always)]
pub(super) unsafe fn moments<S: Simd>(x: *const f32, width: usize, shift: f32) -> (f32, f32) {
    unsafe {
        let shift = S::splat(shift);
        let mut sums = [S::splat(0.0); 4];
        let mut squares = [S::splat(0.0); 4];
        let mut i = 0;
        while i + 4 * S::LANES <= width {
            for lane in 0..4 {
                let d = S::sub(S::load(x.add(i + lane * S::LANES)), shift);
                sums[lane] = S::add(sums[lane], d);
                squares[lane] = S::fma(d, d, squares[lane]);
            }
            i += 4 * S::LANES;
        }
        while i + S::LANES <= width {
            let d = S::sub(S::load(x.add(i)), shift);
            sums[0] = S::add(sums[0], d);
            squares[0] = S::fma(d, d, squares[0]);
            i += S::LANES;
        }
        if i < width {
            let d = S::sub(S::load_first(x.add(i), width - i), shift);
            let d = first_lanes::<S>(d, width - i);
            sums[1] = S::add(sums[1], d);
            squares[1] = S::fma(d, d, squares[1]);
        }
        let total = |v: [S::V; 4]| S::sum(S::add(S::add(v[0], v[1]), S::add(v[2], v[3])));
        (total(sums), total(squares))
    }
}

/// (x − mean) · inverse · weight + bias, the mean as a float and the little that it misses.
#[inline(always)]
unsafe fn scale_row<S: Simd>(
    x: *const f32,
    weight: *const f32,
    bias: *const f32,
    out: *mut f32,
    width: usize,
    (mean, drift, inverse): (f32, f32, f32),
) {
    unsafe {
        let (mean, drift, inverse) = (S::splat(mean), S::splat(drift), S::splat(inverse));
        let value = |x: S::V, w: S::V| {
            let centered = S::sub(S::sub(x, mean), drift);
            (S::mul(centered, inverse), w)
        };
        if bias.is_null() {
            for_vectors!(
                S,
                width,
                |i, load| {
                    let (v, w) = value(load(x), load(weight));
                    S::store(out.add(i), S::mul(v, w));
                },
                |rest| {
                    let (v, w) = value(load(x), load(weight));
                    S::store_first(out.add(i), S::mul(v, w), rest);
                }
            );
        } else {
            for_vectors!(
                S,
                width,
                |i, load| {
                    let (v, w) = value(load(x), load(weight));
                    S::store(out.add(i), S::fma(v, w, load(bias)));
                },
                |rest| {
                    let (v, w) = value(load(x), load(weight));
                    S::store_first(out.add(i), S::fma(v, w, load(bias)), rest);
                }
            );
        }
    }
}

/// Two passes: the mean from differences to the first element, so that a large offset costs no
/// digits, then the variance around it, corrected by what the rounded mean misses.
#[inline(always)]
unsafe fn layer_norm_row_with<S: Simd>(
    x: *const f32,
    weight: *const f32,
    bias: *const f32,
    out: *mut f32,
    width: usize,
    epsilon: f32,
) {
    unsafe {
        let count = width as f32;
        let mean = *x + shifted_sum::<S>(x, width, *x) / count;
        let (sum, squares) = moments::<S>(x, width, mean);
        let drift = sum / count;
        let variance = squares / count - drift * drift;
        // Not max(), which would drop a NaN.
        let variance = if variance < 0.0 { 0.0 } else { variance };
        let inverse = 1.0 / (variance + epsilon).sqrt();
        scale_row::<S>(x, weight, bias, out, width, (mean, drift, inverse));
    }
}

#[inline(always)]
unsafe fn rms_norm_row_with<S: Simd>(
    x: *const f32,
    weight: *const f32,
    out: *mut f32,
    width: usize,
    epsilon: f32,
) {
    unsafe {
        let (_, squares) = moments::<S>(x, width, 0.0);
        let inverse = 1.0 / (squares / width as f32 + epsilon).sqrt();
        scale_row::<S>(x, weight, std::ptr::null(), out, width, (0.0, 0.0, inverse));
    }
}

#[inline(always)]
unsafe fn add_row_with<S: Simd>(a: *const f32, b: *const f32, out: *mut f32, width: usize) {
    unsafe {
        for_vectors!(
            S,
            width,
            |i, load| {
                S::store(out.add(i), S::add(load(a), load(b)));
            },
            |rest| {
                S::store_first(out.add(i), S::add(load(a), load(b)), rest);
            }
        );
    }
}

dispatched! {
    unsafe fn layer_norm_row(
        x: *const f32, weight: *const f32, bias: *const f32, out: *mut f32, width: usize, epsilon: f32,
    ) = layer_norm_row_with
}
dispatched! {
    unsafe fn rms_norm_row(
        x: *const f32, weight: *const f32, out: *mut f32, width: usize, epsilon: f32,
    ) = rms_norm_row_with
}
dispatched! {
    pub(crate) unsafe fn add_row(a: *const f32, b: *const f32, out: *mut f32, width: usize) = add_row_with
}

impl NormRows {
    /// # Safety
    /// `out` is valid for writes of `x.len()` elements, which is the weight's length.
    unsafe fn row(&self, isa: Isa, x: *const f32, out: *mut f32) {
        let (weight, width) = (self.weight.as_ptr(), self.weight.len());
        if width == 0 {
            return;
        }
        // SAFETY: the caller vouches for x and out; weight and bias were checked to be as long.
        unsafe {
            if self.centered {
                let bias = self.bias.as_ref().map_or(std::ptr::null(), |b| b.as_ptr());
                layer_norm_row(isa, x, weight, bias, out, width, self.epsilon);
            } else {
                rms_norm_row(isa, x, weight, out, width, self.epsilon);
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
                            let at = row * width;
                            let inputs = (x.row(row), residual.row(row));
                            norm.add_row(isa, inputs, sums.at(at), normed.at(at), scratch);
                        }
                    })
                })
            })
        })
    };
    (sums, normed)
}

impl NormRows {
    /// # Safety
    /// `sum` and `normed` are valid for writes of a row, `scratch` holds three.
    unsafe fn add_row<T: Element>(
        &self,
        isa: Isa,
        (x, residual): (&[T], &[T]),
        sum: *mut T,
        normed: *mut T,
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
