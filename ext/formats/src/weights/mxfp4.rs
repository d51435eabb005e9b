//! MXFP4, gpt-oss's format: blocks of 32 elements share a power of two, and each is one of 16 levels.
//!
//! All levels are whole multiples of half a scale, so that a block has the same numbers in Q5_0, for which every
//! backend has kernels. Only scales beyond half precision have none; such tensors are expanded.

use half::f16;
use rayon::prelude::*;

use crate::Result;
use base::runtime::threads;

/// Elements of a block.
pub const ELEMENTS: usize = 32;
/// A byte for the scale, and half a byte for each element.
pub const BYTES: usize = 1 + ELEMENTS / 2;

/// Bytes of a block of Q5_0, which has as many elements.
const Q5_0_BYTES: usize = 22;
/// Blocks that one task converts at least.
const BLOCKS_PER_TASK: usize = 1024;

/// The levels of the 16 codes, in halves of the scale.
pub const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// What Q5_0 takes from its codes.
const OFFSET: i8 = 16;

/// Half the scale that a byte stands for: two to the power of it less 128.
pub fn half_scale(byte: u8) -> f32 {
    // Below the normal numbers a power is one bit of the mantissa.
    f32::from_bits(match u32::from(byte) {
        byte @ 0..2 => 0x0020_0000 << byte,
        byte => (byte - 1) << 23,
    })
}

/// The levels of a block's elements: the first half of them lie in the low halves of bytes.
fn levels(codes: &[u8]) -> impl Iterator<Item = i8> + '_ {
    let low = codes.iter().map(|byte| byte & 0x0f);
    let high = codes.iter().map(|byte| byte >> 4);
    low.chain(high).map(|code| LEVELS[usize::from(code)])
}

/// The numbers of whole blocks.
pub fn dequantize(bytes: &[u8]) -> Result<Vec<f32>> {
    let mut values = vec![0f32; bytes.len() / BYTES * ELEMENTS];
    let expand = |(values, block): (&mut [f32], &[u8])| {
        let scale = half_scale(block[0]);
        for (value, level) in values.iter_mut().zip(levels(&block[1..])) {
            *value = scale * f32::from(level);
        }
    };
    threads::install(|| {
        let values = values.par_chunks_exact_mut(ELEMENTS);
        values
            .zip(bytes.par_chunks_exact(BYTES))
            .with_min_len(BLOCKS_PER_TASK)
            .for_each(expand);
    })?;
    Ok(values)
}

/// The same numbers as blocks of Q5_0; `None` where a scale has no half precision.
pub fn as_q5_0(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut blocks = vec![0u8; bytes.len() / BYTES * Q5_0_BYTES];
    let exact = threads::install(|| {
        let blocks = blocks.par_chunks_exact_mut(Q5_0_BYTES);
        blocks
            .zip(bytes.par_chunks_exact(BYTES))
            .with_min_len(BLOCKS_PER_TASK)
            .all(|(converted, block)| convert(block, converted))
    })?;
    Ok(exact.then_some(blocks))
}

/// Writes a block of Q5_0, unless it can't be exact: the scale, a bit of every code, and the rest of the codes.
fn convert(block: &[u8], converted: &mut [u8]) -> bool {
    let exact = half_scale(block[0]);
    let scale = f16::from_f32(exact);
    if scale.to_f32() != exact {
        return false;
    }
    let (mut high, mut low) = (0u32, [0u8; ELEMENTS / 2]);
    for (element, level) in levels(&block[1..]).enumerate() {
        let code = (level + OFFSET) as u8;
        high |= u32::from(code >> 4) << element;
        let shift = 4 * (element / low.len());
        low[element % low.len()] |= (code & 0x0f) << shift;
    }
    converted[..2].copy_from_slice(&scale.to_le_bytes());
    converted[2..6].copy_from_slice(&high.to_le_bytes());
    converted[6..].copy_from_slice(&low);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::quant::{self, BlockType};

    /// Every code in both halves, under the scales 1, 1/4 and the smallest that has half precision.
    fn blocks() -> Vec<u8> {
        let codes: Vec<u8> = (0..16).map(|code| code | (15 - code) << 4).collect();
        let block = |scale: u8| std::iter::once(scale).chain(codes.clone());
        [127, 125, 104].into_iter().flat_map(block).collect()
    }

    #[test]
    fn numbers_are_those_of_the_format() {
        let values = dequantize(&blocks()).unwrap();
        let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        assert_eq!(values[..8], expected);
        let negative: Vec<f32> = expected.iter().map(|value| -value).collect();
        assert_eq!(values[8..16], negative);
        let quarter: Vec<f32> = values[..32].iter().map(|value| value / 4.0).collect();
        assert_eq!(values[32..64], quarter);
        let reversed: Vec<f32> = values[..16].iter().rev().copied().collect();
        assert_eq!(values[16..32], reversed);
    }

    #[test]
    fn blocks_of_another_format_have_the_same_numbers() {
        let converted = as_q5_0(&blocks()).unwrap().unwrap();
        let found = quant::dequantize(BlockType::Q5_0, &converted).unwrap();
        assert_eq!(found, dequantize(&blocks()).unwrap());
        let mut beyond = blocks();
        beyond[0] = 103;
        assert!(as_q5_0(&beyond).unwrap().is_none());
        beyond[0] = 144;
        assert!(as_q5_0(&beyond).unwrap().is_none());
    }
}
