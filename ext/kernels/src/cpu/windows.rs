//! Square windows that move over the places of a map, on the CPU: laid out for a product, and their largest numbers;
//! `depthwise` weighs them channel by channel. Other devices and types get `None`, and compute with tensors.

use std::ops::Range;

use candle_core::{DType, Storage, Tensor};

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::simd::Simd;
use crate::cpu::{build, for_each_range};
use crate::{Error, Result};

/// A map of height · width places, and the windows over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    pub height: usize,
    pub width: usize,
    /// Places of an edge.
    pub kernel: usize,
    pub stride: usize,
    /// Places beside the map, on every side.
    pub padding: usize,
    /// How far places of a window lie apart.
    pub dilation: usize,
    /// How many windows stand below each other, and how many side by side.
    pub down: usize,
    pub across: usize,
}

impl Windows {
    /// Where places of a window on an axis lie, for those on the map: the number of the place in the window, and the
    /// place on the map.
    fn axis(&self, window: usize, size: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
        let (padding, dilation) = (self.padding, self.dilation);
        let start = window * self.stride;
        (0..self.kernel).filter_map(move |tap| {
            let place = (start + tap * dilation).checked_sub(padding)?;
            (place < size).then_some((tap, place))
        })
    }

    fn count(&self) -> usize {
        self.down * self.across
    }

    /// Adds where the channels of the places lie that some windows of a line see: those of each row of the kernel that
    /// lies on the map, `zeros` for places beside it. Returns these rows.
    pub(super) fn seen(
        &self,
        values: &[f32],
        (down, across): (usize, Range<usize>),
        zeros: &[f32],
        places: &mut Vec<*const f32>,
    ) -> Range<usize> {
        let channels = zeros.len();
        let left = across.start * self.stride;
        let width =
            across.len().saturating_sub(1) * self.stride + (self.kernel - 1) * self.dilation + 1;
        let (mut first, mut count) = (0, 0);
        for (row, y) in self.axis(down, self.height) {
            if count == 0 {
                first = row;
            }
            count += 1;
            places.extend(
                (left..left + width).map(|x| match x.checked_sub(self.padding) {
                    Some(x) if x < self.width => {
                        let place = (y * self.width + x) * channels;
                        values[place..place + channels].as_ptr()
                    }
                    _ => zeros.as_ptr(),
                }),
            );
        }
        first..first + count
    }

    /// What some windows of a map see, one row after the other.
    pub(super) fn lay_out(&self, values: &[f32], range: Range<usize>, rows: &mut Vec<f32>) {
        let channels = values.len() / (self.height * self.width);
        let each = self.kernel * self.kernel * channels;
        rows.clear();
        rows.reserve(range.len() * each);
        let room = &mut rows.spare_capacity_mut()[..range.len() * each];
        for (number, row) in range.zip(room.chunks_exact_mut(each)) {
            lay_out(values, self, number, channels, row);
        }
        let length = room.len();
        // SAFETY: each row was written in full.
        unsafe { rows.set_len(length) };
    }

    /// The channels of [places, channels].
    pub(crate) fn channels(&self, x: &Tensor) -> Result<usize> {
        let (places, channels) = x.dims2()?;
        let sound = self.kernel > 0 && self.stride > 0 && self.dilation > 0;
        if places == self.height * self.width && sound {
            return Ok(channels);
        }
        Err(Error::Internal(format!(
            "windows over {}x{} places can't move over {places} rows",
            self.height, self.width
        )))
    }
}

/// The numbers of a dense f32 tensor on the CPU, for as long as `work` reads them.
pub(super) fn numbers<T>(x: &Tensor, work: impl FnOnce(&[f32]) -> T) -> Result<Option<T>> {
    if !x.device().is_cpu() || x.dtype() != DType::F32 {
        return Ok(None);
    }
    let x = x.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Ok(None);
    };
    let all = storage.as_slice::<f32>()?;
    let start = layout.start_offset();
    Ok(all
        .get(start..start + layout.shape().elem_count())
        .map(work))
}

/// What some windows see, counted row by row: [windows, kernel · kernel · channels], zeros beside the map.
pub fn unfold(x: &Tensor, windows: &Windows, range: Range<usize>) -> Result<Option<Tensor>> {
    let channels = windows.channels(x)?;
    let (edge, count) = (windows.kernel * channels, range.len());
    let each = windows.kernel * edge;
    let found = numbers(x, |values| {
        // SAFETY: every row of the output is written once, in full: zeros, then what is on the map.
        unsafe {
            build::<f32>(count * each, |out| {
                for_each_range(count, each, |part| {
                    for at in part {
                        let row = std::slice::from_raw_parts_mut(out.at(at * each).cast(), each);
                        lay_out(values, windows, range.start + at, channels, row);
                    }
                });
            })
        }
    })?;
    let tensor = found.map(|values| Tensor::from_vec(values, (count, each), x.device()));
    Ok(tensor.transpose()?)
}

/// One window; the places of its rows lie side by side where they are not spread.
fn lay_out(
    values: &[f32],
    windows: &Windows,
    number: usize,
    channels: usize,
    row: &mut [std::mem::MaybeUninit<f32>],
) {
    let zero = std::mem::MaybeUninit::new(0f32);
    let (down, across) = (number / windows.across, number % windows.across);
    let columns = windows.axis(across, windows.width);
    let whole = windows.dilation == 1;
    let first = columns.clone().next();
    let kept = columns.clone().count();
    let edge = windows.kernel * channels;
    let mut written = 0;
    for (tap, y) in windows.axis(down, windows.height) {
        row[written..tap * edge].fill(zero);
        let line = &mut row[tap * edge..(tap + 1) * edge];
        match first {
            Some((left, x)) if whole => {
                let seen = &values[(y * windows.width + x) * channels..][..kept * channels];
                let (before, rest) = line.split_at_mut(left * channels);
                let (inside, behind) = rest.split_at_mut(seen.len());
                before.fill(zero);
                copy(seen, inside);
                behind.fill(zero);
            }
            _ => {
                line.fill(zero);
                for (tap, x) in columns.clone() {
                    let seen = &values[(y * windows.width + x) * channels..][..channels];
                    copy(seen, &mut line[tap * channels..][..channels]);
                }
            }
        }
        written = (tap + 1) * edge;
    }
    row[written..].fill(zero);
}

fn copy(from: &[f32], to: &mut [std::mem::MaybeUninit<f32>]) {
    for (to, &from) in to.iter_mut().zip(from) {
        to.write(from);
    }
}

#[inline(always)]
unsafe fn highest_with<S: Simd>(
    taps: *const *const f32,
    count: usize,
    start: *const f32,
    out: *mut f32,
    width: usize,
) {
    // SAFETY: all rows and `out` have `width` numbers, there are `count` taps, and the caller has the instruction set.
    unsafe {
        for_lanes!(S, width, lanes => {
            let mut most = lanes.load::<S>(start);
            for at in 0..count {
                most = S::max(most, lanes.load::<S>(*taps.add(at)));
            }
            lanes.store::<S>(out, most);
        });
    }
}

dispatched! {
    unsafe fn highest(
        taps: *const *const f32, count: usize, start: *const f32, out: *mut f32, width: usize,
    ) = highest_with
}

/// The largest number of each channel in each window, not counting what lies beside the map.
pub fn largest_of_windows(x: &Tensor, windows: &Windows) -> Result<Option<Tensor>> {
    let channels = windows.channels(x)?;
    let least = vec![f32::MIN; channels];
    let found = numbers(x, |values| {
        each_window(values, windows, channels, |isa, taps, out| {
            // SAFETY: each tap points to `channels` numbers of `x`, `out` to a row of as many, and `least` has as many;
            // `isa` was detected.
            unsafe {
                highest(
                    isa,
                    taps.as_ptr(),
                    taps.len(),
                    least.as_ptr(),
                    out,
                    channels,
                )
            };
        })
    })?;
    tensor_of(found.transpose()?, windows, x)
}

pub(super) fn tensor_of(
    values: Option<Vec<f32>>,
    windows: &Windows,
    x: &Tensor,
) -> Result<Option<Tensor>> {
    let shape = (windows.count(), x.dim(1)?);
    let tensor = values.map(|values| Tensor::from_vec(values, shape, x.device()));
    Ok(tensor.transpose()?)
}

/// A row of `channels` numbers for each window, which `write` writes in full.
fn each_window(
    values: &[f32],
    windows: &Windows,
    channels: usize,
    write: impl Fn(Isa, &[*const f32], *mut f32) + Sync,
) -> Result<Vec<f32>> {
    let isa = Isa::current()?;
    let kernel = windows.kernel;
    let cost = kernel * kernel * channels;
    // SAFETY: every row of the output is written once, by `write`.
    Ok(unsafe {
        build::<f32>(windows.count() * channels, |out| {
            for_each_range(windows.count(), cost, |range| {
                let mut taps = Vec::with_capacity(kernel * kernel);
                for number in range {
                    let (down, across) = (number / windows.across, number % windows.across);
                    taps.clear();
                    for (_, y) in windows.axis(down, windows.height) {
                        let columns = windows.axis(across, windows.width);
                        taps.extend(columns.map(|(_, x)| {
                            let place = (y * windows.width + x) * channels;
                            values[place..place + channels].as_ptr()
                        }));
                    }
                    write(isa, &taps, out.at(number * channels));
                }
            });
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_numbers::numbers as random;
    use super::*;
    use crate::cpu::depthwise::weigh_channels;
    use crate::Activation;
    use candle_core::Device;

    fn windows(size: (usize, usize), kernel: usize, stride: usize, padding: usize) -> Windows {
        let count = |size: usize| (size + 2 * padding - kernel) / stride + 1;
        Windows {
            height: size.0,
            width: size.1,
            kernel,
            stride,
            padding,
            dilation: 1,
            down: count(size.0),
            across: count(size.1),
        }
    }

    /// A place of a window, if it is on the map.
    fn place(own: &Windows, number: usize, tap: usize) -> Option<usize> {
        let axis = |window: usize, tap: usize, size: usize| {
            let at = (window * own.stride + tap * own.dilation).checked_sub(own.padding)?;
            (at < size).then_some(at)
        };
        let y = axis(number / own.across, tap / own.kernel, own.height)?;
        let x = axis(number % own.across, tap % own.kernel, own.width)?;
        Some(y * own.width + x)
    }

    #[test]
    fn windows_equal_those_of_the_definition() {
        for (size, channels, kernel, stride, padding, dilation) in [
            ((5, 7), 3, 3, 1, 1, 1),
            ((6, 4), 21, 3, 2, 1, 1),
            ((9, 8), 5, 7, 2, 3, 1),
            ((7, 7), 17, 3, 1, 2, 2),
            ((3, 3), 1, 1, 2, 0, 1),
            ((2, 2), 4, 5, 1, 4, 1),
        ] {
            let mut own = windows(size, kernel, stride, padding);
            own.dilation = dilation;
            let reach = (kernel - 1) * (dilation - 1);
            own.down -= reach / stride;
            own.across -= reach / stride;
            let values = random(size.0 * size.1 * channels, 1);
            let factors = random(kernel * kernel * channels, 2);
            let added = random(channels, 3);
            let shape = (size.0 * size.1, channels);
            let x = Tensor::from_slice(&values, shape, &Device::Cpu).unwrap();
            let taps = Tensor::from_slice(&factors, (kernel * kernel, channels), &Device::Cpu);
            let bias = Tensor::from_slice(&added, channels, &Device::Cpu).unwrap();
            let count = own.count();
            let unfolded = unfold(&x, &own, 1..count).unwrap().unwrap();
            let unfolded: Vec<Vec<f32>> = unfolded.to_vec2().unwrap();
            for isa in Isa::of_numbers() {
                isa.force(|| {
                    let sums = weigh_channels(
                        &x,
                        &own,
                        taps.as_ref().unwrap(),
                        Some(&bias),
                        Activation::Identity,
                    );
                    let sums: Vec<Vec<f32>> = sums.unwrap().unwrap().to_vec2().unwrap();
                    let most = largest_of_windows(&x, &own).unwrap().unwrap();
                    let most: Vec<Vec<f32>> = most.to_vec2().unwrap();
                    for number in 0..count {
                        for channel in 0..channels {
                            let (mut sum, mut high) = (added[channel], f32::MIN);
                            for tap in 0..kernel * kernel {
                                let seen = place(&own, number, tap);
                                let seen = seen.map(|place| values[place * channels + channel]);
                                sum += seen.unwrap_or(0.0) * factors[tap * channels + channel];
                                high = high.max(seen.unwrap_or(f32::MIN));
                                if number > 0 {
                                    let found = unfolded[number - 1][tap * channels + channel];
                                    assert_eq!(found, seen.unwrap_or(0.0));
                                }
                            }
                            assert!((sums[number][channel] - sum).abs() < 1e-4);
                            assert_eq!(most[number][channel], high);
                        }
                    }
                });
            }
        }
    }
}
