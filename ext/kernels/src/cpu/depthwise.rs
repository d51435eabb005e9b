//! Convolutions of every channel by itself, on the CPU: windows side by side are weighed together, so that a factor is
//! loaded once for several of them.

use candle_core::Tensor;

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::Lanes;
use crate::cpu::rows::activation::activate_row;
use crate::cpu::simd::Simd;
use crate::cpu::windows::{numbers, tensor_of, Windows};
use crate::cpu::{build, for_each_range};
use crate::{Activation, Error, Result};

/// Windows of a line that are weighed together.
const TOGETHER: usize = 4;
/// Vectors of channels that are weighed together.
const VECTORS: usize = 2;

/// Some windows side by side, and what their places are multiplied by.
#[derive(Clone, Copy)]
struct Strip {
    /// The channels of each place on the map that the windows see: `line` for each of `lines` rows of the kernel.
    places: *const *const f32,
    line: usize,
    lines: usize,
    windows: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    channels: usize,
    /// From the first of the rows of the kernel on.
    factors: *const f32,
    added: *const f32,
    out: *mut f32,
    /// Sums stay within these.
    bounds: (f32, f32),
}

#[allow(
    clippy::needless_range_loop,
    reason = "the same vectors of several arrays"
)]
#[inline(always)]
unsafe fn lanes_of<S: Simd, const WINDOWS: usize, const VECTORS: usize>(
    strip: &Strip,
    lanes: [Lanes; VECTORS],
) {
    // SAFETY: the caller has the instruction set; `places` has `line` pointers for each of `lines` rows, which reach as
    // far as the last window's last place; each, the factors of a place, `added` and the rows of `out` have as many
    // numbers as there are channels, within which the lanes lie.
    unsafe {
        let mut sums = [[S::splat(0.0); VECTORS]; WINDOWS];
        for vector in 0..VECTORS {
            let start = lanes[vector].load::<S>(strip.added);
            for sums in &mut sums {
                sums[vector] = start;
            }
        }
        let mut factors = strip.factors;
        for row in 0..strip.lines {
            let line = strip.places.add(row * strip.line);
            for column in 0..strip.kernel {
                let first = line.add(column * strip.dilation);
                let mut factor = [S::splat(0.0); VECTORS];
                for vector in 0..VECTORS {
                    factor[vector] = lanes[vector].load::<S>(factors);
                }
                for (window, sums) in sums.iter_mut().enumerate() {
                    let place = *first.add(window * strip.stride);
                    for vector in 0..VECTORS {
                        let seen = lanes[vector].load::<S>(place);
                        sums[vector] = S::fma(seen, factor[vector], sums[vector]);
                    }
                }
                factors = factors.add(strip.channels);
            }
        }
        let (least, most) = (S::splat(strip.bounds.0), S::splat(strip.bounds.1));
        for (window, sums) in sums.iter().enumerate() {
            let out = strip.out.add(window * strip.channels);
            for vector in 0..VECTORS {
                // NaN stays NaN.
                let sum = S::select_less(sums[vector], least, least, sums[vector]);
                lanes[vector].store::<S>(out, S::select_less(most, sum, most, sum));
            }
        }
    }
}

#[inline(always)]
unsafe fn windows_of<S: Simd, const WINDOWS: usize>(strip: &Strip) {
    let mut at = 0;
    // SAFETY: the caller vouches for the strip and has the instruction set; lanes end before its channels.
    unsafe {
        while at + VECTORS * S::LANES <= strip.channels {
            let lanes = [0, 1].map(|vector| Lanes {
                at: at + vector * S::LANES,
                count: 0,
            });
            lanes_of::<S, WINDOWS, VECTORS>(strip, lanes);
            at += VECTORS * S::LANES;
        }
        while at < strip.channels {
            let left = strip.channels - at;
            let count = if left < S::LANES { left } else { 0 };
            lanes_of::<S, WINDOWS, 1>(strip, [Lanes { at, count }]);
            at += S::LANES;
        }
    }
}

#[inline(always)]
unsafe fn weigh_with<S: Simd>(strip: *const Strip) {
    // SAFETY: the caller vouches for the strip, which has 1 to `TOGETHER` windows, and has the instruction set.
    unsafe {
        let strip = &*strip;
        match strip.windows {
            TOGETHER => windows_of::<S, TOGETHER>(strip),
            3 => windows_of::<S, 3>(strip),
            2 => windows_of::<S, 2>(strip),
            _ => windows_of::<S, 1>(strip),
        }
    }
}

dispatched! {
    unsafe fn weigh(strip: *const Strip) = weigh_with
}

/// Every channel by itself: a function of the sum of each window's places times the rows of `factors`,
/// [kernel · kernel, channels], and of `added`, [channels].
pub fn weigh_channels(
    x: &Tensor,
    windows: &Windows,
    factors: &Tensor,
    added: Option<&Tensor>,
    activation: Activation,
) -> Result<Option<Tensor>> {
    let channels = windows.channels(x)?;
    let rows = windows.kernel * windows.kernel;
    if factors.dims() != [rows, channels] || added.is_some_and(|row| row.dims() != [channels]) {
        return Err(Error::Internal("factors that do not fit windows".into()));
    }
    let zeros = vec![0.0; channels];
    let added = added.map(|added| numbers(added, <[f32]>::to_vec));
    let added = added.transpose()?.flatten();
    let added = added.as_deref().unwrap_or(&zeros);
    let isa = Isa::current()?;
    let found = numbers(x, |values| {
        numbers(factors, |factors| {
            weighed(isa, values, windows, [factors, added, &zeros], activation)
        })
    })?;
    tensor_of(found.transpose()?.flatten(), windows, x)
}

fn weighed(
    isa: Isa,
    values: &[f32],
    windows: &Windows,
    [factors, added, zeros]: [&[f32]; 3],
    activation: Activation,
) -> Vec<f32> {
    let channels = zeros.len();
    let bounds = match activation {
        Activation::Relu => (0.0, f32::INFINITY),
        Activation::Relu6 => (0.0, 6.0),
        _ => (f32::NEG_INFINITY, f32::INFINITY),
    };
    let bounded = bounds.0 == 0.0 || activation == Activation::Identity;
    let across = windows.across.div_ceil(TOGETHER);
    let cost = TOGETHER * windows.kernel * windows.kernel * channels;
    // SAFETY: every row of the output is written once, by the strip that has its window.
    unsafe {
        build::<f32>(windows.down * windows.across * channels, |out| {
            for_each_range(windows.down * across, cost, |range| {
                let mut places = Vec::new();
                for number in range {
                    let (down, first) = (number / across, number % across * TOGETHER);
                    let count = TOGETHER.min(windows.across - first);
                    places.clear();
                    let rows =
                        windows.seen(values, (down, first..first + count), zeros, &mut places);
                    let out = out.at((down * windows.across + first) * channels);
                    let strip = Strip {
                        places: places.as_ptr(),
                        line: places.len() / rows.len().max(1),
                        lines: rows.len(),
                        windows: count,
                        kernel: windows.kernel,
                        stride: windows.stride,
                        dilation: windows.dilation,
                        channels,
                        factors: factors[rows.start * windows.kernel * channels..].as_ptr(),
                        added: added.as_ptr(),
                        out,
                        bounds,
                    };
                    // SAFETY: `seen` reached as far as the last place of the last window; all rows have as many numbers
                    // as there are channels; `isa` was detected.
                    weigh(isa, &strip);
                    if !bounded {
                        let width = count * channels;
                        // SAFETY: the rows of these windows lie side by side, and were written.
                        activate_row(isa, out, std::ptr::null(), out, width, activation);
                    }
                }
            });
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_numbers::numbers as random;
    use super::*;
    use crate::reference;
    use candle_core::Device;

    #[test]
    fn what_is_done_to_sums_equals_the_activation_behind_them() {
        let windows = Windows {
            height: 6,
            width: 7,
            kernel: 3,
            stride: 1,
            padding: 1,
            dilation: 1,
            down: 6,
            across: 7,
        };
        let channels = 37;
        let tensor = |rows: usize, seed: u32, scale: f32| {
            let values: Vec<f32> = random(rows * channels, seed);
            let values = values.into_iter().map(|x| scale * x).collect();
            Tensor::from_vec(values, (rows, channels), &Device::Cpu).unwrap()
        };
        let (x, factors) = (tensor(42, 1, 4.0), tensor(9, 2, 4.0));
        let run = |activation| -> Vec<f32> {
            let made = weigh_channels(&x, &windows, &factors, None, activation);
            made.unwrap()
                .unwrap()
                .flatten_all()
                .unwrap()
                .to_vec1()
                .unwrap()
        };
        for isa in Isa::of_numbers() {
            isa.force(|| {
                let sums = run(Activation::Identity);
                assert!(sums.iter().any(|&sum| sum > 6.0) && sums.iter().any(|&sum| sum < 0.0));
                for activation in [Activation::Relu, Activation::Relu6, Activation::Silu] {
                    for (&sum, found) in sums.iter().zip(run(activation)) {
                        let wanted = reference::activation(f64::from(sum), activation);
                        assert!(
                            (f64::from(found) - wanted).abs() < 1e-4,
                            "{activation:?} of {sum}"
                        );
                    }
                }
            });
        }
    }
}
