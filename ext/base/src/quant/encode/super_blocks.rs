//! Super-blocks of the K types: groups of 16 or 32 numbers whose scales are small integers themselves.

use super::search::{
    affine_search, signed_search, three_bit_search, whole, whole_weighted, Affine, Search,
};
use super::{largest, mean_square, nearest, put_half, Importance, TINY};
use crate::quant::SMALL_BLOCK;

/// Elements of a super-block.
const SUPER: usize = 256;
/// Elements of a group of the types with small groups.
const SMALL_GROUP: usize = 16;

/// The groups of a super-block of a type with minimums.
struct Groups {
    found: Vec<Affine>,
    /// By group: the integers of its scale and its minimum.
    scales: Vec<u8>,
    minimums: Vec<u8>,
    /// What one of each stands for.
    unit: f32,
    lower: f32,
}

impl Groups {
    /// `stretch` is how many times the mean square of the super-block weighs beside a number of known importance.
    fn new(
        values: &[f32],
        importance: Option<Importance<'_>>,
        (width, stretch): (usize, f32),
        (search, steps): (&Search, i32),
    ) -> Self {
        let spread = stretch * mean_square(values);
        let (mut found, mut sums) = (Vec::new(), Vec::new());
        for (number, group) in values.chunks_exact(width).enumerate() {
            match importance {
                Some(importance) => {
                    let weights = importance.weights(group, number * width, spread);
                    let weighted = Search::weighted(search.most);
                    found.push(affine_search(group, &weights, &weighted));
                    sums.push(weights.iter().fold(0.0, |sum, weight| sum + weight));
                }
                None => {
                    let usual = if search.absolute {
                        0.0
                    } else {
                        mean_square(group).sqrt()
                    };
                    let weights: Vec<f32> = group.iter().map(|value| usual + value.abs()).collect();
                    found.push(affine_search(group, &weights, search));
                }
            }
        }
        let whole = |numbers: Vec<f32>| match importance {
            Some(_) => whole_weighted(&numbers, &sums, steps),
            None => whole(&numbers, steps),
        };
        let (scales, unit) = whole(found.iter().map(|group| group.scale).collect());
        let (minimums, lower) = whole(found.iter().map(|group| group.minimum).collect());
        Self {
            found,
            scales,
            minimums,
            unit,
            lower,
        }
    }

    /// The codes of all numbers, after the units were rounded.
    fn codes(&self, values: &[f32], width: usize, most: i32) -> [u8; SUPER] {
        let mut codes = [0; SUPER];
        for (at, (code, &value)) in codes.iter_mut().zip(values).enumerate() {
            let group = at / width;
            let scale = self.unit * f32::from(self.scales[group]);
            let minimum = self.lower * f32::from(self.minimums[group]);
            *code = if scale == 0.0 {
                self.found[group].code(value)
            } else {
                nearest((value + minimum) / scale).clamp(0, most) as u8
            };
        }
        codes
    }

    fn put_units(&mut self, block: &mut [u8], at: usize) {
        self.unit = put_half(block, at, self.unit);
        self.lower = put_half(block, at + 2, self.lower);
    }
}

pub fn q2_k(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let search = Search {
        most: 3,
        first: -0.5,
        step: 0.1,
        tries: 15,
        absolute: true,
    };
    let width = SMALL_GROUP;
    let mut groups = Groups::new(values, importance, (width, 1.0), (&search, 15));
    groups.put_units(block, 80);
    let pairs = groups.scales.iter().zip(&groups.minimums);
    for (byte, (scale, minimum)) in block.iter_mut().zip(pairs) {
        *byte = scale | minimum << 4;
    }
    for (at, code) in groups.codes(values, width, 3).into_iter().enumerate() {
        block[16 + 32 * (at / 128) + at % 32] |= code << (2 * (at % 128 / 32));
    }
}

/// The groups of a super-block whose codes are around zero: scales, and the codes that were found with them.
fn signed_groups(
    values: &[f32],
    importance: Option<Importance<'_>>,
    weights: impl Fn(&Importance<'_>, &[f32], usize) -> Vec<f32>,
    half: i32,
) -> (Vec<f32>, Vec<f32>, Vec<u8>) {
    let (mut scales, mut sums, mut codes) = (Vec::new(), Vec::new(), Vec::new());
    for (number, group) in values.chunks_exact(SMALL_GROUP).enumerate() {
        let weights: Vec<f32> = match &importance {
            Some(importance) => weights(importance, group, number * SMALL_GROUP),
            None => group.iter().map(|value| value * value).collect(),
        };
        let found = signed_search(group, &weights, half);
        scales.push(found.scale);
        sums.push(weights.iter().fold(0.0, |sum, weight| sum + weight));
        codes.extend(group.iter().map(|&value| found.code(value)));
    }
    (scales, sums, codes)
}

/// Codes around zero, counted from the lowest, for the scales of a block as it stores them.
fn signed_codes(values: &[f32], scales: &[f32], found: &[u8], half: i32) -> Vec<u8> {
    let numbers = values.iter().zip(found).enumerate();
    let code = |(at, (value, &found)): (usize, (&f32, &u8))| {
        let scale = scales[at / SMALL_GROUP];
        if scale == 0.0 {
            found
        } else {
            (nearest(value / scale).clamp(-half, half - 1) + half) as u8
        }
    };
    numbers.map(code).collect()
}

pub fn q3_k(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let (found, unit, codes): (Vec<i32>, f32, Vec<u8>) = if importance.is_some() {
        let spread = 2.0 * mean_square(values);
        let weights =
            |one: &Importance<'_>, group: &[f32], first| one.weights(group, first, spread);
        let (scales, sums, codes) = signed_groups(values, importance, weights, 4);
        let units = signed_search(&scales, &sums, 32);
        let whole = scales.iter().map(|&scale| i32::from(units.code(scale)));
        (whole.collect(), units.scale, codes)
    } else {
        let groups = values.chunks_exact(SMALL_GROUP).map(three_bit_search);
        let (scales, codes): (Vec<f32>, Vec<Vec<u8>>) = groups.unzip();
        let farthest = largest(&scales);
        let inverse = if farthest == 0.0 {
            0.0
        } else {
            -32.0 / farthest
        };
        let unit = if inverse == 0.0 { 0.0 } else { 1.0 / inverse };
        let whole = scales.iter().map(|scale| {
            if inverse == 0.0 {
                0
            } else {
                nearest(inverse * scale).clamp(-32, 31) + 32
            }
        });
        (whole.collect(), unit, codes.concat())
    };
    let unit = put_half(block, 108, unit);
    for (group, &whole) in found.iter().enumerate() {
        block[96 + group % 8] |= (whole as u8 & 0x0f) << (4 * (group / 8));
        block[104 + group % 4] |= (whole as u8 >> 4) << (2 * (group / 4));
    }
    let scales: Vec<f32> = found
        .iter()
        .map(|whole| unit * (whole - 32) as f32)
        .collect();
    let codes = signed_codes(values, &scales, &codes, 4);
    for (at, code) in codes.into_iter().enumerate() {
        block[32 + 32 * (at / 128) + at % 32] |= (code & 3) << (2 * (at % 128 / 32));
        block[at % 32] |= (code >> 2) << (at / 32);
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
fn six_bit_groups(
    values: &[f32],
    importance: Option<Importance<'_>>,
    block: &mut [u8],
    search: &Search,
) -> [u8; SUPER] {
    let mut groups = Groups::new(values, importance, (SMALL_BLOCK, 2.0), (search, 63));
    groups.put_units(block, 0);
    put_pairs(&mut block[4..16], &groups.scales, &groups.minimums);
    groups.codes(values, SMALL_BLOCK, search.most)
}

pub fn q4_k(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let search = Search {
        most: 15,
        first: -1.0,
        step: 0.1,
        tries: 20,
        absolute: false,
    };
    let codes = six_bit_groups(values, importance, block, &search);
    for (at, code) in codes.into_iter().enumerate() {
        block[16 + 32 * (at / 64) + at % 32] |= code << (4 * (at % 64 / 32));
    }
}

pub fn q5_k(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let search = Search {
        most: 31,
        first: -0.5,
        step: 0.1,
        tries: 15,
        absolute: false,
    };
    let codes = six_bit_groups(values, importance, block, &search);
    for (at, code) in codes.into_iter().enumerate() {
        block[16 + at % 32] |= (code >> 4) << (at / 32);
        block[48 + 32 * (at / 64) + at % 32] |= (code & 0x0f) << (4 * (at % 64 / 32));
    }
}

pub fn q6_k(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let weights = |one: &Importance<'_>, group: &[f32], first: usize| {
        one.columns[first..first + group.len()].to_vec()
    };
    let (found, _, codes) = signed_groups(values, importance, weights, 32);
    let farthest = largest(&found);
    if farthest.abs() < TINY {
        return;
    }
    let inverse = -128.0 / farthest;
    let unit = put_half(block, 208, 1.0 / inverse);
    let whole = found.iter().map(|scale| nearest(inverse * scale).min(127));
    let whole: Vec<i32> = whole.collect();
    for (byte, &whole) in block[192..208].iter_mut().zip(&whole) {
        *byte = whole as i8 as u8;
    }
    let scales: Vec<f32> = whole.iter().map(|&whole| unit * whole as f32).collect();
    let codes = signed_codes(values, &scales, &codes, 32);
    for (at, code) in codes.into_iter().enumerate() {
        let (half, part, place) = (at / 128, at % 128 / 32, at % 32);
        block[64 * half + 32 * (part % 2) + place] |= (code & 0x0f) << (4 * (part / 2));
        block[128 + 32 * half + place] |= (code >> 4) << (2 * part);
    }
}
