//! From numbers to blocks, by the rules of llama.cpp's own quantizer: the older types round to the nearest code, the K
//! types look for the scale and the minimum of a group that leave the least weighted error.

use half::f16;
use rayon::prelude::*;

use super::{BlockType, SMALL_BLOCK};
use crate::runtime::threads;
use crate::{Error, Result};

/// Elements of a super-block.
const SUPER: usize = 256;
/// What counts as zero.
const TINY: f32 = 1e-15;
/// Blocks that one task makes at least.
const BLOCKS_PER_TASK: usize = 16;

impl BlockType {
    /// The type of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether numbers can become blocks of this type.
    pub fn is_written(self) -> bool {
        matches!(
            self,
            Self::Q4_0
                | Self::Q4_1
                | Self::Q5_0
                | Self::Q5_1
                | Self::Q8_0
                | Self::Q2K
                | Self::Q3K
                | Self::Q4K
                | Self::Q5K
                | Self::Q6K
        )
    }
}

/// Whole blocks of numbers, one after the other.
pub fn quantize(kind: BlockType, values: &[f32]) -> Result<Vec<u8>> {
    if !kind.is_written() || !values.len().is_multiple_of(kind.elements()) {
        return Err(Error::InvalidInput(format!(
            "{} numbers do not become whole blocks of {}",
            values.len(),
            kind.name()
        )));
    }
    if !values.iter().all(|value| value.is_finite()) {
        return Err(Error::InvalidInput(
            "a weight that is not a number (NaN or infinite) can't be quantized".to_owned(),
        ));
    }
    let mut blocks = vec![0u8; values.len() / kind.elements() * kind.bytes()];
    threads::install(|| {
        let pairs = blocks.par_chunks_exact_mut(kind.bytes());
        let pairs = pairs.zip(values.par_chunks_exact(kind.elements()));
        pairs
            .with_min_len(BLOCKS_PER_TASK)
            .for_each(|(block, values)| encode(kind, values, block));
    })?;
    Ok(blocks)
}

fn encode(kind: BlockType, values: &[f32], block: &mut [u8]) {
    match kind {
        BlockType::Q4_0 => signed::<8>(values, block),
        BlockType::Q5_0 => signed::<16>(values, block),
        BlockType::Q4_1 => affine::<15>(values, block),
        BlockType::Q5_1 => affine::<31>(values, block),
        BlockType::Q8_0 => bytes(values, block),
        BlockType::Q2K => q2_k(values, block),
        BlockType::Q3K => q3_k(values, block),
        BlockType::Q4K => q4_k(values, block),
        BlockType::Q5K => q5_k(values, block),
        BlockType::Q6K => q6_k(values, block),
        _ => {}
    }
}

/// The number that is farthest from zero, the first of several.
fn largest(values: &[f32]) -> f32 {
    let farther = |found: f32, &value: &f32| {
        if value.abs() > found.abs() {
            value
        } else {
            found
        }
    };
    values.iter().fold(0.0, farther)
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 {
        0.0
    } else {
        1.0 / scale
    }
}

fn put_half(block: &mut [u8], at: usize, value: f32) -> f32 {
    let half = f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// High bits, where codes have five, and nibbles: element 16 is beside the first.
fn put_codes(block: &mut [u8], codes: &[u8; SMALL_BLOCK], five: bool) {
    let start = if five { 4 } else { 0 };
    if five {
        let high = codes.iter().enumerate();
        let high = high.fold(0u32, |bits, (at, code)| bits | u32::from(code >> 4) << at);
        block[..4].copy_from_slice(&high.to_le_bytes());
    }
    for at in 0..SMALL_BLOCK / 2 {
        block[start + at] = codes[at] & 0x0f | codes[at + SMALL_BLOCK / 2] << 4;
    }
}

/// The number farthest from zero has the lowest code.
fn signed<const HALF: i32>(values: &[f32], block: &mut [u8]) {
    let scale = largest(values) / -(HALF as f32);
    let inverse = inverse(scale);
    put_half(block, 0, scale);
    let code = |value: f32| ((value * inverse + HALF as f32 + 0.5) as i32).min(2 * HALF - 1) as u8;
    let codes = std::array::from_fn(|at| code(values[at]));
    put_codes(&mut block[2..], &codes, HALF == 16);
}

fn affine<const MOST: i32>(values: &[f32], block: &mut [u8]) {
    let least = values.iter().copied().fold(f32::MAX, f32::min);
    let most = values.iter().copied().fold(f32::MIN, f32::max);
    let scale = (most - least) / MOST as f32;
    let inverse = inverse(scale);
    put_half(block, 0, scale);
    put_half(block, 2, least);
    let code = |value: f32| (((value - least) * inverse + 0.5) as i32).min(MOST) as u8;
    let codes = std::array::from_fn(|at| code(values[at]));
    put_codes(&mut block[4..], &codes, MOST == 31);
}

fn bytes(values: &[f32], block: &mut [u8]) {
    let scale = largest(values).abs() / 127.0;
    let inverse = inverse(scale);
    put_half(block, 0, scale);
    for (byte, value) in block[2..].iter_mut().zip(values) {
        *byte = (value * inverse).round() as i8 as u8;
    }
}

fn nearest(value: f32) -> i32 {
    value.round_ties_even() as i32
}

/// How an affine search weighs errors and what it tries.
struct Search {
    most: i32,
    first: f32,
    tries: usize,
    /// Absolute errors, not squares.
    absolute: bool,
}

/// The scale and the minimum (which is subtracted) of a group that leave the least error, with codes from 0 on.
fn affine_search(values: &[f32], weights: &[f32], search: &Search) -> (f32, f32) {
    let least = values.iter().copied().fold(values[0], f32::min).min(0.0);
    let most = values.iter().copied().fold(values[0], f32::max);
    if most == least {
        return (0.0, -least);
    }
    let pairs = || values.iter().zip(weights);
    // Codes are counted from the minimum that was best so far.
    let code = |inverse: f32, from: f32, value: f32| {
        nearest(inverse * (value - from)).clamp(0, search.most) as f32
    };
    let error = |inverse: f32, from: f32, scale: f32, minimum: f32| {
        pairs().fold(0.0, |sum, (&value, weight)| {
            let off = scale * code(inverse, from, value) + minimum - value;
            sum + weight
                * if search.absolute {
                    off.abs()
                } else {
                    off * off
                }
        })
    };
    let (sum_weights, sum_values) = pairs().fold((0.0, 0.0), |(weights, sum), (value, weight)| {
        (weights + weight, sum + weight * value)
    });
    let inverse = search.most as f32 / (most - least);
    let (mut scale, mut minimum) = (1.0 / inverse, least);
    let mut best = error(inverse, least, scale, minimum);
    for number in 0..=search.tries {
        let from = minimum;
        let inverse = (search.first + 0.1 * number as f32 + search.most as f32) / (most - from);
        let (mut codes, mut squares, mut products) = (0.0, 0.0, 0.0);
        for (&value, weight) in pairs() {
            let code = code(inverse, from, value);
            codes += weight * code;
            squares += weight * code * code;
            products += weight * code * value;
        }
        let determinant = sum_weights * squares - codes * codes;
        if determinant <= 0.0 {
            continue;
        }
        let mut tried = (sum_weights * products - sum_values * codes) / determinant;
        let mut below = (squares * sum_values - codes * products) / determinant;
        if below > 0.0 {
            (below, tried) = (0.0, products / squares);
        }
        let found = error(inverse, from, tried, below);
        if found < best {
            (best, scale, minimum) = (found, tried, below);
        }
    }
    (scale, -minimum)
}

/// The scale of a group whose codes are around zero, which leaves the least error of squared numbers.
fn signed_search(values: &[f32], half: i32) -> f32 {
    let farthest = largest(values);
    if farthest.abs() < TINY {
        return 0.0;
    }
    let sums = |inverse: f32| {
        values
            .iter()
            .fold((0.0f32, 0.0f32), |(products, squares), &value| {
                let code = nearest(inverse * value).clamp(-half, half - 1) as f32;
                let weight = value * value;
                (
                    products + weight * value * code,
                    squares + weight * code * code,
                )
            })
    };
    let (products, squares) = sums(-(half as f32) / farthest);
    let mut scale = if squares > 0.0 {
        products / squares
    } else {
        0.0
    };
    let mut best = scale * products;
    for number in (-9..=9).filter(|&number| number != 0) {
        let (products, squares) = sums(-(half as f32 + 0.1 * number as f32) / farthest);
        if squares > 0.0 && products * products > best * squares {
            scale = products / squares;
            best = scale * products;
        }
    }
    scale
}

/// The scale of a group of Q3_K: codes are moved one by one while that lessens the error.
fn three_bit_search(values: &[f32]) -> f32 {
    const HALF: i32 = 4;
    let farthest = largest(values);
    if farthest.abs() < TINY {
        return 0.0;
    }
    let inverse = -(HALF as f32) / farthest;
    let limited = |code: i32| code.clamp(-HALF, HALF - 1);
    let mut codes: Vec<i32> = values
        .iter()
        .map(|value| limited(nearest(inverse * value)))
        .collect();
    let (mut products, mut squares) = (0.0f32, 0.0f32);
    for (&value, &code) in values.iter().zip(&codes) {
        let weight = value * value;
        products += weight * value * code as f32;
        squares += weight * (code * code) as f32;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (&value, code) in values.iter().zip(&mut codes) {
            let weight = value * value;
            let without = products - weight * value * *code as f32;
            if without <= 0.0 {
                continue;
            }
            let square = squares - weight * (*code * *code) as f32;
            let other = limited(nearest(value * square / without));
            if other == *code {
                continue;
            }
            let (product, square) = (
                without + weight * value * other as f32,
                square + weight * (other * other) as f32,
            );
            if square > 0.0 && product * product * squares > products * products * square {
                (*code, products, squares, changed) = (other, product, square, true);
            }
        }
        if !changed {
            break;
        }
    }
    if squares > 0.0 {
        products / squares
    } else {
        0.0
    }
}

/// Scales and minimums of all groups of a super-block.
fn affine_groups(values: &[f32], width: usize, search: &Search) -> (Vec<f32>, Vec<f32>) {
    let groups = values.chunks_exact(width).map(|group| {
        let squares: f32 = group.iter().fold(0.0, |sum, value| sum + value * value);
        let usual = if search.absolute {
            0.0
        } else {
            (squares / width as f32).sqrt()
        };
        let weights: Vec<f32> = group.iter().map(|value| usual + value.abs()).collect();
        affine_search(group, &weights, search)
    });
    groups.unzip()
}

/// Integers up to `most` for numbers from zero on, and the number that one of them stands for.
fn whole(numbers: &[f32], most: i32) -> (Vec<u8>, f32) {
    let largest = numbers.iter().copied().fold(0.0, f32::max);
    let inverse = if largest > 0.0 {
        most as f32 / largest
    } else {
        0.0
    };
    let whole = numbers
        .iter()
        .map(|number| nearest(inverse * number).clamp(0, most) as u8);
    (whole.collect(), largest / most as f32)
}

fn codes_of(values: &[f32], scale: f32, minimum: f32, most: i32) -> impl Iterator<Item = u8> + '_ {
    values.iter().map(move |value| {
        if scale == 0.0 {
            0
        } else {
            nearest((value + minimum) / scale).clamp(0, most) as u8
        }
    })
}

fn q2_k(values: &[f32], block: &mut [u8]) {
    let search = Search {
        most: 3,
        first: -0.5,
        tries: 15,
        absolute: true,
    };
    let (scales, minimums) = affine_groups(values, 16, &search);
    let ((scales, unit), (minimums, lower)) = (whole(&scales, 15), whole(&minimums, 15));
    let (unit, lower) = (put_half(block, 80, unit), put_half(block, 82, lower));
    for (group, part) in values.chunks_exact(16).enumerate() {
        block[group] = scales[group] | minimums[group] << 4;
        let scale = unit * f32::from(scales[group]);
        let minimum = lower * f32::from(minimums[group]);
        for (at, code) in codes_of(part, scale, minimum, 3).enumerate() {
            let at = 16 * group + at;
            block[16 + 32 * (at / 128) + at % 32] |= code << (2 * (at % 128 / 32));
        }
    }
}

fn q3_k(values: &[f32], block: &mut [u8]) {
    let found: Vec<f32> = values.chunks_exact(16).map(three_bit_search).collect();
    let farthest = largest(&found);
    let inverse = if farthest == 0.0 {
        0.0
    } else {
        -32.0 / farthest
    };
    let unit = if inverse == 0.0 { 0.0 } else { 1.0 / inverse };
    let unit = put_half(block, 108, unit);
    for (group, (part, scale)) in values.chunks_exact(16).zip(&found).enumerate() {
        let whole = if inverse == 0.0 {
            0
        } else {
            nearest(inverse * scale).clamp(-32, 31) + 32
        };
        block[96 + group % 8] |= (whole as u8 & 0x0f) << (4 * (group / 8));
        block[104 + group % 4] |= (whole as u8 >> 4) << (2 * (group / 4));
        let scale = unit * (whole - 32) as f32;
        for (at, value) in part.iter().enumerate() {
            let code = if scale == 0.0 {
                0
            } else {
                (nearest(value / scale).clamp(-4, 3) + 4) as u8
            };
            let at = 16 * group + at;
            block[32 + 32 * (at / 128) + at % 32] |= (code & 3) << (2 * (at % 128 / 32));
            block[at % 32] |= (code >> 2) << (at / 32);
        }
    }
}

/// Eight pairs of six bits in twelve bytes.
fn put_pairs(block: &mut [u8], scales: &[u8], minimums: &[u8]) {
    for at in 0..8 {
        let (scale, minimum) = (scales[at], minimums[at]);
        if at < 4 {
            block[at] |= scale;
            block[at + 4] |= minimum;
        } else {
            block[at + 4] = scale & 0x0f | minimum << 4;
            block[at - 4] |= scale >> 4 << 6;
            block[at] |= minimum >> 4 << 6;
        }
    }
}

/// What Q4_K and Q5_K share: scales and minimums, and a code for every element.
fn six_bit_groups(values: &[f32], block: &mut [u8], search: &Search) -> [u8; SUPER] {
    let (scales, minimums) = affine_groups(values, SMALL_BLOCK, search);
    let ((scales, unit), (minimums, lower)) = (whole(&scales, 63), whole(&minimums, 63));
    let (unit, lower) = (put_half(block, 0, unit), put_half(block, 2, lower));
    put_pairs(&mut block[4..16], &scales, &minimums);
    let mut codes = [0; SUPER];
    for (group, part) in values.chunks_exact(SMALL_BLOCK).enumerate() {
        let scale = unit * f32::from(scales[group]);
        let minimum = lower * f32::from(minimums[group]);
        let found = codes_of(part, scale, minimum, search.most);
        for (code, found) in codes[SMALL_BLOCK * group..].iter_mut().zip(found) {
            *code = found;
        }
    }
    codes
}

fn q4_k(values: &[f32], block: &mut [u8]) {
    let search = Search {
        most: 15,
        first: -1.0,
        tries: 20,
        absolute: false,
    };
    let codes = six_bit_groups(values, block, &search);
    for (at, code) in codes.into_iter().enumerate() {
        block[16 + 32 * (at / 64) + at % 32] |= code << (4 * (at % 64 / 32));
    }
}

fn q5_k(values: &[f32], block: &mut [u8]) {
    let search = Search {
        most: 31,
        first: -0.5,
        tries: 15,
        absolute: false,
    };
    let codes = six_bit_groups(values, block, &search);
    for (at, code) in codes.into_iter().enumerate() {
        block[16 + at % 32] |= (code >> 4) << (at / 32);
        block[48 + 32 * (at / 64) + at % 32] |= (code & 0x0f) << (4 * (at % 64 / 32));
    }
}

fn q6_k(values: &[f32], block: &mut [u8]) {
    let found: Vec<f32> = values
        .chunks_exact(16)
        .map(|group| signed_search(group, 32))
        .collect();
    let farthest = largest(&found);
    if farthest.abs() < TINY {
        return;
    }
    let inverse = -128.0 / farthest;
    let unit = put_half(block, 208, 1.0 / inverse);
    for (group, (part, scale)) in values.chunks_exact(16).zip(&found).enumerate() {
        let whole = nearest(inverse * scale).min(127);
        block[192 + group] = whole as i8 as u8;
        let scale = unit * whole as f32;
        for (at, value) in part.iter().enumerate() {
            let code = if scale == 0.0 {
                0
            } else {
                (nearest(value / scale).clamp(-32, 31) + 32) as u8
            };
            let at = 16 * group + at;
            let (half, part, place) = (at / 128, at % 128 / 32, at % 32);
            block[64 * half + 32 * (part % 2) + place] |= (code & 0x0f) << (4 * (part / 2));
            block[128 + 32 * half + place] |= (code >> 4) << (2 * part);
        }
    }
}
