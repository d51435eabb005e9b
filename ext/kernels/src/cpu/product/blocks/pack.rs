//! From blocks as a file has them to panels.

use super::format::{for_format, Format, GROUP, PANEL, QUAD, SIGNED};
use crate::cpu::isa::dispatched;
use crate::cpu::simd::Simd;
use base::quant::{split_block, BlockType, Header, QuantizedTensor, RUN};

const _: () = assert!(GROUP == 2 * RUN);

/// `bits` of each code from `shift` on, by the step it is in: bytes are shared by `8 / bits` steps.
#[inline(always)]
fn place_bits(codes: &[u8; GROUP], bits: usize, shift: usize, row: usize, plane: &mut [u8]) {
    let shared = GROUP * bits / 8;
    let mask = ((1u16 << bits) - 1) as u8;
    let mut packed = [0u8; GROUP];
    let mut part = 0;
    while part * bits < 8 {
        for j in 0..shared {
            packed[j] |= (codes[part * shared + j] >> shift & mask) << (bits * part);
        }
        part += 1;
    }
    let steps = plane.as_chunks_mut::<{ 4 * PANEL }>().0;
    for (step, word) in steps[..shared / 4]
        .iter_mut()
        .zip(packed.as_chunks::<4>().0)
    {
        step.as_chunks_mut().0[row] = *word;
    }
}

/// Bit `shift` of each code, into the masks of the eight steps.
#[inline(always)]
fn place_mask(codes: &[u8; GROUP], shift: usize, row: usize, plane: &mut [u8]) {
    for step in 0..GROUP / 4 {
        let mut bits = 0;
        for i in 0..4 {
            bits |= (codes[4 * step + i] >> shift & 1) << i;
        }
        plane[8 * step + row / 2] |= bits << (4 * (row % 2));
    }
}

#[inline(always)]
fn place_group<F: Format>(
    header: &Header,
    group: usize,
    codes: &[u8; GROUP],
    row: usize,
    to: &mut [u8],
) {
    for step in 0..F::STEP_BYTES / PANEL {
        let run = 2 * group + step;
        to[step * PANEL + row] = header.scales[run] as u8;
        if F::MINIMUM {
            to[F::STEP_BYTES + step * PANEL + row] = header.minimums[run];
        }
    }
    let (high, low) = to[F::SCALE_BYTES..F::GROUP_BYTES].split_at_mut(F::HIGH_BYTES);
    match F::HIGH_BITS {
        0 => {}
        1 => place_mask(codes, F::LOW_BITS, row, high),
        bits => place_bits(codes, bits, F::LOW_BITS, row, high),
    }
    place_bits(codes, F::LOW_BITS, 0, row, low);
}

/// What every four outputs have of two steps, put so that the words of an output lie side by side.
fn zip_words<T: Copy>([first, second]: [[T; QUAD]; 2]) -> [[T; QUAD]; 2] {
    let [a, b] = [first, second];
    [[a[0], b[0], a[1], b[1]], [a[2], b[2], a[3], b[3]]]
}

/// Zips the codes of a group whose steps follow each other, a word of four bytes for each output and step.
fn zip_bits(plane: &mut [u8]) {
    for steps in plane.as_chunks_mut::<{ 8 * PANEL }>().0 {
        let (first, second) = steps.split_at_mut(4 * PANEL);
        let words = |step: &[u8], quad: usize| {
            let words = step.as_chunks::<4>().0;
            std::array::from_fn(|output| words[QUAD * quad + output])
        };
        for quad in 0..PANEL / QUAD {
            let zipped = zip_words([words(first, quad), words(second, quad)]);
            for (step, words) in [&mut *first, &mut *second].into_iter().zip(zipped) {
                step[4 * QUAD * quad..][..4 * QUAD].copy_from_slice(words.as_flattened());
            }
        }
    }
}

/// Zips masks, of which every four outputs have 16 bits.
fn zip_masks(masks: &mut [u8]) {
    for steps in masks.as_chunks_mut::<PANEL>().0 {
        let quads = steps.as_chunks_mut::<2>().0;
        for quad in 0..PANEL / QUAD {
            let bits = [quad, quad + PANEL / QUAD].map(|at| u16::from_le_bytes(quads[at]));
            let zipped = zip_words(bits.map(|bits| [0, 4, 8, 12].map(|shift| bits >> shift & 15)));
            for (number, words) in zipped.into_iter().enumerate() {
                let bits = words[0] | words[1] << 4 | words[2] << 8 | words[3] << 12;
                quads[quad + number * PANEL / QUAD] = bits.to_le_bytes();
            }
        }
    }
}

/// Zips the codes of a panel; its scales stay.
fn zip_panel<F: Format>(panel: &mut [u8]) {
    for block in panel.chunks_exact_mut(F::BLOCK_BYTES) {
        for group in block[F::HEADER_BYTES..].chunks_exact_mut(F::GROUP_BYTES) {
            let (high, low) = group[F::SCALE_BYTES..].split_at_mut(F::HIGH_BYTES);
            match F::HIGH_BITS {
                1 => zip_masks(high),
                _ => zip_bits(high),
            }
            zip_bits(low);
        }
    }
}

#[inline(always)]
fn pack_row<F: Format>(kind: BlockType, blocks: &[u8], row: usize, panel: &mut [u8]) {
    let mut codes = [[0u8; GROUP]; 8];
    let blocks = blocks.chunks_exact(kind.bytes());
    for (to, block) in panel.chunks_exact_mut(F::BLOCK_BYTES).zip(blocks) {
        let header = split_block(
            kind,
            block,
            &mut codes.as_flattened_mut()[..kind.elements()],
        );
        let (shared, groups) = to.split_at_mut(F::HEADER_BYTES);
        shared[2 * row..][..2].copy_from_slice(&header.scale.to_le_bytes());
        if F::MINIMUM {
            let minimum = header.minimum.to_le_bytes();
            shared[2 * (PANEL + row)..][..2].copy_from_slice(&minimum);
        }
        if SIGNED && F::LOW_BITS == 8 {
            // 128 more than the levels.
            codes
                .as_flattened_mut()
                .iter_mut()
                .for_each(|code| *code ^= 0x80);
        }
        for group in 0..F::GROUPS {
            let to = &mut groups[group * F::GROUP_BYTES..];
            place_group::<F>(&header, group, &codes[group], row, to);
        }
    }
}

#[inline(always)]
unsafe fn pack_panel_with<S: Simd>(
    blocks: &QuantizedTensor,
    first: usize,
    zipped: bool,
    panel: &mut [u8],
) {
    let outputs = blocks.shape.first().copied().unwrap_or(0);
    for_format!(
        blocks.kind,
        F => {
            for row in 0..PANEL.min(outputs - first) {
                pack_row::<F>(blocks.kind, blocks.row_bytes(first + row), row, panel);
            }
            if zipped {
                zip_panel::<F>(panel);
            }
        },
        ()
    );
}

dispatched! {
    /// The outputs from `first` on into a panel of zeros, the codes zipped or not.
    ///
    /// # Safety
    /// None beyond the instruction set's being there, which an `Isa` says.
    pub(super) unsafe fn pack_panel(
        blocks: &QuantizedTensor, first: usize, zipped: bool, panel: &mut [u8],
    ) = pack_panel_with
}
