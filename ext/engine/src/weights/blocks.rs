//! GGUF's quantized blocks and their expansion to `f32`, in plain Rust: the reference that faster
//! kernels are compared with.

use half::f16;
use rayon::prelude::*;

use crate::{threads, Result};

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
}

/// Elements of a block of the older formats.
const SMALL: usize = 32;
/// Elements of a super-block of the K formats.
const SUPER: usize = 256;
/// Blocks that one task expands.
const BLOCKS_PER_TASK: usize = 1024;

/// The 16 levels of the non-linear 4-bit formats.
const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

impl BlockType {
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
        }
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
        }
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
///
/// Inlined with all it calls, so that kernels compile it for their instruction set.
#[inline(always)]
pub fn dequantize_block(kind: BlockType, block: &[u8], output: &mut [f32]) {
    let fields = &mut Fields(block);
    match kind {
        BlockType::Q4_0 => q4_0(fields, output),
        BlockType::Q4_1 => q4_1(fields, output),
        BlockType::Q5_0 => q5_0(fields, output),
        BlockType::Q5_1 => q5_1(fields, output),
        BlockType::Q8_0 => q8_0(fields, output),
        BlockType::Q8_1 => q8_1(fields, output),
        BlockType::Q2K => q2_k(fields, output),
        BlockType::Q3K => q3_k(fields, output),
        BlockType::Q4K => q4_k(fields, output),
        BlockType::Q5K => q5_k(fields, output),
        BlockType::Q6K => q6_k(fields, output),
        BlockType::Q8K => q8_k(fields, output),
        BlockType::Iq4Nl => iq4_nl(fields, output),
        BlockType::Iq4Xs => iq4_xs(fields, output),
    }
}

/// The fields of a block, front to back.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        if let Some((head, tail)) = self.0.split_at_checked(N) {
            field.copy_from_slice(head);
            self.0 = tail;
        }
        field
    }

    #[inline(always)]
    fn half(&mut self) -> f32 {
        f16::from_le_bytes(self.bytes()).to_f32()
    }

    #[inline(always)]
    fn signed<const N: usize>(&mut self) -> [i8; N] {
        self.bytes().map(|byte| byte as i8)
    }
}

/// Writes nibble `j` of `packed` to element `j` (low) and `j + 16` (high).
#[inline(always)]
fn nibbles(packed: [u8; 16], output: &mut [f32], value: impl Fn(usize, u8) -> f32) {
    let (low, high) = output.split_at_mut(SMALL / 2);
    for (j, ((low, high), byte)) in low.iter_mut().zip(high).zip(packed).enumerate() {
        *low = value(j, byte & 0x0f);
        *high = value(j + SMALL / 2, byte >> 4);
    }
}

/// A nibble with its fifth bit from `high`.
#[inline(always)]
fn five_bits(high: u32, j: usize, nibble: u8) -> f32 {
    f32::from(nibble) + ((high >> j & 1) << 4) as f32
}

#[inline(always)]
fn q4_0(fields: &mut Fields, output: &mut [f32]) {
    let scale = fields.half();
    nibbles(fields.bytes(), output, |_, q| (f32::from(q) - 8.0) * scale);
}

#[inline(always)]
fn q4_1(fields: &mut Fields, output: &mut [f32]) {
    let (scale, minimum) = (fields.half(), fields.half());
    nibbles(fields.bytes(), output, |_, q| {
        f32::from(q) * scale + minimum
    });
}

#[inline(always)]
fn q5_0(fields: &mut Fields, output: &mut [f32]) {
    let scale = fields.half();
    let high = u32::from_le_bytes(fields.bytes());
    nibbles(fields.bytes(), output, |j, q| {
        (five_bits(high, j, q) - 16.0) * scale
    });
}

#[inline(always)]
fn q5_1(fields: &mut Fields, output: &mut [f32]) {
    let (scale, minimum) = (fields.half(), fields.half());
    let high = u32::from_le_bytes(fields.bytes());
    nibbles(fields.bytes(), output, |j, q| {
        five_bits(high, j, q) * scale + minimum
    });
}

#[inline(always)]
fn q8_0(fields: &mut Fields, output: &mut [f32]) {
    let scale = fields.half();
    for (value, q) in output.iter_mut().zip(fields.signed::<SMALL>()) {
        *value = f32::from(q) * scale;
    }
}

#[inline(always)]
fn q8_1(fields: &mut Fields, output: &mut [f32]) {
    let (scale, _sum) = (fields.half(), fields.half());
    for (value, q) in output.iter_mut().zip(fields.signed::<SMALL>()) {
        *value = f32::from(q) * scale;
    }
}

#[inline(always)]
fn q2_k(fields: &mut Fields, output: &mut [f32]) {
    let scales: [u8; 16] = fields.bytes();
    let quants: [u8; 64] = fields.bytes();
    let (scale, minimum) = (fields.half(), fields.half());
    for (group, (values, packed)) in output.chunks_exact_mut(16).zip(scales).enumerate() {
        let (start, shift) = two_bit_place(group);
        let scale = scale * f32::from(packed & 0x0f);
        let minimum = minimum * f32::from(packed >> 4);
        for (value, byte) in values.iter_mut().zip(&quants[start..start + 16]) {
            *value = scale * f32::from(byte >> shift & 3) - minimum;
        }
    }
}

/// Where the 16 two-bit values of a group lie: 32 bytes hold 4 × 32 values, one bit pair each.
#[inline(always)]
fn two_bit_place(group: usize) -> (usize, usize) {
    (32 * (group / 8) + 16 * (group % 2), group % 8 / 2 * 2)
}

#[inline(always)]
fn q3_k(fields: &mut Fields, output: &mut [f32]) {
    let high: [u8; 32] = fields.bytes();
    let quants: [u8; 64] = fields.bytes();
    let packed: [u8; 12] = fields.bytes();
    let scale = fields.half();
    for (group, values) in output.chunks_exact_mut(16).enumerate() {
        let low_scale = packed[group % 8] >> (4 * (group / 8)) & 0x0f;
        let high_scale = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
        let scale = scale * (f32::from(low_scale | high_scale << 4) - 32.0);
        let (start, shift) = two_bit_place(group);
        let high = &high[16 * (group % 2)..][..16];
        for ((value, byte), high) in values.iter_mut().zip(&quants[start..]).zip(high) {
            let offset = if high >> (group / 2) & 1 == 1 {
                0.0
            } else {
                4.0
            };
            *value = scale * (f32::from(byte >> shift & 3) - offset);
        }
    }
}

/// Scale and minimum number `j` of the eight pairs that share 12 bytes.
#[inline(always)]
fn six_bit_pair(packed: &[u8; 12], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            packed[j + 4] & 0x0f | packed[j - 4] >> 6 << 4,
            packed[j + 4] >> 4 | packed[j] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(minimum))
}

#[inline(always)]
fn q4_k(fields: &mut Fields, output: &mut [f32]) {
    let (scale, minimum) = (fields.half(), fields.half());
    let packed = fields.bytes();
    let quants: [u8; 128] = fields.bytes();
    for (group, values) in output.chunks_exact_mut(32).enumerate() {
        let (group_scale, group_minimum) = six_bit_pair(&packed, group);
        let (scale, minimum) = (scale * group_scale, minimum * group_minimum);
        let shift = 4 * (group % 2);
        for (value, byte) in values.iter_mut().zip(&quants[32 * (group / 2)..]) {
            *value = scale * f32::from(byte >> shift & 0x0f) - minimum;
        }
    }
}

#[inline(always)]
fn q5_k(fields: &mut Fields, output: &mut [f32]) {
    let (scale, minimum) = (fields.half(), fields.half());
    let packed = fields.bytes();
    let high: [u8; 32] = fields.bytes();
    let quants: [u8; 128] = fields.bytes();
    for (group, values) in output.chunks_exact_mut(32).enumerate() {
        let (group_scale, group_minimum) = six_bit_pair(&packed, group);
        let (scale, minimum) = (scale * group_scale, minimum * group_minimum);
        let shift = 4 * (group % 2);
        let bytes = quants[32 * (group / 2)..].iter().zip(&high);
        for (value, (byte, high)) in values.iter_mut().zip(bytes) {
            let quant = byte >> shift & 0x0f | (high >> group & 1) << 4;
            *value = scale * f32::from(quant) - minimum;
        }
    }
}

#[inline(always)]
fn q6_k(fields: &mut Fields, output: &mut [f32]) {
    let low: [u8; 128] = fields.bytes();
    let high: [u8; 64] = fields.bytes();
    let scales: [i8; 16] = fields.signed();
    let scale = fields.half();
    for (group, (values, group_scale)) in output.chunks_exact_mut(16).zip(scales).enumerate() {
        let scale = scale * f32::from(group_scale);
        // Each half of the block has four runs of 32 values, two groups each.
        let (half, run, offset) = (group / 8, group % 8 / 2, 16 * (group % 2));
        let low = &low[64 * half + 32 * (run % 2) + offset..][..16];
        let high = &high[32 * half + offset..][..16];
        for ((value, low), high) in values.iter_mut().zip(low).zip(high) {
            let quant = low >> (4 * (run / 2)) & 0x0f | (high >> (2 * run) & 3) << 4;
            *value = scale * (f32::from(quant) - 32.0);
        }
    }
}

#[inline(always)]
fn q8_k(fields: &mut Fields, output: &mut [f32]) {
    let scale = f32::from_le_bytes(fields.bytes());
    for (value, q) in output.iter_mut().zip(fields.signed::<SUPER>()) {
        *value = scale * f32::from(q);
    }
}

#[inline(always)]
fn iq4_level(nibble: u8) -> f32 {
    f32::from(IQ4_LEVELS[usize::from(nibble & 0x0f)])
}

#[inline(always)]
fn iq4_nl(fields: &mut Fields, output: &mut [f32]) {
    let scale = fields.half();
    nibbles(fields.bytes(), output, |_, q| scale * iq4_level(q));
}

#[inline(always)]
fn iq4_xs(fields: &mut Fields, output: &mut [f32]) {
    let scale = fields.half();
    let high = u16::from_le_bytes(fields.bytes());
    let low: [u8; 4] = fields.bytes();
    for (group, values) in output.chunks_exact_mut(SMALL).enumerate() {
        let low = u16::from(low[group / 2] >> (4 * (group % 2)) & 0x0f);
        let group_scale = low | (high >> (2 * group) & 3) << 4;
        let scale = scale * (f32::from(group_scale) - 32.0);
        nibbles(fields.bytes(), values, |_, q| scale * iq4_level(q));
    }
}
