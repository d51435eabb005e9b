//! GGUF's quantized blocks and their expansion to `f32`, in plain Rust: the reference that faster
//! kernels are compared with.

use half::f16;
use rayon::prelude::*;

use super::grouped::{GroupForm, GROUP};
use crate::runtime::threads;
use crate::Result;

/// A block format; a row of a matrix is a whole number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
    Iq4Nl,
    Iq4Xs,
    /// From here on the types that no file has; see `grouped`.
    Nf4,
    Fp4,
    /// The same with numbers rounded to 16 bits.
    Nf4Bf16,
    Nf4F16,
    Fp4Bf16,
    Fp4F16,
    NvFp4,
    Iq2,
    Fp8,
    Int4,
    Int8,
    E5m2,
    Int4Of32,
    Int8Of32,
    Int4Of16,
    Int8Of16,
}

/// Elements of a block of the older formats.
pub const SMALL: usize = 32;
/// Elements of a super-block of the K formats.
const SUPER: usize = 256;
/// Blocks that one task expands.
const BLOCKS_PER_TASK: usize = 1024;

/// Elements that share a scale in the finest formats.
pub const RUN: usize = 16;

/// The 16 levels of the non-linear 4-bit formats.
pub(super) const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

impl BlockType {
    /// Those of GGUF files.
    pub const ALL: [Self; 14] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q8_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q8K,
        Self::Iq4Nl,
        Self::Iq4Xs,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q8_1 => "q8_1",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Q8K => "q8_k",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
            Self::Nf4Bf16 => "nf4_bf16",
            Self::Nf4F16 => "nf4_f16",
            Self::Fp4Bf16 => "fp4_bf16",
            Self::Fp4F16 => "fp4_f16",
            Self::NvFp4 => "nvfp4",
            Self::Iq2 => "iq2",
            Self::Fp8 => "fp8",
            Self::Int4 => "int4",
            Self::Int8 => "int8",
            Self::E5m2 => "fp8_e5m2",
            Self::Int4Of32 => "int4_32",
            Self::Int8Of32 => "int8_32",
            Self::Int4Of16 => "int4_16",
            Self::Int8Of16 => "int8_16",
        }
    }

    /// Those of files, then those that no file has, as they are numbered in CUDA's sources.
    pub fn every() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(Self::GROUPED)
    }

    /// Elements in a block.
    pub fn elements(self) -> usize {
        match self {
            Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q8_0
            | Self::Q8_1
            | Self::Iq4Nl => SMALL,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Q8K | Self::Iq4Xs => {
                SUPER
            }
            Self::Nf4
            | Self::Fp4
            | Self::Nf4Bf16
            | Self::Nf4F16
            | Self::Fp4Bf16
            | Self::Fp4F16
            | Self::NvFp4
            | Self::Iq2
            | Self::Fp8
            | Self::Int4
            | Self::Int8
            | Self::E5m2
            | Self::Int4Of32
            | Self::Int8Of32
            | Self::Int4Of16
            | Self::Int8Of16 => GROUP,
        }
    }

    /// Bytes in a block.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q8_1 => 36,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Q8K => 292,
            Self::Iq4Xs => 136,
            Self::Nf4 | Self::Fp4 | Self::Nf4Bf16 | Self::Nf4F16 | Self::Fp4Bf16 | Self::Fp4F16 => {
                36
            }
            Self::NvFp4 | Self::Iq2 | Self::Int4Of32 => 48,
            Self::Fp8 | Self::E5m2 => 68,
            Self::Int4 => 40,
            Self::Int8 => 72,
            Self::Int8Of32 => 80,
            Self::Int4Of16 => 64,
            Self::Int8Of16 => 96,
        }
    }

    /// What is taken from a code to get its level.
    pub fn offset(self) -> u8 {
        match self {
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q8_0 | Self::Q8_1 | Self::Q8K => 128,
            Self::Q3K => 4,
            Self::Q6K => 32,
            Self::Q4_1
            | Self::Q5_1
            | Self::Q2K
            | Self::Q4K
            | Self::Q5K
            | Self::Iq4Nl
            | Self::Iq4Xs
            | Self::Nf4
            | Self::Fp4
            | Self::Nf4Bf16
            | Self::Nf4F16
            | Self::Fp4Bf16
            | Self::Fp4F16
            | Self::NvFp4
            | Self::Iq2
            | Self::Fp8
            | Self::Int4
            | Self::Int8
            | Self::E5m2
            | Self::Int4Of32
            | Self::Int8Of32
            | Self::Int4Of16
            | Self::Int8Of16 => 0,
        }
    }

    /// The levels of the 16 codes, where these are not numbers in a row.
    pub fn levels(self) -> Option<&'static [i8; 16]> {
        matches!(self, Self::Iq4Nl | Self::Iq4Xs).then_some(&IQ4_LEVELS)
    }
}

/// Expands whole blocks; bytes after the last whole block are ignored.
pub fn dequantize(kind: BlockType, bytes: &[u8]) -> Result<Vec<f32>> {
    let blocks = bytes.len() / kind.bytes();
    let mut values = vec![0f32; blocks * kind.elements()];
    let expand = |(values, bytes): (&mut [f32], &[u8])| {
        let outputs = values.chunks_exact_mut(kind.elements());
        for (output, block) in outputs.zip(bytes.chunks_exact(kind.bytes())) {
            dequantize_block(kind, block, output);
        }
    };
    if blocks <= BLOCKS_PER_TASK {
        expand((&mut values, bytes));
    } else {
        threads::install(|| {
            values
                .par_chunks_mut(BLOCKS_PER_TASK * kind.elements())
                .zip(bytes.par_chunks(BLOCKS_PER_TASK * kind.bytes()))
                .for_each(expand);
        })?;
    }
    Ok(values)
}

/// Expands one block; `block` and `output` have the lengths that the type says.
fn dequantize_block(kind: BlockType, block: &[u8], output: &mut [f32]) {
    if let Some(form) = GroupForm::of(kind) {
        return form.dequantize(block, output);
    }
    let mut codes = [0u8; SUPER];
    let codes = &mut codes[..kind.elements()];
    let header = split_block(kind, block, codes);
    let offset = i16::from(kind.offset());
    let (block_scale, block_minimum) = match (kind, block.first_chunk()) {
        (BlockType::Q8K, Some(scale)) => (f32::from_le_bytes(*scale), 0.0),
        _ => (header.scale.to_f32(), header.minimum.to_f32()),
    };
    for (run, (values, codes)) in output.chunks_mut(RUN).zip(codes.chunks(RUN)).enumerate() {
        let scale = block_scale * f32::from(header.scales[run]);
        let minimum = block_minimum * f32::from(header.minimums[run]);
        for (value, &code) in values.iter_mut().zip(codes) {
            let level = match kind.levels() {
                Some(levels) => i16::from(levels[usize::from(code & 0x0f)]),
                None => i16::from(code) - offset,
            };
            *value = scale * f32::from(level) + minimum;
        }
    }
}

/// What the elements of a block have in common: element i, of run i / 16, is
/// scale · scales[run] · level + minimum · minimums[run]. Scales of f32, as Q8_K has, are not in it.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub scale: f16,
    pub minimum: f16,
    pub scales: [i8; RUN],
    pub minimums: [u8; RUN],
}

impl Header {
    #[inline(always)]
    fn plain(scale: f16, minimum: f16) -> Self {
        Self {
            scale,
            minimum,
            scales: [1; RUN],
            minimums: [1; RUN],
        }
    }

    #[inline(always)]
    fn without_minimum(scale: f16, scales: [i8; RUN]) -> Self {
        Self {
            scale,
            minimum: f16::ZERO,
            scales,
            minimums: [0; RUN],
        }
    }
}

/// Takes a block apart: the codes of its elements, in their order, and what they share. The lengths
/// of `block` and `codes` are those that the type says.
///
/// Inlined with all it calls, so that callers compile it for their instruction set.
#[inline(always)]
pub fn split_block(kind: BlockType, block: &[u8], codes: &mut [u8]) -> Header {
    let fields = &mut Fields(block);
    match kind {
        BlockType::Q4_0 | BlockType::Iq4Nl => {
            let scale = fields.half();
            nibbles(fields.bytes(), codes);
            Header::plain(scale, f16::ZERO)
        }
        BlockType::Q4_1 => {
            let (scale, minimum) = (fields.half(), fields.half());
            nibbles(fields.bytes(), codes);
            Header::plain(scale, minimum)
        }
        BlockType::Q5_0 => {
            let scale = fields.half();
            five_bits(fields, codes);
            Header::plain(scale, f16::ZERO)
        }
        BlockType::Q5_1 => {
            let (scale, minimum) = (fields.half(), fields.half());
            five_bits(fields, codes);
            Header::plain(scale, minimum)
        }
        BlockType::Q8_0 => {
            let scale = fields.half();
            signed_bytes::<SMALL>(fields, codes);
            Header::plain(scale, f16::ZERO)
        }
        BlockType::Q8_1 => {
            let (scale, _sum) = (fields.half(), fields.half());
            signed_bytes::<SMALL>(fields, codes);
            Header::plain(scale, f16::ZERO)
        }
        BlockType::Q8K => {
            let _scale: [u8; 4] = fields.bytes();
            signed_bytes::<SUPER>(fields, codes);
            Header::plain(f16::ZERO, f16::ZERO)
        }
        BlockType::Q2K => q2_k(fields, codes),
        BlockType::Q3K => q3_k(fields, codes),
        BlockType::Q4K => q4_k(fields, codes),
        BlockType::Q5K => q5_k(fields, codes),
        BlockType::Q6K => q6_k(fields, codes),
        BlockType::Iq4Xs => iq4_xs(fields, codes),
        BlockType::Nf4
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
        | BlockType::Int8Of16 => {
            if let Some(form) = GroupForm::of(kind) {
                form.codes(block, codes);
            }
            Header::plain(f16::ZERO, f16::ZERO)
        }
    }
}

/// The fields of a block, front to back.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }

    #[inline(always)]
    fn half(&mut self) -> f16 {
        f16::from_le_bytes(self.bytes())
    }
}

/// Writes nibble `j` of `packed` to element `j` (low) and `j + 16` (high).
#[inline(always)]
fn nibbles(packed: [u8; 16], codes: &mut [u8]) {
    if let Some(codes) = codes.first_chunk_mut::<SMALL>() {
        for j in 0..SMALL / 2 {
            codes[j] = packed[j] & 0x0f;
            codes[j + SMALL / 2] = packed[j] >> 4;
        }
    }
}

/// Nibbles with a fifth bit from the four bytes before them.
#[inline(always)]
fn five_bits(fields: &mut Fields, codes: &mut [u8]) {
    let high = u32::from_le_bytes(fields.bytes());
    nibbles(fields.bytes(), codes);
    if let Some(codes) = codes.first_chunk_mut::<SMALL>() {
        for (j, code) in codes.iter_mut().enumerate() {
            *code |= ((high >> j & 1) << 4) as u8;
        }
    }
}

#[inline(always)]
fn signed_bytes<const N: usize>(fields: &mut Fields, codes: &mut [u8]) {
    let bytes: [u8; N] = fields.bytes();
    if let Some(codes) = codes.first_chunk_mut::<N>() {
        for j in 0..N {
            codes[j] = bytes[j] ^ 0x80;
        }
    }
}

#[inline(always)]
fn q2_k(fields: &mut Fields, codes: &mut [u8]) -> Header {
    let packed: [u8; 16] = fields.bytes();
    let quants: [u8; 64] = fields.bytes();
    for (run, codes) in codes.chunks_exact_mut(RUN).enumerate() {
        let (start, shift) = two_bit_place(run);
        for (code, byte) in codes.iter_mut().zip(&quants[start..start + RUN]) {
            *code = byte >> shift & 3;
        }
    }
    Header {
        scale: fields.half(),
        minimum: -fields.half(),
        scales: packed.map(|byte| (byte & 0x0f) as i8),
        minimums: packed.map(|byte| byte >> 4),
    }
}

/// Where the 16 two-bit codes of a run lie: 32 bytes hold 4 × 32 codes, one bit pair each.
#[inline(always)]
fn two_bit_place(run: usize) -> (usize, usize) {
    (32 * (run / 8) + 16 * (run % 2), run % 8 / 2 * 2)
}

#[inline(always)]
fn q3_k(fields: &mut Fields, codes: &mut [u8]) -> Header {
    let high: [u8; 32] = fields.bytes();
    let quants: [u8; 64] = fields.bytes();
    let packed: [u8; 12] = fields.bytes();
    let mut scales = [0; RUN];
    for (run, (codes, scale)) in codes.chunks_exact_mut(RUN).zip(&mut scales).enumerate() {
        let low_scale = packed[run % 8] >> (4 * (run / 8)) & 0x0f;
        let high_scale = packed[8 + run % 4] >> (2 * (run / 4)) & 3;
        *scale = (low_scale | high_scale << 4) as i8 - 32;
        let (start, shift) = two_bit_place(run);
        let high = &high[16 * (run % 2)..][..RUN];
        for ((code, byte), high) in codes.iter_mut().zip(&quants[start..]).zip(high) {
            *code = byte >> shift & 3 | (high >> (run / 2) & 1) << 2;
        }
    }
    Header::without_minimum(fields.half(), scales)
}

/// The eight pairs of scale and minimum that share 12 bytes, each for two runs.
#[inline(always)]
fn six_bit_pairs(packed: &[u8; 12]) -> ([i8; RUN], [u8; RUN]) {
    let (mut scales, mut minimums) = ([0; RUN], [0; RUN]);
    for run in 0..RUN {
        let j = run / 2;
        let (scale, minimum) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            (
                packed[j + 4] & 0x0f | packed[j - 4] >> 6 << 4,
                packed[j + 4] >> 4 | packed[j] >> 6 << 4,
            )
        };
        (scales[run], minimums[run]) = (scale as i8, minimum);
    }
    (scales, minimums)
}

/// 32 bytes hold two groups of 32 four-bit codes, the first in their low halves.
#[inline(always)]
fn nibble_pairs(quants: &[u8; 128], codes: &mut [u8]) {
    for (pair, bytes) in codes.chunks_exact_mut(64).zip(quants.chunks_exact(32)) {
        let (low, high) = pair.split_at_mut(32);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = byte & 0x0f;
            *high = byte >> 4;
        }
    }
}

#[inline(always)]
fn q4_k(fields: &mut Fields, codes: &mut [u8]) -> Header {
    let (scale, minimum) = (fields.half(), -fields.half());
    let (scales, minimums) = six_bit_pairs(&fields.bytes());
    nibble_pairs(&fields.bytes(), codes);
    Header {
        scale,
        minimum,
        scales,
        minimums,
    }
}

#[inline(always)]
fn q5_k(fields: &mut Fields, codes: &mut [u8]) -> Header {
    let (scale, minimum) = (fields.half(), -fields.half());
    let (scales, minimums) = six_bit_pairs(&fields.bytes());
    let high: [u8; 32] = fields.bytes();
    nibble_pairs(&fields.bytes(), codes);
    for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (code, high) in codes.iter_mut().zip(&high) {
            *code |= (high >> group & 1) << 4;
        }
    }
    Header {
        scale,
        minimum,
        scales,
        minimums,
    }
}

#[inline(always)]
fn q6_k(fields: &mut Fields, codes: &mut [u8]) -> Header {
    let low: [u8; 128] = fields.bytes();
    let high: [u8; 64] = fields.bytes();
    for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
        // Each half of the block has four groups of 32.
        let (half, part) = (group / 4, group % 4);
        let low = &low[64 * half + 32 * (part % 2)..][..32];
        let high = &high[32 * half..][..32];
        for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
            *code = low >> (4 * (part / 2)) & 0x0f | (high >> (2 * part) & 3) << 4;
        }
    }
    let scales = fields.bytes().map(|byte| byte as i8);
    Header::without_minimum(fields.half(), scales)
}

#[inline(always)]
fn iq4_xs(fields: &mut Fields, codes: &mut [u8]) -> Header {
    let scale = fields.half();
    let high = u16::from_le_bytes(fields.bytes());
    let low: [u8; 4] = fields.bytes();
    let mut scales = [0; RUN];
    for (run, scale) in scales.iter_mut().enumerate() {
        let group = run / 2;
        let low = low[group / 2] >> (4 * (group % 2)) & 0x0f;
        *scale = (low | ((high >> (2 * group) & 3) << 4) as u8) as i8 - 32;
    }
    for codes in codes.chunks_exact_mut(SMALL) {
        nibbles(fields.bytes(), codes);
    }
    Header::without_minimum(scale, scales)
}
