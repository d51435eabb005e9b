//! Softmax over rows, with masks as predicates.

#[cfg(target_arch = "x86_64")]
use std::f32::consts::LOG2_E;

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::math::exp;
#[cfg(target_arch = "x86_64")]
use crate::cpu::math::rough_power_of_two;
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::stored::NativeBf16;
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::Avx512;
use crate::cpu::simd::Simd;
use crate::cpu::{build, for_each_range, read, with_scratch, write, Element, RowView};

pub struct SoftmaxMasks<'a, T> {
    pub scale: f32,
    pub additive: Option<RowView<'a, T>>,
    pub keep: Option<RowView<'a, u8>>,
    pub lengths: Option<RowView<'a, u32>>,
    /// An additive value up to this masks its element.
    pub lowest: f32,
}

/// The highest of x · scale.
#[inline(always)]
unsafe fn highest_with<S: Simd>(x: *const f32, width: usize, scale: f32) -> f32 {
    // SAFETY: `x` has `width` numbers, as the caller vouches, and no load reaches beyond; a last vector begins
    // LANES before the end only where there are as many. The caller has the instruction set.
    unsafe {
        let factor = S::splat(scale);
        let mut highest = [S::splat(f32::NEG_INFINITY); 2];
        let mut i = 0;
        while i + 2 * S::LANES <= width {
            for (lane, highest) in highest.iter_mut().enumerate() {
                let v = S::mul(S::load(x.add(i + lane * S::LANES)), factor);
                *highest = S::max(v, *highest);
            }
            i += 2 * S::LANES;
        }
        while i + S::LANES <= width {
            highest[0] = S::max(S::mul(S::load(x.add(i)), factor), highest[0]);
            i += S::LANES;
        }
        if i < width && width >= S::LANES {
            // Some of the last vector's elements a second time.
            i = width;
            let last = S::load(x.add(width - S::LANES));
            highest[1] = S::max(S::mul(last, factor), highest[1]);
        }
        let mut result = S::highest(S::max(highest[0], highest[1]));
        while i < width {
            let v = *x.add(i) * scale;
            result = if v > result { v } else { result };
            i += 1;
        }
        result
    }
}

/// out = e^(x · scale − highest), and its sum.
#[inline(always)]
unsafe fn exponentials_with<S: Simd>(
    x: *const f32,
    out: *mut f32,
    width: usize,
    scale: f32,
    highest: f32,
) -> f32 {
    // SAFETY: `x` and `out` have `width` numbers, as the caller vouches, and all lanes lie within; the caller has
    // the instruction set.
    unsafe {
        let (scale, shift) = (S::splat(scale), S::splat(-highest));
        let mut sum = S::splat(0.0);
        for_lanes!(S, width, lanes => {
            let e = exp::<S>(S::fma(lanes.load::<S>(x), scale, shift));
            lanes.store::<S>(out, e);
            sum = S::add(sum, if lanes.count == 0 { e } else { S::keep_first(e, lanes.count) });
        });
        S::sum(sum)
    }
}

#[inline(always)]
unsafe fn multiply_with<S: Simd>(out: *mut f32, width: usize, factor: f32) {
    // SAFETY: `out` has `width` numbers, as the caller vouches, and all lanes lie within; the caller has the
    // instruction set.
    unsafe {
        let factor = S::splat(factor);
        for_lanes!(S, width, lanes => {
            lanes.store::<S>(out, S::mul(lanes.load::<S>(out), factor));
        });
    }
}

/// e^(x · scale − highest) as bf16, and the sum of what was not rounded yet.
///
/// # Safety
/// Both have the width; the CPU rounds to bf16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub unsafe fn bf16_exponentials(x: *const f32, out: *mut u16, width: usize, scale: f32) -> f32 {
    type S = Avx512;
    // SAFETY: `x` and `out` have `width` numbers, as the caller vouches, and all lanes lie within; AVX-512 with
    // AVX512-BF16 is enabled.
    unsafe {
        let highest = highest_with::<S>(x, width, scale);
        let (scale, shift) = (S::splat(scale * LOG2_E), S::splat(-highest * LOG2_E));
        let mut sum = S::splat(0.0);
        for_lanes!(S, width, lanes => {
            let e = rough_power_of_two::<S>(S::fma(lanes.load::<S>(x), scale, shift));
            lanes.store_stored::<S, NativeBf16>(out, e);
            sum = S::add(sum, if lanes.count == 0 { e } else { S::keep_first(e, lanes.count) });
        });
        S::sum(sum)
    }
}

/// Numbers times a factor, as bf16.
///
/// # Safety
/// As above.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub unsafe fn bf16_multiples(x: *const f32, out: *mut u16, width: usize, factor: f32) {
    type S = Avx512;
    // SAFETY: `x` and `out` have `width` numbers, as the caller vouches, and all lanes lie within; AVX-512 with
    // AVX512-BF16 is enabled.
    unsafe {
        let factor = S::splat(factor);
        for_lanes!(S, width, lanes => {
            lanes.store_stored::<S, NativeBf16>(out, S::mul(lanes.load::<S>(x), factor));
        });
    }
}

/// Softmax of one row; whether the sum came out as a positive number.
#[inline(always)]
unsafe fn softmax_row_with<S: Simd>(
    x: *const f32,
    out: *mut f32,
    width: usize,
    scale: f32,
) -> bool {
    // SAFETY: `x` and `out` have `width` numbers, as the caller vouches, and may be the same; the caller has the
    // instruction set.
    unsafe {
        let highest = highest_with::<S>(x, width, scale);
        let sum = exponentials_with::<S>(x, out, width, scale, highest);
        multiply_with::<S>(out, width, 1.0 / sum);
        sum > 0.0
    }
}

dispatched! {
    pub unsafe fn softmax_row(x: *const f32, out: *mut f32, width: usize, scale: f32) -> bool
        = softmax_row_with
}
/// ln Σ e^x; `out` gets the exponentials.
#[inline(always)]
unsafe fn log_sum_with<S: Simd>(x: *const f32, out: *mut f32, width: usize) -> f32 {
    // SAFETY: `x` and `out` have `width` numbers, as the caller vouches, who has the instruction set.
    unsafe {
        let highest = highest_with::<S>(x, width, 1.0);
        highest + exponentials_with::<S>(x, out, width, 1.0, highest).ln()
    }
}

dispatched! {
    unsafe fn log_sum(x: *const f32, out: *mut f32, width: usize) -> f32 = log_sum_with
}

/// ln Σ e^x of a row, of which at least one number is finite.
pub fn log_sum_exp(isa: Isa, row: &[f32]) -> f32 {
    with_scratch(row.len(), |out| {
        // SAFETY: `row` and `out` are slices of `row.len()` numbers; `isa` was detected.
        unsafe { log_sum(isa, row.as_ptr(), out.as_mut_ptr(), row.len()) }
    })
}

dispatched! {
    pub unsafe fn multiply(out: *mut f32, width: usize, factor: f32) = multiply_with
}

impl<T: Element> SoftmaxMasks<'_, T> {
    fn is_plain(&self) -> bool {
        self.additive.is_none() && self.keep.is_none() && self.lengths.is_none()
    }

    /// Scores with -infinity where masked.
    fn scores(&self, isa: Isa, row: usize, x: &[f32], bias: &mut [f32], scores: &mut [f32]) {
        for (score, v) in scores.iter_mut().zip(x) {
            *score = v * self.scale;
        }
        if let Some(additive) = &self.additive {
            let bias = read(isa, additive.row(row), bias);
            for (score, &b) in scores.iter_mut().zip(bias) {
                *score = if b <= self.lowest {
                    f32::NEG_INFINITY
                } else {
                    *score + b
                };
            }
        }
        if let Some(keep) = &self.keep {
            for (score, &keep) in scores.iter_mut().zip(keep.row(row)) {
                *score = if keep == 0 { f32::NEG_INFINITY } else { *score };
            }
        }
        let length = self.length(row, scores.len());
        scores[length..].fill(f32::NEG_INFINITY);
    }

    fn length(&self, row: usize, width: usize) -> usize {
        self.lengths
            .as_ref()
            .map_or(width, |lengths| width.min(lengths.row(row)[0] as usize))
    }

    fn keeps(&self, isa: Isa, row: usize, column: usize, width: usize) -> bool {
        let additive = self.additive.as_ref().is_none_or(|additive| {
            let mut value = [0.0];
            let bias = read(isa, &additive.row(row)[column..=column], &mut value)[0];
            bias > self.lowest || bias.is_nan()
        });
        let keep = self.keep.as_ref().is_none_or(|k| k.row(row)[column] != 0);
        additive && keep && column < self.length(row, width)
    }

    /// A row whose sum is zero or NaN: masked elements are 0, the others NaN.
    ///
    /// # Safety
    /// `out` is valid for writes of `width` elements.
    unsafe fn exceptional(&self, isa: Isa, row: usize, out: *mut f32, width: usize) {
        for column in 0..width {
            let value = if self.keeps(isa, row, column, width) {
                f32::NAN
            } else {
                0.0
            };
            // SAFETY: `out` is valid for writes of `width` elements, as the caller promises, and `column` is below
            // `width`.
            unsafe { *out.add(column) = value };
        }
    }
}

pub fn softmax<T: Element>(isa: Isa, x: &RowView<'_, T>, masks: &SoftmaxMasks<'_, T>) -> Vec<T> {
    let (rows, width) = (x.rows.count, x.rows.width);
    // SAFETY: every row of the output is written once.
    unsafe {
        build(rows * width, |out| {
            for_each_range(rows, 2 * width, |range| {
                with_scratch(3 * width, |scratch| {
                    let (from, rest) = scratch.split_at_mut(width);
                    let (bias, to) = rest.split_at_mut(width);
                    for row in range {
                        let values = read(isa, x.row(row), from);
                        let target = out.at(row * width);
                        write(isa, target, to, |to| {
                            if masks.is_plain() {
                                softmax_row(isa, values.as_ptr(), to, width, masks.scale);
                                return;
                            }
                            // The output itself holds the scores.
                            std::ptr::write_bytes(to, 0, width);
                            let scores = std::slice::from_raw_parts_mut(to, width);
                            masks.scores(isa, row, values, bias, scores);
                            if !softmax_row(isa, to, to, width, 1.0) {
                                masks.exceptional(isa, row, to, width);
                            }
                        });
                    }
                })
            })
        })
    }
}
/// Softmax of a whole row in place. A sink is one more score that takes its share of the sum.
pub fn soften_row(isa: Isa, row: &mut [f32], scale: f32, sink: Option<f32>) {
    let largest = |row: &[f32]| row.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let top = sink.map(|_| largest(row) * scale);
    let pointer = row.as_mut_ptr();
    // SAFETY: input and output are the same whole row, read before it is written.
    unsafe { softmax_row(isa, pointer, pointer, row.len(), scale) };
    if let (Some(sink), Some(top)) = (sink, top) {
        // The largest probability is 1 / Σ e^(x − top).
        let share = 1.0 / (1.0 + (sink - top).exp() * largest(row));
        row.iter_mut().for_each(|x| *x *= share);
    }
}
