//! From numbers to blocks, by the rules of llama.cpp's own quantizer: the older types round to the nearest code, the
//! others look for the scale (and the minimum) of a group that leaves the least weighted error. An importance matrix
//! weighs the columns of a weight by the inputs that they get.

mod levels;
mod search;
mod super_blocks;

use half::f16;
use rayon::prelude::*;

use super::{BlockType, SMALL_BLOCK};
use crate::runtime::threads;
use crate::{Error, Result};
use search::{affine_search, signed_search, Search};

pub use search::positive_scale;

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
        !matches!(self, Self::Q8_1 | Self::Q8K) && !self.is_grouped()
    }
}

/// What is known of the inputs of a block's columns.
#[derive(Clone, Copy)]
struct Importance<'a> {
    columns: &'a [f32],
    /// The mean square of the numbers of the row.
    spread: f32,
}

impl Importance<'_> {
    /// Weights of the errors of numbers, which are those of the columns from `first` on.
    fn weights(&self, values: &[f32], first: usize, spread: f32) -> Vec<f32> {
        let columns = self.columns[first..].iter().zip(values);
        columns
            .map(|(importance, value)| importance * (spread + value * value).sqrt())
            .collect()
    }
}

/// Whole blocks of numbers, one after the other. `importance` has a number for each column of a row.
pub fn quantize(kind: BlockType, values: &[f32], importance: Option<&[f32]>) -> Result<Vec<u8>> {
    if !kind.is_written() {
        return Err(Error::InvalidInput(format!(
            "numbers can't be quantized to {}",
            kind.name()
        )));
    }
    let columns = importance.map_or(values.len(), <[f32]>::len).max(1);
    let spreads: Vec<f32> = match importance {
        Some(_) => values.chunks(columns).map(mean_square).collect(),
        None => Vec::new(),
    };
    let form = BlockForm {
        name: kind.name(),
        elements: kind.elements(),
        bytes: kind.bytes(),
    };
    each_block(form, values, importance, |number, values, given, block| {
        let row = number * kind.elements() / columns;
        let importance = given.map(|columns| Importance {
            columns,
            spread: spreads[row],
        });
        encode(kind, values, importance, block);
    })
}

/// The size of a type's blocks.
#[derive(Clone, Copy)]
pub struct BlockForm {
    pub name: &'static str,
    pub elements: usize,
    pub bytes: usize,
}

/// Makes blocks of numbers, in parallel: `encode` gets a block's number, its numbers, the importance of its columns
/// (and of those after it), and its bytes, which are 0.
pub fn each_block(
    form: BlockForm,
    values: &[f32],
    importance: Option<&[f32]>,
    encode: impl Fn(usize, &[f32], Option<&[f32]>, &mut [u8]) + Sync,
) -> Result<Vec<u8>> {
    let elements = form.elements;
    if !values.len().is_multiple_of(elements) {
        return Err(Error::InvalidInput(format!(
            "{} numbers do not become whole blocks of {}",
            values.len(),
            form.name
        )));
    }
    if !values.iter().all(|value| value.is_finite()) {
        return Err(Error::InvalidInput(
            "a weight that is not a number (NaN or infinite) can't be quantized".to_owned(),
        ));
    }
    let columns = importance.map_or(values.len(), <[f32]>::len).max(1);
    let usable = |importance: &[f32]| {
        let positive = importance.iter().all(|&one| one >= 0.0 && one.is_finite());
        positive && columns.is_multiple_of(elements) && values.len().is_multiple_of(columns)
    };
    if !importance.is_none_or(usable) {
        return Err(Error::InvalidInput(format!(
            "an importance matrix of {columns} columns does not fit {} numbers in blocks of {elements}, or is not \
             made of numbers from 0 on",
            values.len()
        )));
    }
    let mut blocks = vec![0u8; values.len() / elements * form.bytes];
    threads::install(|| {
        let pairs = blocks.par_chunks_exact_mut(form.bytes);
        let pairs = pairs.zip(values.par_chunks_exact(elements)).enumerate();
        pairs
            .with_min_len(BLOCKS_PER_TASK)
            .for_each(|(number, (block, values))| {
                let first = number * elements % columns;
                encode(number, values, importance.map(|all| &all[first..]), block);
            });
    })?;
    Ok(blocks)
}

fn encode(kind: BlockType, values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    match kind {
        BlockType::Q4_0 => signed::<8>(values, importance, block),
        BlockType::Q5_0 => signed::<16>(values, importance, block),
        BlockType::Q4_1 => affine::<15>(values, importance, block),
        BlockType::Q5_1 => affine::<31>(values, importance, block),
        BlockType::Q8_0 => bytes(values, block),
        BlockType::Q2K => super_blocks::q2_k(values, importance, block),
        BlockType::Q3K => super_blocks::q3_k(values, importance, block),
        BlockType::Q4K => super_blocks::q4_k(values, importance, block),
        BlockType::Q5K => super_blocks::q5_k(values, importance, block),
        BlockType::Q6K => super_blocks::q6_k(values, importance, block),
        BlockType::Iq4Nl => levels::iq4_nl(values, importance, block),
        BlockType::Iq4Xs => levels::iq4_xs(values, importance, block),
        BlockType::Q8_1
        | BlockType::Q8K
        | BlockType::Nf4
        | BlockType::Fp4
        | BlockType::Nf4Bf16
        | BlockType::Nf4F16
        | BlockType::Fp4Bf16
        | BlockType::Fp4F16
        | BlockType::NvFp4
        | BlockType::Iq2
        | BlockType::Fp8
        | BlockType::Int4
        | BlockType::Int8
        | BlockType::E5m2
        | BlockType::Int4Of32
        | BlockType::Int8Of32
        | BlockType::Int4Of16
        | BlockType::Int8Of16 => {}
    }
}

/// The mean of the squares.
pub fn mean_square(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, value| sum + value * value) / values.len() as f32
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

/// The nearest integer, of two the even one.
pub fn nearest(value: f32) -> i32 {
    value.round_ties_even() as i32
}

/// Writes a number in half precision, and returns what it became.
pub fn put_half(block: &mut [u8], at: usize, value: f32) -> f32 {
    let half = f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// Nibbles: element 16 is beside the first.
fn put_nibbles(bytes: &mut [u8], codes: &[u8]) {
    for at in 0..SMALL_BLOCK / 2 {
        bytes[at] = codes[at] & 0x0f | codes[at + SMALL_BLOCK / 2] << 4;
    }
}

/// High bits, where codes have five, and nibbles.
fn put_codes(block: &mut [u8], codes: &[u8; SMALL_BLOCK], five: bool) {
    let start = if five { 4 } else { 0 };
    if five {
        let high = codes.iter().enumerate();
        let high = high.fold(0u32, |bits, (at, code)| bits | u32::from(code >> 4) << at);
        block[..4].copy_from_slice(&high.to_le_bytes());
    }
    put_nibbles(&mut block[start..], codes);
}

/// Without importance the number farthest from zero has the lowest code.
fn signed<const HALF: i32>(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let (scale, codes) = match importance {
        Some(importance) => {
            let weights = importance.weights(values, 0, importance.spread);
            let found = signed_search(values, &weights, HALF);
            let codes = std::array::from_fn(|at| found.code(values[at]));
            (found.scale, codes)
        }
        None => {
            let scale = largest(values) / -(HALF as f32);
            let inverse = inverse(scale);
            let code =
                |value: f32| ((value * inverse + HALF as f32 + 0.5) as i32).min(2 * HALF - 1);
            (scale, std::array::from_fn(|at| code(values[at]) as u8))
        }
    };
    put_half(block, 0, scale);
    put_codes(&mut block[2..], &codes, HALF == 16);
}

fn affine<const MOST: i32>(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let (scale, least, codes) = match importance {
        Some(importance) => {
            let weights = importance.weights(values, 0, importance.spread);
            let found = affine_search(values, &weights, &Search::weighted(MOST));
            let codes = std::array::from_fn(|at| found.code(values[at]));
            (found.scale, -found.minimum, codes)
        }
        None => {
            let least = values.iter().copied().fold(f32::MAX, f32::min);
            let most = values.iter().copied().fold(f32::MIN, f32::max);
            let scale = (most - least) / MOST as f32;
            let inverse = inverse(scale);
            let code = |value: f32| (((value - least) * inverse + 0.5) as i32).min(MOST) as u8;
            (scale, least, std::array::from_fn(|at| code(values[at])))
        }
    };
    put_half(block, 0, scale);
    put_half(block, 2, least);
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
