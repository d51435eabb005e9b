//! The other factor: rows of x as two planes of signed bytes, with a scale for every 32 of them. The
//! second plane holds what rounding to the first left, which makes an element exact to 1/64516 of the
//! largest of its group: bytes alone move a model's log probabilities by some hundredths.

use super::format::{GROUP, SIGNED};
use super::level::Level;
use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::simd::Simd;
use crate::cpu::{build, for_each_range};

/// Below this, 127 / largest may be infinite, and the group counts as 0.
pub(super) const LEAST: f32 = 1e-35;
/// The largest byte: −128 is not used, so that signs can be swapped.
pub(super) const MOST: f32 = 127.0;
/// Planes of bytes.
pub(super) const PLANES: usize = 2;
/// How many steps of the second plane make one of the first: half a step is its largest byte.
pub(super) const FINER: i32 = 254;

/// Whether the sums of a group's bytes are those of both planes.
pub(super) const JOINED_SUMS: bool = SIGNED;

/// Rounding an element takes as long as copying about this many.
pub(super) const COST: usize = 8;

/// What the 32 bytes of a group in a plane share.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    /// Byte × scale is what the plane adds to the element.
    pub scale: f32,
    /// The sum of the elements as this plane and those before it have them.
    pub sum: f32,
    /// The sums of the first and the last 16 bytes; where they are joined, the last plane has those of the whole
    /// numbers, and those before it have none.
    pub byte_sums: [i32; 2],
}

/// Inputs of a plane that lie side by side.
const EIGHT: usize = 8;

/// Rows of x, as bytes.
pub struct ByteRows {
    /// What multiplies them.
    pub(super) level: Level,
    /// [rows, planes, inputs], or [rows, inputs / 8, planes, 8] where the level joins planes.
    pub(super) bytes: Vec<i8>,
    /// [rows, planes, inputs / 32].
    pub(super) groups: Vec<Group>,
}

impl ByteRows {
    /// `x` is [rows, inputs], its rows whole groups.
    pub(super) fn new((isa, level): (Isa, Level), x: &[f32], rows: usize) -> Self {
        let inputs = x.len() / rows.max(1);
        let width = inputs / GROUP;
        let mut groups = Vec::new();
        // SAFETY: the tasks cover every row once, and a row fills its bytes and groups.
        let bytes = unsafe {
            build(PLANES * rows * inputs, |bytes| {
                groups = build(PLANES * rows * width, |groups| {
                    for_each_range(rows, COST * PLANES * inputs, |range| {
                        for row in range {
                            let x = x[row * inputs..][..inputs].as_ptr();
                            let at = row * PLANES;
                            let bytes = Bytes::new(bytes.at(at * inputs), inputs, level);
                            quantize(isa, x, bytes, groups.at(at * width), width);
                        }
                    })
                })
            })
        };
        Self {
            level,
            bytes,
            groups,
        }
    }
}

/// Where the bytes of a row go.
#[derive(Clone, Copy)]
struct Bytes {
    start: *mut i8,
    /// From plane to plane.
    plane: usize,
    /// From eight inputs to the next.
    eight: usize,
}

impl Bytes {
    fn new(start: *mut i8, inputs: usize, level: Level) -> Self {
        let (plane, eight) = if level.joins_planes() {
            (EIGHT, PLANES * EIGHT)
        } else {
            (inputs, EIGHT)
        };
        Self {
            start,
            plane,
            eight,
        }
    }

    /// # Safety
    /// The row has the plane and the input.
    #[inline(always)]
    unsafe fn at(self, plane: usize, input: usize) -> *mut i8 {
        let eights = input / EIGHT * self.eight + input % EIGHT;
        // SAFETY: the caller vouches for the plane and the input.
        unsafe { self.start.add(plane * self.plane + eights) }
    }
}

#[inline(always)]
unsafe fn quantize_with<S: Simd>(x: *const f32, bytes: Bytes, groups: *mut Group, count: usize) {
    // SAFETY: the caller vouches for `count` groups of x, and of every plane, and has the instruction set of `S`.
    unsafe {
        for group in 0..count {
            let x = x.add(group * GROUP);
            // What is infinite or not a number counts as infinite.
            let endless = S::splat(f32::INFINITY);
            let mut largest = S::splat(0.0);
            for i in (0..GROUP).step_by(S::LANES) {
                let size = S::abs(S::load(x.add(i)));
                largest = S::max(largest, S::select_less(size, endless, size, endless));
            }
            let largest = S::highest(largest);
            let fits = largest > LEAST && largest < f32::INFINITY;
            let to = Bytes {
                start: bytes.at(0, group * GROUP),
                ..bytes
            };
            let byte_sums = if fits {
                round_group::<S>(x, MOST / largest, to)
            } else {
                for plane in 0..PLANES {
                    for input in (0..GROUP).step_by(EIGHT) {
                        to.at(plane, input).write_bytes(0, EIGHT);
                    }
                }
                [[0; 2]; PLANES]
            };
            let mut scale = if fits {
                largest / MOST
            } else if largest == f32::INFINITY {
                // The products are NaN then, too.
                f32::NAN
            } else {
                0.0
            };
            let mut whole = [0; 2];
            for (plane, byte_sums) in byte_sums.into_iter().enumerate() {
                if plane > 0 {
                    scale /= FINER as f32;
                    whole = [whole[0] * FINER, whole[1] * FINER];
                }
                whole = [whole[0] + byte_sums[0], whole[1] + byte_sums[1]];
                *groups.add(plane * count + group) = Group {
                    scale,
                    sum: scale * (whole[0] + whole[1]) as f32,
                    byte_sums: match (JOINED_SUMS, plane + 1 < PLANES) {
                        (false, _) => byte_sums,
                        (true, true) => [0; 2],
                        (true, false) => whole,
                    },
                };
            }
        }
    }
}

/// Writes the bytes of a group; the sums of the first and the last 16 bytes of each plane. Vectors longer than
/// eight are for planes that lie apart.
#[inline(always)]
unsafe fn round_group<S: Simd>(x: *const f32, factor: f32, bytes: Bytes) -> [[i32; 2]; PLANES] {
    const HALF: usize = GROUP / 2;
    // SAFETY: the caller vouches for a group of x and of both planes, and has the instruction set of `S`; what is
    // rounded is at most 127.
    unsafe {
        let factor = S::splat(factor);
        let mut sums = [S::splat(0.0); 2 * PLANES];
        for half in 0..2 {
            for i in (half * HALF..(half + 1) * HALF).step_by(S::LANES) {
                let v = S::mul(S::load(x.add(i)), factor);
                let whole = S::round(v);
                let rest = S::round(S::mul(S::sub(v, whole), S::splat(FINER as f32)));
                for (number, rounded) in [whole, rest].into_iter().enumerate() {
                    S::store_signed_bytes(bytes.at(number, i), rounded);
                    let sum = &mut sums[2 * number + half];
                    *sum = S::add(*sum, rounded);
                }
            }
        }
        let [a, b, c, d] = S::sum_each(sums).map(|sum| sum as i32);
        [[a, b], [c, d]]
    }
}

dispatched! {
    unsafe fn quantize(
        x: *const f32, bytes: Bytes, groups: *mut Group, count: usize,
    ) = quantize_with
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Vec<f32> {
        (0..count * 96)
            .map(|i| (i as f32 * 0.7).sin() * (1.0 + (i / 32) as f32))
            .collect()
    }

    #[test]
    fn the_planes_make_the_elements_and_their_sums() {
        let x = rows(5);
        for isa in Isa::of_numbers() {
            let quantized = ByteRows::new((isa, Level::Portable), &x, 5);
            for (group, x) in x.chunks(32).enumerate() {
                // Three groups in each plane of a row.
                let first = group / 3 * 6 + group % 3;
                let [coarse, fine] = [first, first + 3].map(|at| quantized.groups[at]);
                let bytes = [first, first + 3].map(|at| &quantized.bytes[32 * at..][..32]);
                let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                assert_eq!(coarse.scale, largest / 127.0);
                assert_eq!(fine.scale, coarse.scale / 254.0);
                for (i, x) in x.iter().enumerate() {
                    let [whole, rest] = bytes.map(|bytes| f32::from(bytes[i]));
                    let off = (whole * coarse.scale - x).abs();
                    assert!(off <= 0.5001 * coarse.scale, "{isa:?}: {off}");
                    let off = (whole * coarse.scale + rest * fine.scale - x).abs();
                    assert!(off <= 0.51 * fine.scale, "{isa:?}: {off}");
                }
                let sums = bytes.map(|bytes| {
                    let sum = |half: &[i8]| half.iter().map(|&byte| i32::from(byte)).sum::<i32>();
                    [sum(&bytes[..16]), sum(&bytes[16..])]
                });
                if JOINED_SUMS {
                    let joined = [0, 1].map(|half| 254 * sums[0][half] + sums[1][half]);
                    assert_eq!([coarse.byte_sums, fine.byte_sums], [[0; 2], joined]);
                } else {
                    assert_eq!([coarse.byte_sums, fine.byte_sums], sums);
                }
                let off = (fine.sum - x.iter().sum::<f32>()).abs();
                assert!(off <= 32.0 * fine.scale, "{isa:?}: {off}");
            }
        }
    }

    #[test]
    fn what_is_not_a_number_spoils_its_group_alone_and_nothing_is_nothing() {
        let mut x = vec![1.0; 4 * 32];
        x[5] = f32::NAN;
        x[32 + 31] = f32::NEG_INFINITY;
        x[64..96].fill(1e-39);
        for isa in Isa::of_numbers() {
            let quantized = ByteRows::new((isa, Level::Portable), &x, 1);
            for plane in 0..2 {
                let scale = |group: usize| quantized.groups[4 * plane + group].scale;
                assert!(scale(0).is_nan() && scale(1).is_nan() && scale(2) == 0.0);
                let bytes = &quantized.bytes[128 * plane..][..128];
                assert!(bytes[..96].iter().all(|&byte| byte == 0));
                let whole = if plane == 0 { 127 } else { 0 };
                assert!(bytes[96..].iter().all(|&byte| byte == whole));
            }
        }
    }
}
