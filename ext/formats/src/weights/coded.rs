//! GGUF's block types that no kernel computes on: codebooks (IQ1 to IQ3), ternary digits (TQ) and small floats (FP4).
//!
//! Where a type with kernels has the same numbers, blocks are read as that type's: MXFP4 as Q5_0, ternary digits as
//! Q2_K, IQ1, IQ3 and most of NVFP4 as Q6_K. Others become groups.

mod groups;

use std::sync::OnceLock;

use half::f16;
use rayon::prelude::*;

use super::element::{eight_bit_levels, Element};
use super::{grids, mxfp4};
use crate::Result;
use base::quant::{BlockType, RUN};
use base::runtime::threads;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coded {
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Tq1_0,
    Tq2_0,
    Mxfp4,
    Nvfp4,
}

/// Elements of a super-block.
const SUPER: usize = 256;
/// Runs of elements with a scale each.
const RUNS: usize = SUPER / RUN;
/// Super-blocks that one task converts at least.
const BLOCKS_PER_TASK: usize = 64;
/// Elements of a block of NVFP4.
const NVFP4_ELEMENTS: usize = 64;

impl Coded {
    /// By GGUF's number of the type.
    pub fn of(number: u32) -> Option<Self> {
        Some(match number {
            16 => Self::Iq2Xxs,
            17 => Self::Iq2Xs,
            18 => Self::Iq3Xxs,
            19 => Self::Iq1S,
            21 => Self::Iq3S,
            22 => Self::Iq2S,
            29 => Self::Iq1M,
            34 => Self::Tq1_0,
            35 => Self::Tq2_0,
            39 => Self::Mxfp4,
            40 => Self::Nvfp4,
            _ => return None,
        })
    }

    /// The type of this name.
    pub fn named(name: &str) -> Option<Self> {
        let numbers = [16, 17, 18, 19, 21, 22, 29, 34, 35, 39, 40];
        let mut all = numbers.into_iter().filter_map(Self::of);
        all.find(|kind| kind.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Iq1S => "iq1_s",
            Self::Iq1M => "iq1_m",
            Self::Iq2Xxs => "iq2_xxs",
            Self::Iq2Xs => "iq2_xs",
            Self::Iq2S => "iq2_s",
            Self::Iq3Xxs => "iq3_xxs",
            Self::Iq3S => "iq3_s",
            Self::Tq1_0 => "tq1_0",
            Self::Tq2_0 => "tq2_0",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Elements in a block.
    pub fn elements(self) -> usize {
        match self {
            Self::Mxfp4 => mxfp4::ELEMENTS,
            Self::Nvfp4 => NVFP4_ELEMENTS,
            _ => SUPER,
        }
    }

    /// Bytes in a block.
    pub fn bytes(self) -> usize {
        match self {
            Self::Iq1S => 50,
            Self::Iq1M => 56,
            Self::Iq2Xxs => 66,
            Self::Iq2Xs => 74,
            Self::Iq2S => 82,
            Self::Iq3Xxs => 98,
            Self::Iq3S => 110,
            Self::Tq1_0 => 54,
            Self::Tq2_0 => 66,
            Self::Mxfp4 => mxfp4::BYTES,
            Self::Nvfp4 => 36,
        }
    }

    /// The numbers of whole blocks.
    pub fn dequantize(self, bytes: &[u8]) -> Result<Vec<f32>> {
        match self {
            Self::Mxfp4 => return mxfp4::dequantize(bytes),
            Self::Nvfp4 => return nvfp4(bytes),
            _ => {}
        }
        let mut values = vec![0f32; bytes.len() / self.bytes() * SUPER];
        threads::install(|| {
            let blocks = values.par_chunks_exact_mut(SUPER);
            let blocks = blocks.zip(bytes.par_chunks_exact(self.bytes()));
            blocks
                .with_min_len(BLOCKS_PER_TASK)
                .for_each(|(values, block)| {
                    let split = self.split(block);
                    for (at, value) in values.iter_mut().enumerate() {
                        let scale = split.scale * f32::from(split.scales[at / RUN]);
                        *value = scale * f32::from(split.levels[at]);
                    }
                });
        })?;
        Ok(values)
    }

    /// The same numbers as blocks that have kernels; `None` where there are none.
    pub fn blocks(self, bytes: &[u8]) -> Result<Option<(BlockType, Vec<u8>)>> {
        let kind = match self {
            Self::Mxfp4 => {
                return Ok(mxfp4::as_q5_0(bytes)?.map(|blocks| (BlockType::Q5_0, blocks)))
            }
            Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S => return groups::of_super_blocks(self, bytes),
            Self::Tq1_0 | Self::Tq2_0 => BlockType::Q2K,
            _ => BlockType::Q6K,
        };
        let size = self.bytes() * (SUPER / self.elements());
        let mut blocks = vec![0u8; bytes.len() / size * kind.bytes()];
        if !bytes.len().is_multiple_of(size) {
            return self.groups(bytes);
        }
        let exact = threads::install(|| {
            let parts = blocks.par_chunks_exact_mut(kind.bytes());
            let parts = parts.zip(bytes.par_chunks_exact(size));
            parts
                .with_min_len(BLOCKS_PER_TASK)
                .all(|(converted, block)| {
                    let split = match self {
                        Self::Nvfp4 => split_nvfp4(block),
                        _ => Some(self.split(block)),
                    };
                    match kind {
                        BlockType::Q2K => split.is_some_and(|split| write_q2_k(&split, converted)),
                        _ => split.is_some_and(|split| write_q6_k(split, converted)),
                    }
                })
        })?;
        if exact {
            Ok(Some((kind, blocks)))
        } else {
            self.groups(bytes)
        }
    }

    /// What blocks are where no type of GGUF files has their numbers.
    fn groups(self, bytes: &[u8]) -> Result<Option<(BlockType, Vec<u8>)>> {
        match self {
            Self::Nvfp4 => groups::of_nvfp4(bytes),
            _ => Ok(None),
        }
    }

    fn split(self, block: &[u8]) -> Split {
        match self {
            Self::Iq1S => iq1_s(block),
            Self::Iq1M => iq1_m(block),
            Self::Iq2Xxs => iq2_xxs(block),
            Self::Iq2Xs => iq2_xs(block),
            Self::Iq2S => iq2_s(block),
            Self::Iq3Xxs => iq3_xxs(block),
            Self::Iq3S => iq3_s(block),
            Self::Tq1_0 => tq1_0(block),
            Self::Tq2_0 => tq2_0(block),
            Self::Mxfp4 | Self::Nvfp4 => Split::new(0.0),
        }
    }
}

/// A super-block: an element is scale · scales[run] · level. All products are exact in f32.
struct Split {
    scale: f32,
    scales: [i8; RUNS],
    levels: [i8; SUPER],
}

impl Split {
    fn new(scale: f32) -> Self {
        Self {
            scale,
            scales: [1; RUNS],
            levels: [0; SUPER],
        }
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn short(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (4 * (at % 2)) & 0x0f
}

/// 2n + 1.
fn odd(code: u8) -> i8 {
    (2 * code + 1) as i8
}

/// The signs of eight elements in seven bits: their number is even.
fn signs(seven: u32) -> u8 {
    let seven = (seven & 0x7f) as u8;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

/// Writes the levels of a codebook's entry with these signs.
fn place<const N: usize>(levels: &mut [i8], entry: &[i8; N], signs: u8) {
    for (at, (level, &value)) in levels.iter_mut().zip(entry).enumerate() {
        *level = if signs >> at & 1 == 0 { value } else { -value };
    }
}

/// The entries of a codebook, from its digits.
pub(super) fn codebook<const N: usize>(digits: &str, bits: usize, values: &[i8]) -> Vec<[i8; N]> {
    let width = N * bits / 4;
    let entries = digits.as_bytes().chunks_exact(width);
    entries
        .map(|entry| {
            let code = entry.iter().fold(0u32, |code, &digit| {
                let digit = (digit as char).to_digit(16).unwrap_or(0);
                code << 4 | digit
            });
            let mask = (1 << bits) - 1;
            std::array::from_fn(|at| values[(code >> (bits * at)) as usize & mask])
        })
        .collect()
}

/// A codebook that is unpacked when it is first asked for.
macro_rules! codebook {
    ($name:ident, $size:literal, $digits:expr, $bits:literal, $values:expr) => {
        fn $name() -> &'static [[i8; $size]] {
            static ENTRIES: OnceLock<Vec<[i8; $size]>> = OnceLock::new();
            ENTRIES.get_or_init(|| codebook($digits, $bits, &$values))
        }
    };
}

/// The last is not used.
const IQ2_VALUES: [i8; 4] = [8, 25, 43, 0];
codebook!(iq2_xxs_grid, 8, grids::IQ2_XXS, 2, IQ2_VALUES);
codebook!(iq2_xs_grid, 8, grids::IQ2_XS, 2, IQ2_VALUES);
codebook!(iq2_s_grid, 8, grids::IQ2_S, 2, IQ2_VALUES);
codebook!(
    iq3_xxs_grid,
    4,
    grids::IQ3_XXS,
    3,
    [4, 12, 20, 28, 36, 44, 52, 62]
);
codebook!(iq3_s_grid, 4, grids::IQ3_S, 3, [1, 3, 5, 7, 9, 11, 13, 15]);
codebook!(iq1_grid, 8, grids::IQ1, 2, [-8, 0, 8, 0]);

fn iq2_xxs(block: &[u8]) -> Split {
    let mut split = Split::new(half(block, 0) / 8.0);
    for group in 0..8 {
        let at = 2 + 8 * group;
        let bits = word(block, at + 4);
        split.scales[2 * group..][..2].fill(odd((bits >> 28) as u8));
        for part in 0..4 {
            let entry = &iq2_xxs_grid()[usize::from(block[at + part])];
            let levels = &mut split.levels[32 * group + 8 * part..][..8];
            place(levels, entry, signs(bits >> (7 * part)));
        }
    }
    split
}

fn iq2_xs(block: &[u8]) -> Split {
    let mut split = Split::new(half(block, 0) / 8.0);
    for part in 0..32 {
        let code = short(block, 2 + 2 * part);
        let entry = &iq2_xs_grid()[usize::from(code & 511)];
        let levels = &mut split.levels[8 * part..][..8];
        place(levels, entry, signs(u32::from(code >> 9)));
        split.scales[part / 2] = odd(nibble(&block[66..], part / 2));
    }
    split
}

fn iq2_s(block: &[u8]) -> Split {
    let mut split = Split::new(half(block, 0) / 8.0);
    for part in 0..32 {
        let high = block[66 + part / 4] >> (2 * (part % 4)) & 3;
        let code = usize::from(block[2 + part]) | usize::from(high) << 8;
        let levels = &mut split.levels[8 * part..][..8];
        place(levels, &iq2_s_grid()[code], block[34 + part]);
        split.scales[part / 2] = odd(nibble(&block[74..], part / 2));
    }
    split
}

fn iq3_xxs(block: &[u8]) -> Split {
    let mut split = Split::new(half(block, 0) / 4.0);
    for group in 0..8 {
        let bits = word(block, 66 + 4 * group);
        split.scales[2 * group..][..2].fill(odd((bits >> 28) as u8));
        for part in 0..8 {
            let entry = &iq3_xxs_grid()[usize::from(block[2 + 8 * group + part])];
            let signs = signs(bits >> (7 * (part / 2))) >> (4 * (part % 2));
            place(
                &mut split.levels[32 * group + 4 * part..][..4],
                entry,
                signs,
            );
        }
    }
    split
}

fn iq3_s(block: &[u8]) -> Split {
    let mut split = Split::new(half(block, 0));
    for part in 0..64 {
        let high = block[66 + part / 8] >> (part % 8) & 1;
        let code = usize::from(block[2 + part]) | usize::from(high) << 8;
        let signs = block[74 + part / 2] >> (4 * (part % 2));
        place(
            &mut split.levels[4 * part..][..4],
            &iq3_s_grid()[code],
            signs,
        );
    }
    for (run, scale) in split.scales.iter_mut().enumerate() {
        *scale = odd(nibble(&block[106..], run / 2));
    }
    split
}

/// Entries are −1, 0 and 1 plus or minus an eighth, here in eighths.
fn shifted(levels: &mut [i8], entry: &[i8; 8], negative: bool) {
    let shift = if negative { -1 } else { 1 };
    for (level, value) in levels.iter_mut().zip(entry) {
        *level = value + shift;
    }
}

fn iq1_s(block: &[u8]) -> Split {
    let mut split = Split::new(half(block, 0) / 8.0);
    for group in 0..8 {
        let high = short(block, 34 + 2 * group);
        split.scales[2 * group..][..2].fill(odd((high >> 12 & 7) as u8));
        for part in 0..4 {
            let code =
                usize::from(block[2 + 4 * group + part]) | usize::from(high >> (3 * part) & 7) << 8;
            let levels = &mut split.levels[32 * group + 8 * part..][..8];
            shifted(levels, &iq1_grid()[code], high & 0x8000 != 0);
        }
    }
    split
}

/// The scale of a block is in the upper bits of its four words of scales.
fn iq1_m(block: &[u8]) -> Split {
    let words: [u16; 4] = std::array::from_fn(|at| short(block, 48 + 2 * at));
    let bits = words.iter().enumerate();
    let bits = bits.fold(0, |bits, (at, word)| bits | (word >> 12) << (4 * at));
    let mut split = Split::new(f16::from_bits(bits).to_f32() / 8.0);
    for (run, scale) in split.scales.iter_mut().enumerate() {
        *scale = odd((words[run / 4] >> (3 * (run % 4)) & 7) as u8);
    }
    for part in 0..32 {
        let high = nibble(&block[32..], part);
        let code = usize::from(block[part]) | usize::from(high & 7) << 8;
        let levels = &mut split.levels[8 * part..][..8];
        shifted(levels, &iq1_grid()[code], high & 8 != 0);
    }
    split
}

/// Digits of base 3 are the highest of a byte that is a fraction of 256: multiplying by 3 brings the next one up.
fn digit(byte: u8, number: u32) -> i8 {
    let moved = byte.wrapping_mul(3u8.wrapping_pow(number));
    ((u16::from(moved) * 3) >> 8) as i8 - 1
}

fn tq1_0(block: &[u8]) -> Split {
    let mut split = Split::new(half(block, 52));
    for (at, level) in split.levels.iter_mut().enumerate() {
        // 32 bytes with five digits each, 16 with five, and four with four.
        let (start, width, place) = match at {
            0..160 => (0, 32, at),
            160..240 => (32, 16, at - 160),
            _ => (48, 4, at - 240),
        };
        *level = digit(block[start + place % width], (place / width) as u32);
    }
    split
}

fn tq2_0(block: &[u8]) -> Split {
    let mut split = Split::new(half(block, 64));
    for (at, level) in split.levels.iter_mut().enumerate() {
        let byte = block[32 * (at / 128) + at % 32];
        *level = (byte >> (2 * (at % 128 / 32)) & 3) as i8 - 1;
    }
    split
}

/// Half the scale that a byte stands for; codes without a number stand for 0.
pub(super) fn fp4_scale(byte: u8) -> f32 {
    static LEVELS: OnceLock<[f32; 256]> = OnceLock::new();
    let levels = LEVELS.get_or_init(|| eight_bit_levels(Element::F8E4M3));
    match levels[usize::from(byte & 0x7f)] {
        level if level.is_nan() => 0.0,
        level => level / 2.0,
    }
}

/// The level of an element in a block of 64: runs of 16 have their first half in the low nibbles of eight bytes.
fn fp4_level(block: &[u8], at: usize) -> i8 {
    let byte = block[4 + 8 * (at / RUN) + at % 8];
    let code = byte >> (4 * (at % RUN / 8)) & 0x0f;
    mxfp4::LEVELS[usize::from(code)]
}

fn nvfp4(bytes: &[u8]) -> Result<Vec<f32>> {
    let size = Coded::Nvfp4.bytes();
    let mut values = vec![0f32; bytes.len() / size * NVFP4_ELEMENTS];
    threads::install(|| {
        let blocks = values.par_chunks_exact_mut(NVFP4_ELEMENTS);
        let blocks = blocks.zip(bytes.par_chunks_exact(size));
        blocks
            .with_min_len(BLOCKS_PER_TASK)
            .for_each(|(values, block)| {
                for (at, value) in values.iter_mut().enumerate() {
                    *value = fp4_scale(block[at / RUN]) * f32::from(fp4_level(block, at));
                }
            });
    })?;
    Ok(values)
}

/// Four blocks as one, where a power of two divides all their scales into integers of a byte.
fn split_nvfp4(blocks: &[u8]) -> Option<Split> {
    let size = Coded::Nvfp4.bytes();
    let scale = |run: usize| fp4_scale(blocks[run / 4 * size + run % 4]);
    let least = (0..RUNS).map(scale).filter(|&scale| scale > 0.0);
    // The mantissas have four bits.
    let unit = least
        .min_by(f32::total_cmp)
        .map_or(1.0, |least| 2f32.powi(least.log2().floor() as i32 - 3));
    let mut split = Split::new(unit);
    for run in 0..RUNS {
        let times = scale(run) / unit;
        if times > f32::from(i8::MAX) || times.fract() != 0.0 {
            return None;
        }
        split.scales[run] = times as i8;
    }
    for (at, level) in split.levels.iter_mut().enumerate() {
        let block = &blocks[at / NVFP4_ELEMENTS * size..][..size];
        *level = fp4_level(block, at % NVFP4_ELEMENTS);
    }
    Some(split)
}

/// Digits −1 to 1 are codes 0 to 2 less a minimum of one scale.
fn write_q2_k(split: &Split, block: &mut [u8]) -> bool {
    block[..RUNS].fill(0x11);
    for (at, &level) in split.levels.iter().enumerate() {
        let byte = RUNS + 32 * (at / 128) + at % 32;
        block[byte] |= ((level + 1) as u8) << (2 * (at % 128 / 32));
    }
    let scale = f16::from_f32(split.scale);
    block[80..82].copy_from_slice(&scale.to_le_bytes());
    block[82..84].copy_from_slice(&scale.to_le_bytes());
    scale.to_f32() == split.scale
}

fn write_q6_k(mut split: Split, block: &mut [u8]) -> bool {
    if split.levels.iter().all(|level| level % 2 == 0) {
        split.levels = split.levels.map(|level| level / 2);
        split.scale *= 2.0;
    }
    for (at, &level) in split.levels.iter().enumerate() {
        if !(-32..32).contains(&level) {
            return false;
        }
        let code = (level + 32) as u8;
        let (half, part, place) = (at / 128, at % 128 / 32, at % 32);
        block[64 * half + 32 * (part % 2) + place] |= (code & 0x0f) << (4 * (part / 2));
        block[128 + 32 * half + place] |= (code >> 4) << (2 * part);
    }
    for (byte, scale) in block[192..208].iter_mut().zip(split.scales) {
        *byte = scale as u8;
    }
    let scale = f16::from_f32(split.scale);
    block[208..210].copy_from_slice(&scale.to_le_bytes());
    scale.to_f32() == split.scale
}
