//! The other factor: rows of x as signed bytes with a scale for every 32 of them.

use super::format::GROUP;
use crate::kernels::cpu::isa::{dispatched, Isa};
use crate::kernels::cpu::simd::Simd;
use crate::kernels::cpu::{build, for_each_range};

/// Below this, 127 / largest may be infinite, and the group counts as 0.
const LEAST: f32 = 1e-35;
/// The largest byte: −128 is not used, so that signs can be swapped.
const MOST: f32 = 127.0;

/// What the 32 bytes of a group share.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    /// Byte × scale is the element.
    pub scale: f32,
    /// The sum of the elements.
    pub sum: f32,
    /// The sums of the first and the last 16 bytes.
    pub byte_sums: [i32; 2],
}

/// Rows of x, [rows, inputs].
pub(super) struct QuantizedRows {
    pub bytes: Vec<i8>,
    /// [rows, inputs / 32].
    pub groups: Vec<Group>,
}

impl QuantizedRows {
    /// `x` is [rows, inputs], its rows whole groups.
    pub fn new(isa: Isa, x: &[f32], rows: usize) -> Self {
        let inputs = x.len() / rows.max(1);
        let mut groups = Vec::new();
        // SAFETY: the tasks cover every row once, and a row fills its bytes and groups.
        let bytes = unsafe {
            build(x.len(), |bytes| {
                groups = build(x.len() / GROUP, |groups| {
                    for_each_range(rows, inputs, |range| {
                        let (from, count) = (range.start * inputs, range.len() * inputs);
                        let (bytes, groups) = (bytes.at(from), groups.at(from / GROUP));
                        quantize(isa, x[from..].as_ptr(), bytes, groups, count / GROUP);
                    })
                })
            })
        };
        Self { bytes, groups }
    }
}

#[inline(always)]
unsafe fn quantize_with<S: Simd>(x: *const f32, bytes: *mut i8, groups: *mut Group, count: usize) {
    // SAFETY: the caller vouches for `count` groups of each.
    unsafe {
        for group in 0..count {
            let x = x.add(group * GROUP);
            let (mut largest, mut broken) = (S::splat(0.0), S::splat(0.0));
            for i in (0..GROUP).step_by(S::LANES) {
                let v = S::load(x.add(i));
                largest = S::max(largest, S::abs(v));
                broken = S::fma(v, S::splat(0.0), broken);
            }
            let largest = S::highest(largest);
            // 0, or NaN where an element is infinite or NaN, which the products then are, too.
            let broken = S::sum(broken);
            let fits = largest > LEAST && broken == 0.0;
            let factor = S::splat(if fits { MOST / largest } else { 0.0 });
            let mut rounded = [0f32; GROUP];
            if fits {
                for i in (0..GROUP).step_by(S::LANES) {
                    let v = S::round(S::mul(S::load(x.add(i)), factor));
                    S::store(rounded.as_mut_ptr().add(i), v);
                }
            }
            let mut byte_sums = [0i32; 2];
            for half in 0..2 {
                let mut values = [0i32; GROUP / 2];
                for i in 0..GROUP / 2 {
                    // Whole numbers of at most 127.
                    values[i] = rounded[half * GROUP / 2 + i].to_int_unchecked();
                }
                for (i, value) in values.into_iter().enumerate() {
                    *bytes.add(group * GROUP + half * GROUP / 2 + i) = value as i8;
                }
                byte_sums[half] = values.iter().sum();
            }
            let scale = if fits { largest / MOST } else { broken };
            *groups.add(group) = Group {
                scale,
                sum: scale * (byte_sums[0] + byte_sums[1]) as f32,
                byte_sums,
            };
        }
    }
}

dispatched! {
    unsafe fn quantize(x: *const f32, bytes: *mut i8, groups: *mut Group, count: usize) = quantize_with
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<f32> {
        (0..5 * 96)
            .map(|i| (i as f32 * 0.7).sin() * (1.0 + (i / 32) as f32))
            .collect()
    }

    #[test]
    fn bytes_times_scale_are_the_elements_to_half_a_step() {
        let x = rows();
        for &isa in Isa::available() {
            let quantized = QuantizedRows::new(isa, &x, 5);
            for (group, (x, bytes)) in x.chunks(32).zip(quantized.bytes.chunks(32)).enumerate() {
                let shared = quantized.groups[group];
                for (x, &byte) in x.iter().zip(bytes) {
                    let off = (f32::from(byte) * shared.scale - x).abs();
                    assert!(off <= 0.5001 * shared.scale, "{isa:?}: {off}");
                }
                for (sum, bytes) in shared.byte_sums.into_iter().zip(bytes.chunks(16)) {
                    assert_eq!(sum, bytes.iter().map(|&byte| i32::from(byte)).sum::<i32>());
                }
                let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                assert_eq!(shared.scale, largest / 127.0);
            }
        }
    }

    #[test]
    fn what_is_not_a_number_spoils_its_group_alone_and_nothing_is_nothing() {
        let mut x = vec![1.0; 4 * 32];
        x[5] = f32::NAN;
        x[32 + 31] = f32::NEG_INFINITY;
        x[64..96].fill(1e-39);
        for &isa in Isa::available() {
            let quantized = QuantizedRows::new(isa, &x, 1);
            let scales: Vec<f32> = quantized.groups.iter().map(|group| group.scale).collect();
            assert!(scales[0].is_nan() && scales[1].is_nan());
            assert_eq!((scales[2], scales[3]), (0.0, 1.0 / 127.0));
            assert!(quantized.bytes[..96].iter().all(|&byte| byte == 0));
            assert!(quantized.bytes[96..].iter().all(|&byte| byte == 127));
        }
    }
}
