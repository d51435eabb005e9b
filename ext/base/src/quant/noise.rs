//! Blocks of random bits, for tests and self-tests.

use super::{BlockType, GroupForm, QuantizedTensor, GROUP};
use crate::runtime::bytes::Bytes;

/// A matrix of random bits whose scales, which are f16, stay small; Q8_K's, an f32, too.
pub fn random_matrix(kind: BlockType, outputs: usize, inputs: usize) -> QuantizedTensor {
    let count = inputs / kind.elements() * outputs;
    let mut state = 7u32;
    let mut bytes: Vec<u8> = (0..count * kind.bytes())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    for block in bytes.chunks_mut(kind.bytes()) {
        if let Some(form) = GroupForm::of(kind) {
            small_scales(form, block);
            continue;
        }
        for at in [0, 2, kind.bytes() - 4, kind.bytes() - 2] {
            // The sign and exponent of an f16 between 2⁻⁶ and 2⁻⁵.
            block[at + 1] = 0b0010_0100 | (block[at + 1] & 0b1000_0011);
        }
        if kind == BlockType::Q8K {
            // An f32 between 2⁻⁷ and 2⁻⁵.
            block[3] = 0b0011_1100;
        }
    }
    QuantizedTensor {
        kind,
        shape: vec![outputs, inputs],
        bytes: Bytes::unpacked(bytes),
        order: None,
        fp8_rows: false,
    }
}

/// A matrix of FP8 that is multiplied with rows of FP8, too: of random bits, with a scale for each output, or for every
/// square of so many outputs and inputs.
pub fn fp8_matrix(outputs: usize, inputs: usize, square: Option<usize>) -> QuantizedTensor {
    let mut matrix = random_matrix(BlockType::Fp8, outputs, inputs);
    let mut bytes = matrix.bytes.to_vec();
    let across = (inputs / GROUP).max(1);
    for (at, block) in bytes.chunks_mut(BlockType::Fp8.bytes()).enumerate() {
        let (output, input) = (at / across, at % across * GROUP);
        let step = match square {
            Some(side) => 5 * (output / side) + input / side,
            None => output,
        };
        let scale = 0.01 + 0.001 * (step % 7) as f32;
        block[..4].copy_from_slice(&scale.to_le_bytes());
    }
    matrix.bytes = Bytes::unpacked(bytes);
    matrix.fp8_rows = true;
    matrix
}

/// Scales, and the minimum, of f32 become numbers between 2⁻⁷ and 2⁻⁵; no code of floats is not a number.
fn small_scales(form: GroupForm, block: &mut [u8]) {
    let (header, codes) = block.split_at_mut(form.header_bytes());
    for scale in header.chunks_exact_mut(4) {
        scale[3] = 0b0011_1100 | (scale[3] & 0b1000_0000);
    }
    if form.bits == 8 && !form.has_minimum {
        let levels = form.levels();
        // The NaN of e4m3 is finite there.
        let sound = |code: u8| levels[usize::from(code)].abs() < 464.0;
        for code in codes.iter_mut() {
            // One of e5m2 would else stand for more than all others together.
            while !sound(*code) {
                *code -= if *code & 0x7f == 0x7f { 1 } else { 8 };
            }
        }
    }
}
