//! From blocks as a file has them to panels.

use half::f16;

use super::format::{for_format, Format, Sections, GROUP, PANEL};
use crate::kernels::cpu::isa::dispatched;
use crate::kernels::cpu::simd::Simd;
use crate::weights::{split_block, BlockType, Header, QuantizedTensor, RUN};

/// Bits of a code, by the step it is in: bytes are shared by `8 / bits` steps.
#[inline(always)]
fn place_bits(codes: &[u8; GROUP], bits: usize, shift: usize, row: usize, plane: &mut [u8]) {
    let shared = GROUP * bits / 8;
    let mut packed = [0u8; GROUP];
    for (part, codes) in codes.chunks_exact(shared).enumerate() {
        for (byte, code) in packed.iter_mut().zip(codes) {
            *byte |= (code >> shift) << (bits * part);
        }
    }
    let words = packed[..shared].chunks_exact(4);
    for (word, step) in words.zip(plane.chunks_exact_mut(4 * PANEL)) {
        step[4 * row..][..4].copy_from_slice(word);
    }
}

/// The bit above the low ones, into the masks of the eight steps.
#[inline(always)]
fn place_mask(codes: &[u8; GROUP], shift: usize, row: usize, plane: &mut [u8]) {
    for (codes, mask) in codes.chunks_exact(4).zip(plane.chunks_exact_mut(8)) {
        let mut bits = 0;
        for (i, code) in codes.iter().enumerate() {
            bits |= (code >> shift & 1) << (4 * (row % 2) + i);
        }
        mask[row / 2] |= bits;
    }
}

#[inline(always)]
fn pack_row<F: Format>(
    kind: BlockType,
    blocks: &[u8],
    row: usize,
    sections: &Sections,
    panel: &mut [u8],
) {
    let (low, rest) = panel.split_at_mut(sections.high);
    let (high, scales) = rest.split_at_mut(sections.scales - sections.high);
    let mut codes = [0u8; 8 * GROUP];
    let codes = &mut codes[..kind.elements()];
    let low_mask = ((1u16 << F::LOW_BITS) - 1) as u8;
    for (index, block) in blocks.chunks_exact(kind.bytes()).enumerate() {
        let header = split_block(kind, block, codes);
        let scales = &mut scales[index * F::SCALE_BYTES..][..F::SCALE_BYTES];
        place_header::<F>(&header, row, scales);
        let codes = codes.chunks_exact(GROUP).enumerate();
        for (group, codes) in codes.map(|(at, codes)| (index * F::GROUPS + at, codes)) {
            let mut all = [0; GROUP];
            all.copy_from_slice(codes);
            let low = &mut low[group * F::LOW_BYTES..][..F::LOW_BYTES];
            let high = &mut high[group * F::HIGH_BYTES..][..F::HIGH_BYTES];
            match F::HIGH_BITS {
                0 => {}
                1 => place_mask(&all, F::LOW_BITS, row, high),
                bits => place_bits(&all, bits, F::LOW_BITS, row, high),
            }
            place_bits(&all.map(|code| code & low_mask), F::LOW_BITS, 0, row, low);
        }
    }
}

#[inline(always)]
fn place_header<F: Format>(header: &Header, row: usize, scales: &mut [u8]) {
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    scales[2 * row..][..2].copy_from_slice(&half(header.scale));
    let mut at = 2 * PANEL;
    if F::MINIMUM {
        scales[at + 2 * row..][..2].copy_from_slice(&half(header.minimum));
        at += 2 * PANEL;
    }
    if !F::SUPER {
        return;
    }
    let every = if F::RUNS { 1 } else { 2 };
    for group in 0..F::GROUPS {
        let runs = (2 * group..2 * group + 2).step_by(every);
        for (step, run) in runs.clone().enumerate() {
            scales[at + step * PANEL + row] = header.scales[run] as u8;
        }
        at += F::STEP_BYTES;
        if F::MINIMUM {
            for (step, run) in runs.enumerate() {
                scales[at + step * PANEL + row] = header.minimums[run];
            }
            at += F::STEP_BYTES;
        }
    }
}

const _: () = assert!(GROUP == 2 * RUN);

#[inline(always)]
unsafe fn pack_panel_with<S: Simd>(
    blocks: &QuantizedTensor,
    sections: &Sections,
    first: usize,
    panel: &mut [u8],
) {
    let outputs = blocks.shape.first().copied().unwrap_or(0);
    for_format!(
        blocks.kind,
        F => {
            for row in 0..PANEL.min(outputs - first) {
                pack_row::<F>(blocks.kind, blocks.row_bytes(first + row), row, sections, panel);
            }
        },
        ()
    );
}

dispatched! {
    /// The outputs from `first` on into a panel of zeros.
    ///
    /// # Safety
    /// None beyond the instruction set's being there, which an `Isa` says.
    pub(super) unsafe fn pack_panel(
        blocks: &QuantizedTensor, sections: &Sections, first: usize, panel: &mut [u8],
    ) = pack_panel_with
}
