//! Types without kernels as groups of 64 elements with scales of f32, which the CPU has kernels for.

use rayon::prelude::*;

use super::{fp4_scale, nibble, Coded, Split, BLOCKS_PER_TASK, NVFP4_ELEMENTS, SUPER};
use crate::Result;
use base::quant::{BlockType, GroupForm, GROUP, RUN};
use base::runtime::threads;

const _: () = assert!(NVFP4_ELEMENTS == GROUP);

/// Super-blocks whose levels are those of IQ2.
pub(super) fn of_super_blocks(kind: Coded, bytes: &[u8]) -> Result<Option<(BlockType, Vec<u8>)>> {
    converted(
        BlockType::Iq2,
        (kind.bytes(), SUPER / GROUP),
        bytes,
        |form, block, groups| {
            let split = kind.split(block);
            for (number, group) in groups.enumerate() {
                write_iq2(form, &split, number, group);
            }
        },
    )
}

/// Blocks of NVFP4, whose codes lie elsewhere.
pub(super) fn of_nvfp4(bytes: &[u8]) -> Result<Option<(BlockType, Vec<u8>)>> {
    converted(
        BlockType::NvFp4,
        (Coded::Nvfp4.bytes(), 1),
        bytes,
        |form, block, groups| {
            for group in groups {
                let scales: [f32; GROUP / RUN] =
                    std::array::from_fn(|run| 2.0 * fp4_scale(block[run]));
                // Runs of 16 have their first half in the low nibbles of eight bytes.
                let codes: [u8; GROUP] = std::array::from_fn(|at| {
                    let byte = 8 * (at / RUN) + at % 8;
                    nibble(&block[4..], 2 * byte + at % RUN / 8)
                });
                form.write(group, &scales, &codes);
            }
        },
    )
}

/// Blocks of so many bytes, each as so many groups of a type.
fn converted(
    kind: BlockType,
    (size, groups): (usize, usize),
    bytes: &[u8],
    convert: impl Fn(GroupForm, &[u8], std::slice::ChunksExactMut<'_, u8>) + Sync,
) -> Result<Option<(BlockType, Vec<u8>)>> {
    let Some(form) = GroupForm::of(kind) else {
        return Ok(None);
    };
    let length = groups * kind.bytes();
    let mut blocks = vec![0u8; bytes.len() / size * length];
    threads::install(|| {
        let parts = blocks.par_chunks_exact_mut(length);
        let parts = parts.zip(bytes.par_chunks_exact(size));
        parts
            .with_min_len(BLOCKS_PER_TASK)
            .for_each(|(to, block)| convert(form, block, to.chunks_exact_mut(kind.bytes())));
    })?;
    Ok(Some((kind, blocks)))
}

fn write_iq2(form: GroupForm, split: &Split, number: usize, group: &mut [u8]) {
    let first = number * GROUP;
    let scale = |run: usize| split.scale * f32::from(split.scales[first / RUN + run]);
    let scales: [f32; GROUP / RUN] = std::array::from_fn(scale);
    // The code of a level is its place among 8, 25 and 43; the fourth bit is its sign.
    let codes: [u8; GROUP] = std::array::from_fn(|at| {
        let level = split.levels[first + at];
        let place = match level.unsigned_abs() {
            8 => 0,
            25 => 1,
            43 => 2,
            _ => 3,
        };
        place | if level < 0 { 8 } else { 0 }
    });
    form.write(group, &scales, &codes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_numbers_of_their_blocks() {
        for kind in [Coded::Iq2Xxs, Coded::Iq2Xs, Coded::Iq2S, Coded::Nvfp4] {
            let mut state = 5u32;
            let mut bytes: Vec<u8> = (0..8 * kind.bytes())
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            if kind != Coded::Nvfp4 {
                // The scale, an f16, between 2⁻⁶ and 2⁻⁵.
                bytes
                    .chunks_mut(kind.bytes())
                    .for_each(|block| block[1] = 0x24 | block[1] & 0x83);
            }
            let (found, groups) = kind.blocks(&bytes).unwrap().unwrap();
            let values = base::quant::dequantize(found, &groups).unwrap();
            assert_eq!(values, kind.dequantize(&bytes).unwrap(), "{}", kind.name());
        }
    }
}
