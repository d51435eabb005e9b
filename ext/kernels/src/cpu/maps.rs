//! Rows of maps on the CPU: weighed, added and laid side by side by all threads. Other devices and types get `None`, and
//! compute with tensors.

use candle_core::{DType, Storage, Tensor};

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::rows::activation::activate_row;
use crate::cpu::simd::Simd;
use crate::cpu::{build, for_each_range};
use crate::{Activation, Error, Result};

/// Elements that a core's cache keeps between two steps.
const BLOCK: usize = 4096;

/// Four rows, by number, and the share of each.
pub type Corners = [(u32, f32); 4];

/// The numbers of dense f32 tensors on the CPU, for as long as `work` reads them.
fn all_numbers<T>(all: &[&Tensor], work: impl FnOnce(&[&[f32]]) -> T) -> Result<Option<T>> {
    let dense = |x: &&Tensor| x.device().is_cpu() && x.dtype() == DType::F32 && x.is_contiguous();
    if !all.iter().all(dense) {
        return Ok(None);
    }
    let guards: Vec<_> = all.iter().map(|x| x.storage_and_layout()).collect();
    let mut found = Vec::with_capacity(guards.len());
    for (storage, layout) in &guards {
        let Storage::Cpu(storage) = &**storage else {
            return Ok(None);
        };
        let (start, count) = (layout.start_offset(), layout.shape().elem_count());
        let numbers = storage.as_slice::<f32>()?.get(start..start + count);
        found.push(numbers.ok_or_else(|| Error::Internal("a tensor beyond its storage".into()))?);
    }
    Ok(Some(work(&found)))
}

/// A row and its share of a sum.
#[derive(Clone, Copy)]
struct Part {
    row: *const f32,
    share: f32,
}

/// [places, channels] of [channels, places].
pub fn interleaved(planes: &[f32], channels: usize) -> Vec<f32> {
    let places = planes.len() / channels.max(1);
    // SAFETY: every number of the output is written once; `planes` has as many.
    unsafe {
        build::<f32>(places * channels, |out| {
            for_each_range(places, channels, |range| {
                for (channel, plane) in planes.chunks_exact(places.max(1)).enumerate() {
                    for (place, &number) in range.clone().zip(&plane[range.clone()]) {
                        out.at(place * channels + channel).write(number);
                    }
                }
            });
        })
    }
}

#[inline(always)]
unsafe fn mix_with<S: Simd>(parts: *const Part, out: *mut f32, width: usize) {
    // SAFETY: there are four parts, their rows and `out` have `width` numbers, and the caller has the instruction set.
    unsafe {
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| *parts.add(at));
        for_lanes!(S, width, lanes => {
            let sum = S::mul(lanes.load::<S>(a.row), S::splat(a.share));
            let sum = S::fma(lanes.load::<S>(b.row), S::splat(b.share), sum);
            let sum = S::fma(lanes.load::<S>(c.row), S::splat(c.share), sum);
            let sum = S::fma(lanes.load::<S>(d.row), S::splat(d.share), sum);
            lanes.store::<S>(out, sum);
        });
    }
}

#[inline(always)]
unsafe fn add_with<S: Simd>(a: *const f32, b: *const f32, out: *mut f32, width: usize) {
    // SAFETY: all three have `width` numbers, and the caller has the instruction set.
    unsafe {
        for_lanes!(S, width, lanes => {
            lanes.store::<S>(out, S::add(lanes.load::<S>(a), lanes.load::<S>(b)));
        });
    }
}

dispatched! {
    unsafe fn mix(parts: *const Part, out: *mut f32, width: usize) = mix_with
}
dispatched! {
    unsafe fn add(a: *const f32, b: *const f32, out: *mut f32, width: usize) = add_with
}

/// For each of `corners` the sum of four rows of `x`, [rows, channels], times their shares.
pub fn mixed_rows(x: &Tensor, corners: &[Corners]) -> Result<Option<Tensor>> {
    let (rows, channels) = x.dims2()?;
    if corners
        .iter()
        .flatten()
        .any(|&(row, _)| row as usize >= rows)
    {
        return Err(Error::Internal(format!(
            "{rows} rows have no corners beyond them"
        )));
    }
    let isa = Isa::current()?;
    let found = all_numbers(&[x], |all| {
        // SAFETY: every row of the output is written once; rows by number are there, as was checked.
        unsafe {
            build::<f32>(corners.len() * channels, |out| {
                for_each_range(corners.len(), 4 * channels, |range| {
                    for at in range {
                        let parts = corners[at].map(|(row, share)| Part {
                            row: all[0][row as usize * channels..].as_ptr(),
                            share,
                        });
                        mix(isa, parts.as_ptr(), out.at(at * channels), channels);
                    }
                });
            })
        }
    })?;
    let tensor =
        found.map(|values| Tensor::from_vec(values, (corners.len(), channels), x.device()));
    Ok(tensor.transpose()?)
}

/// activation(a + b), of tensors of one shape.
pub fn activated_sum(a: &Tensor, b: &Tensor, activation: Activation) -> Result<Option<Tensor>> {
    if a.dims() != b.dims() {
        return Ok(None);
    }
    let (count, isa) = (a.elem_count(), Isa::current()?);
    let found = all_numbers(&[a, b], |all| {
        // SAFETY: ranges cover all blocks, and each is written by the sum before the activation reads it.
        unsafe {
            build::<f32>(count, |out| {
                for_each_range(count.div_ceil(BLOCK), BLOCK, |range| {
                    for start in range.map(|block| block * BLOCK) {
                        let width = BLOCK.min(count - start);
                        let (a, b) = (all[0][start..].as_ptr(), all[1][start..].as_ptr());
                        let sum = out.at(start);
                        add(isa, a, b, sum, width);
                        activate_row(isa, sum, std::ptr::null(), sum, width, activation);
                    }
                });
            })
        }
    })?;
    let tensor = found.map(|values| Tensor::from_vec(values, a.shape(), a.device()));
    Ok(tensor.transpose()?)
}

fn shapes(parts: &[&Tensor]) -> Result<Vec<(usize, usize)>> {
    parts.iter().map(|x| Ok(x.dims2()?)).collect()
}

/// Rows of [rows, …] side by side: [rows, sum of widths].
pub fn side_by_side(parts: &[&Tensor]) -> Result<Option<Tensor>> {
    let shapes = shapes(parts)?;
    let Some(&(rows, _)) = shapes.first() else {
        return Ok(None);
    };
    if shapes.iter().any(|&(other, _)| other != rows) {
        return Ok(None);
    }
    let whole: usize = shapes.iter().map(|&(_, width)| width).sum();
    let found = all_numbers(parts, |all| {
        // SAFETY: the widths of a row's parts add up to its own, so every element is written once.
        unsafe {
            build::<f32>(rows * whole, |out| {
                for_each_range(rows, whole, |range| {
                    for at in range {
                        let mut to = at * whole;
                        for (part, &(_, width)) in all.iter().zip(&shapes) {
                            let from = part[at * width..][..width].as_ptr();
                            std::ptr::copy_nonoverlapping(from, out.at(to), width);
                            to += width;
                        }
                    }
                });
            })
        }
    })?;
    let tensor = found.map(|values| Tensor::from_vec(values, (rows, whole), parts[0].device()));
    Ok(tensor.transpose()?)
}

/// Tensors of [rows, width] below each other.
pub fn stacked(parts: &[&Tensor]) -> Result<Option<Tensor>> {
    let shapes = shapes(parts)?;
    let Some(&(_, width)) = shapes.first() else {
        return Ok(None);
    };
    if shapes.iter().any(|&(_, other)| other != width) {
        return Ok(None);
    }
    let rows: usize = shapes.iter().map(|&(rows, _)| rows).sum();
    let found = all_numbers(parts, |all| {
        // SAFETY: the parts' lengths add up to the whole, and ranges cover each part.
        unsafe {
            build::<f32>(rows * width, |out| {
                let mut start = 0;
                for part in all {
                    for_each_range(part.len(), 1, |range| {
                        let from = part[range.clone()].as_ptr();
                        std::ptr::copy_nonoverlapping(
                            from,
                            out.at(start + range.start),
                            range.len(),
                        );
                    });
                    start += part.len();
                }
            })
        }
    })?;
    let tensor = found.map(|values| Tensor::from_vec(values, (rows, width), parts[0].device()));
    Ok(tensor.transpose()?)
}

#[cfg(test)]
mod tests {
    use super::super::test_numbers::numbers as random;
    use super::*;
    use candle_core::Device;

    fn tensor(rows: usize, width: usize, seed: u32) -> Tensor {
        let values = random(rows * width, seed);
        Tensor::from_vec(values, (rows, width), &Device::Cpu).unwrap()
    }

    fn values(x: &Tensor) -> Vec<f32> {
        x.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn planes_become_channels_of_places() {
        for (channels, places) in [(3, 1), (3, 10_007), (1, 5), (7, 2000)] {
            let planes = tensor(channels, places, 1);
            let wanted = values(&planes.t().unwrap().contiguous().unwrap());
            assert_eq!(interleaved(&values(&planes), channels), wanted);
        }
        assert!(interleaved(&[], 3).is_empty());
    }

    #[test]
    fn rows_are_joined_as_tensors_join_them() {
        for (rows, widths) in [(1, [3, 1, 2]), (517, [64, 7, 33]), (5, [2, 4, 1])] {
            let parts = [1, 2, 3].map(|seed| tensor(rows, widths[seed as usize - 1], seed));
            let parts: Vec<&Tensor> = parts.iter().collect();
            let wanted = Tensor::cat(&parts, 1).unwrap();
            let found = side_by_side(&parts).unwrap().unwrap();
            assert_eq!(
                (found.dims(), values(&found)),
                (wanted.dims(), values(&wanted))
            );
        }
        let parts = [(300, 1), (1, 2), (2000, 3)].map(|(rows, seed)| tensor(rows, 37, seed));
        let parts: Vec<&Tensor> = parts.iter().collect();
        let wanted = Tensor::cat(&parts, 0).unwrap();
        let found = stacked(&parts).unwrap().unwrap();
        assert_eq!(
            (found.dims(), values(&found)),
            (wanted.dims(), values(&wanted))
        );
        let half = parts[0].to_dtype(DType::F16).unwrap();
        assert!(stacked(&[&half]).unwrap().is_none());
        assert!(side_by_side(&[parts[0], parts[1]]).unwrap().is_none());
    }

    #[test]
    fn sums_equal_their_definition() {
        let (x, y) = (tensor(211, 45, 1), tensor(211, 45, 2));
        let corners: Vec<Corners> = (0..97u32)
            .map(|at| [0, 1, 2, 3].map(|step| (at * 2 + step, (at + step) as f32 / 50.0 - 0.7)))
            .collect();
        let (a, b) = (values(&x), values(&y));
        for &isa in Isa::available() {
            isa.force(|| {
                let found = values(&mixed_rows(&x, &corners).unwrap().unwrap());
                for (at, corners) in corners.iter().enumerate() {
                    for channel in 0..45 {
                        let part =
                            |&(row, share): &(u32, f32)| a[row as usize * 45 + channel] * share;
                        let wanted: f32 = corners.iter().map(part).sum();
                        assert!((found[at * 45 + channel] - wanted).abs() < 1e-5);
                    }
                }
                let sum = activated_sum(&x, &y, Activation::Relu).unwrap().unwrap();
                for (found, (a, b)) in values(&sum).into_iter().zip(a.iter().zip(&b)) {
                    assert_eq!(found, (a + b).max(0.0));
                }
            });
        }
        assert!(mixed_rows(&x, &[[(0, 1.0), (1, 1.0), (211, 1.0), (2, 1.0)]]).is_err());
    }
}
