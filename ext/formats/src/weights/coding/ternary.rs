//! Types with three levels: IQ1, whose levels are moved by an eighth, and TQ.

use super::books;
use super::{odd_code, weights};
use base::quant::{mean_square, put_half};
use half::f16;

/// Levels that are moved up, and down.
const MOVED: [[f32; 3]; 2] = [[-0.875, 0.125, 1.125], [-1.125, -0.125, 0.875]];
/// What the unit of a block is multiplied by.
const IQ1_S_FACTOR: f32 = 1.125;
const IQ1_M_FACTOR: f32 = 1.1125;
/// The largest multiple of a block's unit that a scale is.
const LARGEST_SCALE: f32 = 15.0;

/// What stands for numbers that share a scale.
struct Found {
    scale: f32,
    /// By eight numbers: the entry of the codebook, and the row of `MOVED`.
    parts: Vec<(u16, usize)>,
}

/// A split of sorted numbers into three levels: where the second and the third begin.
struct Split {
    scale: f32,
    second: usize,
    third: usize,
    /// By part: the row of `MOVED`.
    moved: Vec<usize>,
}

/// The best split so far, by what it explains.
struct Best {
    score: f32,
    split: Option<Split>,
}

impl Best {
    fn offer(
        &mut self,
        (products, squares): (f32, f32),
        (second, third): (usize, usize),
        moved: &[usize],
    ) {
        if squares > 0.0 && products * products > self.score * squares {
            let scale = products / squares;
            self.score = scale * products;
            self.split = Some(Split {
                scale,
                second,
                third,
                moved: moved.to_vec(),
            });
        }
    }
}

/// Every split of 32 numbers with both moves.
fn best_of_32(values: &[f32], weights: &[f32], order: &[usize]) -> Option<Split> {
    let count = values.len();
    let (mut sums, mut weighs) = (vec![0.0f32], vec![0.0f32]);
    for (at, &index) in order.iter().enumerate() {
        sums.push(sums[at] + weights[index] * values[index]);
        weighs.push(weighs[at] + weights[index]);
    }
    let mut best = Best {
        score: f32::MIN,
        split: None,
    };
    for second in 0..=count {
        for third in second..=count {
            let thirds = |all: &[f32]| {
                [
                    all[second] - all[0],
                    all[third] - all[second],
                    all[count] - all[third],
                ]
            };
            let (x, w) = (thirds(&sums), thirds(&weighs));
            for (row, level) in MOVED.iter().enumerate() {
                let products = x[0] * level[0] + x[1] * level[1] + x[2] * level[2];
                let squares = w[0] * level[0] * level[0]
                    + w[1] * level[1] * level[1]
                    + w[2] * level[2] * level[2];
                best.offer((products, squares), (second, third), &[row; 4]);
            }
        }
    }
    best.split
}

/// Every split of 16 numbers, whose halves are moved apart from each other. Levels are one apart, so that a sum over
/// them is that of the highest less those of the numbers below the splits.
fn best_of_16(values: &[f32], weights: &[f32], order: &[usize]) -> Option<Split> {
    let count = values.len();
    let mut sums = [vec![0.0f32], vec![0.0f32]];
    let mut weighs = [vec![0.0f32], vec![0.0f32]];
    for (at, &index) in order.iter().enumerate() {
        for half in 0..2 {
            let inside = index / (count / 2) == half;
            let (sum, weigh) = (sums[half][at], weighs[half][at]);
            sums[half].push(if inside {
                sum + weights[index] * values[index]
            } else {
                sum
            });
            weighs[half].push(if inside {
                weigh + weights[index]
            } else {
                weigh
            });
        }
    }
    let mut best = Best {
        score: f32::MIN,
        split: None,
    };
    for second in 0..=count {
        for third in second..=count {
            let of = |half: usize, row: usize| {
                let level = MOVED[row];
                let below = sums[half][second] + sums[half][third];
                let [first, next] =
                    [0, 1].map(|at| level[at] * level[at] - level[at + 1] * level[at + 1]);
                let (all, weigh) = (sums[half][count], &weighs[half]);
                (
                    all * level[2] - below,
                    weigh[count] * level[2] * level[2]
                        + weigh[second] * first
                        + weigh[third] * next,
                )
            };
            for moved in [[0, 0], [0, 1], [1, 0], [1, 1]] {
                let (one, other) = (of(0, moved[0]), of(1, moved[1]));
                best.offer((one.0 + other.0, one.1 + other.1), (second, third), &moved);
            }
        }
    }
    best.split
}

/// The scale, entries and moves of numbers that leave little error; `None` for zeros.
fn search(values: &[f32], weights: &[f32], tiny: f32) -> Option<Found> {
    let most = values
        .iter()
        .fold(0.0f32, |most, value| most.max(value.abs()));
    if most < tiny {
        return None;
    }
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| {
        values[a]
            .partial_cmp(&values[b])
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let mut split = if values.len() == 16 {
        best_of_16(values, weights, &order)?
    } else {
        best_of_32(values, weights, &order)?
    };
    let mut codes = vec![0i8; values.len()];
    for (at, &index) in order.iter().enumerate() {
        codes[index] = i8::from(at >= split.second) + i8::from(at >= split.third);
    }
    if split.scale < 0.0 {
        codes.iter_mut().for_each(|code| *code = 2 - *code);
        split.moved.iter_mut().for_each(|row| *row = 1 - *row);
        split.scale = -split.scale;
    }
    Some(placed(values, weights, &codes, split))
}

/// Entries of the codebook for codes, and the scale that fits them.
fn placed(values: &[f32], weights: &[f32], codes: &[i8], split: Split) -> Found {
    let book = books::iq1();
    let mut found = Found {
        scale: split.scale,
        parts: Vec::new(),
    };
    let mut all_on = true;
    for ((part, codes), &row) in codes.chunks_exact(8).enumerate().zip(&split.moved) {
        let codes: [i8; 8] = std::array::from_fn(|at| codes[at]);
        let near = (&values[8 * part..][..8], &weights[8 * part..][..8]);
        all_on &= book.place(&codes).is_some();
        found
            .parts
            .push((book.nearest(&codes, near, split.scale, &MOVED[row]), row));
    }
    if !all_on {
        let (products, squares) = sums(values, weights, &found.parts, 1.0);
        if products > 0.0 && squares > 0.0 {
            found.scale = products / squares;
        }
    }
    found
}

fn sums(values: &[f32], weights: &[f32], parts: &[(u16, usize)], times: f32) -> (f32, f32) {
    let levels = parts.iter().flat_map(|&(entry, row)| {
        books::iq1().entries[usize::from(entry)].map(|code| MOVED[row][code as usize] * times)
    });
    let pairs = values.iter().zip(weights).zip(levels);
    pairs.fold(
        (0.0, 0.0),
        |(products, squares), ((value, weight), level)| {
            (
                products + weight * level * value,
                squares + weight * level * level,
            )
        },
    )
}

pub fn iq1_s(values: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    const WIDTH: usize = 32;
    let spread = 2.0 * mean_square(values);
    let groups = values.chunks_exact(WIDTH).enumerate();
    let found: Vec<Option<Found>> = groups
        .map(|(group, values)| {
            search(
                values,
                &weights(columns, values, group * WIDTH, spread),
                1e-12,
            )
        })
        .collect();
    let scale = |found: &Option<Found>| found.as_ref().map_or(0.0, |found| found.scale);
    let largest = found.iter().map(scale).fold(0.0, f32::max);
    let unit = largest / LARGEST_SCALE;
    if largest > 0.0 {
        put_half(block, 0, unit * IQ1_S_FACTOR);
    }
    for (group, found) in found.iter().enumerate() {
        let mut high = 0u16;
        for (part, (entry, row)) in found.iter().flat_map(|found| &found.parts).enumerate() {
            block[2 + 4 * group + part] = *entry as u8;
            high |= (entry >> 8) << (3 * part);
            if part == 0 && largest > 0.0 {
                high |= (*row as u16) << 15;
            }
        }
        if largest > 0.0 {
            high |= (odd_code(1.0 / unit, scale(found), 7) as u16) << 12;
        }
        block[34 + 2 * group..][..2].copy_from_slice(&high.to_le_bytes());
    }
}

pub fn iq1_m(values: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    const WIDTH: usize = 16;
    let spread = 2.0 * mean_square(values);
    let groups = values.chunks_exact(WIDTH).enumerate();
    let weighed: Vec<(&[f32], Vec<f32>)> = groups
        .map(|(group, values)| (values, weights(columns, values, group * WIDTH, spread)))
        .collect();
    let found: Vec<Option<Found>> = weighed
        .iter()
        .map(|(values, weights)| search(values, weights, 1e-7))
        .collect();
    let scale = |found: &Option<Found>| found.as_ref().map_or(0.0, |found| found.scale);
    let largest = found.iter().map(scale).fold(0.0, f32::max);
    if largest == 0.0 {
        return;
    }
    let unit = largest / LARGEST_SCALE;
    let (mut products, mut squares, mut words) = (0.0, 0.0, [0u16; 4]);
    for (group, found) in found.iter().enumerate() {
        let code = odd_code(1.0 / unit, scale(found), 7);
        words[group / 4] |= (code as u16) << (3 * (group % 4));
        // A group of zeros has the first entry, which counts in the unit.
        let parts = found
            .as_ref()
            .map_or(vec![(0, 0); 2], |found| found.parts.clone());
        for (part, (entry, row)) in parts.iter().enumerate() {
            block[2 * group + part] = *entry as u8;
            block[32 + group] |= ((entry >> 8) as u8 | (*row as u8) << 3) << (4 * part);
        }
        let (values, weights) = &weighed[group];
        (products, squares) = added((products, squares), values, weights, &parts, code);
    }
    let unit = if squares > 0.0 {
        products / squares
    } else {
        unit
    };
    let bits = f16::from_f32(unit * IQ1_M_FACTOR).to_bits();
    for (at, word) in words.into_iter().enumerate() {
        let word = word | (bits >> (4 * at)) << 12;
        block[48 + 2 * at..][..2].copy_from_slice(&word.to_le_bytes());
    }
}

/// Sums that go on over the groups of a block, number by number.
fn added(
    (mut products, mut squares): (f32, f32),
    values: &[f32],
    weights: &[f32],
    parts: &[(u16, usize)],
    code: u32,
) -> (f32, f32) {
    let times = (2 * code + 1) as f32;
    for (at, (value, weight)) in values.iter().zip(weights).enumerate() {
        let (entry, row) = parts[at / 8];
        let code = books::iq1().entries[usize::from(entry)][at % 8];
        let level = MOVED[row][code as usize] * times;
        products += weight * level * value;
        squares += weight * level * level;
    }
    (products, squares)
}

/// The scale, and digits from 0 to 2.
fn digits(values: &[f32]) -> (f32, Vec<u8>) {
    let most = values
        .iter()
        .fold(0.0f32, |most, value| most.max(value.abs()));
    let inverse = if most == 0.0 { 0.0 } else { 1.0 / most };
    let digit = |value: &f32| ((value * inverse).round() + 1.0) as u8;
    (most, values.iter().map(digit).collect())
}

/// Digits of base 3 as a fraction of 256, rounded up, the first one the highest.
fn fraction(digits: impl Iterator<Item = u8>) -> u8 {
    let number = digits.fold(0u16, |number, digit| 3 * number + u16::from(digit));
    (number * 256).div_ceil(243) as u8
}

pub fn tq1_0(values: &[f32], block: &mut [u8]) {
    let (scale, digits) = digits(values);
    put_half(block, 52, scale);
    // 32 bytes with five digits each, 16 with five, and four with four.
    for (byte, place) in block[..52].iter_mut().zip(0..) {
        let (start, width, count) = match place {
            0..32 => (0, 32, 5),
            32..48 => (160 - 32, 16, 5),
            _ => (240 - 48, 4, 4),
        };
        let digit = |number: usize| digits.get(start + place + width * number).copied();
        let found = (0..5).map(|number| {
            if number < count {
                digit(number).unwrap_or(0)
            } else {
                0
            }
        });
        *byte = fraction(found);
    }
}

pub fn tq2_0(values: &[f32], block: &mut [u8]) {
    let (scale, digits) = digits(values);
    put_half(block, 64, scale);
    for (at, digit) in digits.into_iter().enumerate() {
        block[32 * (at / 128) + at % 32] |= (digit & 3) << (2 * (at % 128 / 32));
    }
}
