//! Types whose codes stand for uneven levels.

use super::{inverse, largest, mean_square, nearest, put_half, put_nibbles, Importance, TINY};
use crate::quant::blocks::IQ4_LEVELS;
use crate::quant::SMALL_BLOCK;

/// How far the lowest level is moved to either side.
const TRIES: i32 = 7;

/// The level that is nearest to a number, the upper of two.
fn level(number: f32) -> usize {
    let above = IQ4_LEVELS
        .iter()
        .position(|&level| f32::from(level) > number);
    match above {
        Some(0) => 0,
        Some(above) => {
            let [lower, upper] = [above - 1, above].map(|at| f32::from(IQ4_LEVELS[at]));
            if number - lower < upper - number {
                above - 1
            } else {
                above
            }
        }
        None => IQ4_LEVELS.len() - 1,
    }
}

/// The scale of 32 numbers that leaves the least error.
fn scale_of(values: &[f32], weights: &[f32]) -> f32 {
    let farthest = largest(values);
    if farthest.abs() < TINY {
        return 0.0;
    }
    let sums = |inverse: f32| {
        let pairs = values.iter().zip(weights);
        pairs.fold((0.0f32, 0.0f32), |(products, squares), (value, weight)| {
            let level = f32::from(IQ4_LEVELS[level(inverse * value)]);
            (
                products + weight * level * value,
                squares + weight * level * level,
            )
        })
    };
    let lowest = f32::from(IQ4_LEVELS[0]);
    let (products, squares) = sums(1.0 / (-farthest / lowest));
    let mut scale = if squares > 0.0 {
        products / squares
    } else {
        0.0
    };
    let mut best = scale * products;
    for number in -TRIES..=TRIES {
        let (products, squares) = sums((number as f32 + lowest) / farthest);
        if squares > 0.0 && products * products > best * squares {
            scale = products / squares;
            best = scale * products;
        }
    }
    scale
}

/// The scales of all groups of a block.
fn scales(values: &[f32], importance: Option<Importance<'_>>) -> Vec<f32> {
    let spread = 2.0 * mean_square(values);
    let groups = values.chunks_exact(SMALL_BLOCK).enumerate();
    let one = |(number, group): (usize, &[f32])| {
        let weights = match &importance {
            Some(importance) => importance.weights(group, number * SMALL_BLOCK, spread),
            None => group.iter().map(|value| value * value).collect(),
        };
        scale_of(group, &weights)
    };
    groups.map(one).collect()
}

fn put_levels(bytes: &mut [u8], values: &[f32], scale: f32) {
    let inverse = inverse(scale);
    let codes: Vec<u8> = values
        .iter()
        .map(|value| level(inverse * value) as u8)
        .collect();
    put_nibbles(bytes, &codes);
}

pub fn iq4_nl(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let scale = scales(values, importance)[0];
    put_half(block, 0, scale);
    put_levels(&mut block[2..], values, scale);
}

pub fn iq4_xs(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let scales = scales(values, importance);
    let unit = -largest(&scales) / 32.0;
    put_half(block, 0, unit);
    let inverse = inverse(unit);
    let groups = values.chunks_exact(SMALL_BLOCK).zip(&scales).enumerate();
    let mut high = 0u16;
    for (group, (values, scale)) in groups {
        let whole = nearest(inverse * scale).clamp(-32, 31);
        let bytes = &mut block[8 + SMALL_BLOCK / 2 * group..];
        put_levels(bytes, values, unit * whole as f32);
        let whole = (whole + 32) as u16;
        block[4 + group / 2] |= (whole as u8 & 0x0f) << (4 * (group % 2));
        high |= (whole >> 4) << (2 * group);
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
}
