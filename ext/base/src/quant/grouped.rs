//! Blocks that no file has: groups of weights from other libraries, whose scales halves cannot hold.
//!
//! A block begins with its scales, f32, then as many minimums, f32, where the type has them. Its codes follow, of which
//! those of four bits share bytes: element 2i has the low half of byte i. Element i is scale · level + minimum, rounded
//! to 16 bits where the type says so.

use std::sync::OnceLock;

use half::{bf16, f16};

use super::BlockType;

/// Elements of such a block.
pub const GROUP: usize = 64;
/// Scales and minimums of a block at most.
pub const MOST_NUMBERS: usize = 8;

/// bitsandbytes' NF4.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// bitsandbytes' FP4.
const FP4: [f32; 16] = [
    0.0,
    1.0 / 192.0,
    2.0 / 3.0,
    1.0,
    1.0 / 3.0,
    0.5,
    1.0 / 6.0,
    0.25,
    0.0,
    -1.0 / 192.0,
    -2.0 / 3.0,
    -1.0,
    -1.0 / 3.0,
    -0.5,
    -1.0 / 6.0,
    -0.25,
];

/// e2m1, the floats of NVFP4.
const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// GGUF's IQ2, the fourth bit a sign; entries of its codebooks have no others.
const IQ2: [f32; 16] = [
    8.0, 25.0, 43.0, 0.0, 0.0, 0.0, 0.0, 0.0, -8.0, -25.0, -43.0, 0.0, 0.0, 0.0, 0.0, 0.0,
];

/// How blocks of a type lie.
#[derive(Clone, Copy, Debug)]
pub struct GroupForm {
    /// Elements that share a scale.
    pub run: usize,
    pub has_minimum: bool,
    /// 4 or 8.
    pub bits: usize,
    /// What elements are rounded to; those of types with minimums are not.
    pub rounding: Rounding,
    levels: Levels,
}

/// What numbers are rounded to, to the nearest, ties to even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    None,
    F16,
    Bf16,
}

impl Rounding {
    #[inline(always)]
    pub fn of(self, value: f32) -> f32 {
        match self {
            Self::None => value,
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Levels {
    Nf4,
    Fp4,
    E2m1,
    Iq2,
    E4m3,
    E5m2,
    Codes,
}

impl BlockType {
    pub const GROUPED: [Self; 16] = [
        Self::Nf4,
        Self::Fp4,
        Self::Nf4Bf16,
        Self::Nf4F16,
        Self::Fp4Bf16,
        Self::Fp4F16,
        Self::NvFp4,
        Self::Iq2,
        Self::Fp8,
        Self::Int4,
        Self::Int8,
        Self::E5m2,
        Self::Int4Of32,
        Self::Int8Of32,
        Self::Int4Of16,
        Self::Int8Of16,
    ];

    /// Whether it is one of the types that no file has.
    pub fn is_grouped(self) -> bool {
        Self::GROUPED.contains(&self)
    }
}

impl GroupForm {
    pub fn of(kind: BlockType) -> Option<Self> {
        let (bits, levels) = match kind {
            BlockType::Nf4 | BlockType::Nf4Bf16 | BlockType::Nf4F16 => (4, Levels::Nf4),
            BlockType::Fp4 | BlockType::Fp4Bf16 | BlockType::Fp4F16 => (4, Levels::Fp4),
            BlockType::NvFp4 => (4, Levels::E2m1),
            BlockType::Iq2 => (4, Levels::Iq2),
            BlockType::Fp8 => (8, Levels::E4m3),
            BlockType::E5m2 => (8, Levels::E5m2),
            BlockType::Int4 | BlockType::Int4Of32 | BlockType::Int4Of16 => (4, Levels::Codes),
            BlockType::Int8 | BlockType::Int8Of32 | BlockType::Int8Of16 => (8, Levels::Codes),
            _ => return None,
        };
        Some(Self {
            run: match kind {
                BlockType::NvFp4 | BlockType::Iq2 | BlockType::Int4Of16 | BlockType::Int8Of16 => 16,
                BlockType::Int4Of32 | BlockType::Int8Of32 => 32,
                _ => GROUP,
            },
            has_minimum: levels == Levels::Codes,
            bits,
            rounding: match kind {
                BlockType::Nf4Bf16 | BlockType::Fp4Bf16 => Rounding::Bf16,
                BlockType::Nf4F16 | BlockType::Fp4F16 => Rounding::F16,
                _ => Rounding::None,
            },
            levels,
        })
    }

    pub fn scales(&self) -> usize {
        GROUP / self.run
    }

    /// Scales and minimums.
    pub fn numbers(&self) -> usize {
        self.scales() * (1 + usize::from(self.has_minimum))
    }

    /// Bytes before the codes.
    pub fn header_bytes(&self) -> usize {
        4 * self.numbers()
    }

    /// What the codes stand for; four-bit types have 16 of them.
    pub fn levels(&self) -> &'static [f32; 256] {
        static TABLES: [OnceLock<Box<[f32; 256]>>; 7] = [const { OnceLock::new() }; 7];
        TABLES[self.levels as usize].get_or_init(|| {
            let small = |levels: &[f32; 16]| {
                let mut table = [0.0; 256];
                table[..16].copy_from_slice(levels);
                table
            };
            Box::new(match self.levels {
                Levels::Nf4 => small(&NF4),
                Levels::Fp4 => small(&FP4),
                Levels::E2m1 => small(&E2M1),
                Levels::Iq2 => small(&IQ2),
                Levels::E4m3 => std::array::from_fn(|code| 256.0 * half_of_e4m3(code as u8)),
                Levels::E5m2 => std::array::from_fn(|code| of_e5m2(code as u8)),
                Levels::Codes => std::array::from_fn(|code| code as f32),
            })
        })
    }

    /// The scales, and behind them the minimums.
    #[inline(always)]
    pub fn header(&self, block: &[u8]) -> [f32; MOST_NUMBERS] {
        let mut numbers = [0.0; MOST_NUMBERS];
        let found = block.chunks_exact(4).take(self.numbers());
        for (number, bytes) in numbers.iter_mut().zip(found) {
            *number = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        numbers
    }

    /// The codes of a block's elements.
    #[inline(always)]
    pub fn codes(&self, block: &[u8], codes: &mut [u8]) {
        let packed = block.get(self.header_bytes()..).unwrap_or_default();
        if self.bits == 8 {
            for (code, byte) in codes.iter_mut().zip(packed) {
                *code = *byte;
            }
            return;
        }
        for (pair, byte) in codes.chunks_exact_mut(2).zip(packed) {
            pair[0] = byte & 0x0f;
            pair[1] = byte >> 4;
        }
    }

    /// A block of codes; `numbers` are its scales, and behind them the minimums.
    pub fn write(&self, block: &mut [u8], numbers: &[f32], codes: &[u8]) {
        let (header, packed) = block.split_at_mut(self.header_bytes());
        for (bytes, number) in header.chunks_exact_mut(4).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        if self.bits == 8 {
            return packed.copy_from_slice(codes);
        }
        for (byte, pair) in packed.iter_mut().zip(codes.chunks_exact(2)) {
            *byte = pair[0] & 0x0f | pair[1] << 4;
        }
    }

    /// Expands one block.
    pub(super) fn dequantize(&self, block: &[u8], output: &mut [f32]) {
        let mut codes = [0u8; GROUP];
        self.codes(block, &mut codes);
        let numbers = self.header(block);
        let levels = self.levels();
        for (run, (values, codes)) in output
            .chunks_mut(self.run)
            .zip(codes.chunks(self.run))
            .enumerate()
        {
            for (value, &code) in values.iter_mut().zip(codes) {
                let scaled = numbers[run] * levels[usize::from(code)];
                *value = if self.has_minimum {
                    scaled + numbers[self.scales() + run]
                } else {
                    self.rounding.of(scaled)
                };
            }
        }
    }
}

/// A 256th of the float that a byte of e4m3 stands for: its bits are those of a half then. The two NaN codes become
/// finite; no block has them.
pub fn half_of_e4m3(code: u8) -> f32 {
    let bits = u16::from(code);
    f16::from_bits((bits & 0x80) << 8 | (bits & 0x7f) << 7).to_f32()
}

/// The float that a byte of e5m2 stands for: the upper half of a half.
pub fn of_e5m2(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << 8).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::dequantize;

    #[test]
    fn blocks_expand_to_what_was_written() {
        for kind in BlockType::GROUPED {
            let form = GroupForm::of(kind).unwrap();
            let codes: Vec<u8> = (0..GROUP)
                .map(|at| (at * 37 % (1 << form.bits).min(124)) as u8)
                .collect();
            let numbers = [0.1, 0.2, -0.3, 0.4, -0.5, 0.6, 0.7, 0.8];
            let mut block = vec![0; kind.bytes()];
            form.write(&mut block, &numbers[..form.numbers()], &codes);
            let found = dequantize(kind, &block).unwrap();
            for (at, (found, &code)) in found.iter().zip(&codes).enumerate() {
                let scaled = numbers[at / form.run] * form.levels()[usize::from(code)];
                let minimum = if form.has_minimum {
                    numbers[form.scales() + at / form.run]
                } else {
                    0.0
                };
                let expected = form.rounding.of(scaled + minimum);
                assert_eq!(*found, expected, "{}", kind.name());
            }
        }
    }

    #[test]
    fn numbers_are_rounded_to_what_the_type_says() {
        let first = |kind: BlockType, scale: f32, code: u8| {
            let form = GroupForm::of(kind).unwrap();
            let mut block = vec![0; kind.bytes()];
            form.write(&mut block, &[scale], &[code; GROUP]);
            dequantize(kind, &block).unwrap()[0]
        };
        // The level 1. A 256th more is as near to two numbers of bf16, a 2,048th more to two of f16.
        let one = 15;
        let scale = 1.0 + 1.0 / 256.0;
        assert_eq!(first(BlockType::Nf4, scale, one), scale);
        assert_eq!(first(BlockType::Nf4Bf16, scale, one), 1.0);
        assert_eq!(first(BlockType::Nf4Bf16, 1.0 + 3.0 / 256.0, one), 1.015_625);
        assert_eq!(first(BlockType::Nf4F16, scale, one), scale);
        assert_eq!(first(BlockType::Nf4F16, 1.0 + 1.0 / 2048.0, one), 1.0);
        assert_eq!(first(BlockType::Fp4F16, 1.0, 1), 1365.0 / 262_144.0);
        assert_eq!(first(BlockType::Fp4Bf16, 1.0, 9), -171.0 / 32_768.0);
    }

    #[test]
    fn floats_of_eight_bits_have_their_values() {
        let level = |code: u8| 256.0 * half_of_e4m3(code);
        for (code, value) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x07, 7.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(level(code), value);
        }
        for (code, value) in [
            (0x01, 1.0 / 65_536.0),
            (0x3c, 1.0),
            (0x3d, 1.25),
            (0x7b, 57_344.0),
            (0xc0, -2.0),
        ] {
            assert_eq!(of_e5m2(code), value);
        }
    }
}
