//! Products with matrices of groups whose scales are f32, in f32: each code is looked up or converted as it is read,
//! and the sums of a group are scaled once. x is not rounded.

mod decode;
mod kernel;
mod lined;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::cpu::isa::Isa;
use crate::cpu::product::driver::{Context, TaskRows, Tile, WeightMatrix};
use crate::cpu::product::store::Panels;
use crate::cpu::{for_each_range, Output};
use crate::{Error, Result};
use base::quant::{BlockType, GroupForm, QuantizedTensor, GROUP};
use base::runtime::prefetch::Span;

pub use lined::LinedMatrix;

/// Outputs of a panel.
const PANEL: usize = 16;
/// Bytes of the file that are packed before their pages are released.
const RELEASED: usize = 4 << 20;

/// A matrix [outputs, inputs], whose rows may end within a group, in panels of 16 outputs, each block after block: the scales of all outputs, the minimums
/// where the type has them, and the codes. Those of eight bits lie input after input, 16 outputs each; those of four
/// bits in words of eight inputs, the first in the lowest bits, a word for each output.
#[derive(Clone)]
pub struct GroupedMatrix {
    kind: BlockType,
    form: GroupForm,
    /// Bytes from panel to panel.
    stride: usize,
    panels: Panels<u8>,
    pub inputs: usize,
    pub outputs: usize,
}

impl std::fmt::Debug for GroupedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind.name();
        write!(
            f,
            "GroupedMatrix[{}, {}] of {kind}",
            self.outputs, self.inputs
        )
    }
}

/// Elements of x whose sums are at hand: those that share a minimum in the finest formats.
const SUMMED: usize = 16;

/// Rows of x, for matrices of any type, and their sums.
pub struct GroupedRows<'a> {
    /// With zeros after rows that are not whole groups.
    x: Cow<'a, [f32]>,
    sums: Vec<f32>,
}

/// Bytes of a block of a panel before its codes.
fn header_bytes(form: GroupForm) -> usize {
    PANEL * form.header_bytes()
}

fn block_bytes(form: GroupForm) -> usize {
    header_bytes(form) + PANEL * GROUP * form.bits / 8
}

impl GroupedMatrix {
    pub fn kind(&self) -> BlockType {
        self.kind
    }

    /// Packs the blocks, and releases the file's pages on the way; `None` for types of other blocks.
    pub fn new(blocks: &QuantizedTensor) -> Result<Option<Self>> {
        let Some(form) = GroupForm::of(blocks.kind) else {
            return Ok(None);
        };
        let misfit = || {
            Error::InvalidInput(format!(
                "{} bytes of {} do not hold a matrix of shape {:?}",
                blocks.bytes.len(),
                blocks.kind.name(),
                blocks.shape
            ))
        };
        let [outputs, inputs] = blocks.shape[..] else {
            return Err(misfit());
        };
        let groups = inputs.div_ceil(GROUP);
        let row = groups.checked_mul(blocks.kind.bytes()).ok_or_else(misfit)?;
        let needed = outputs.checked_mul(row);
        if needed.is_none_or(|needed| needed > blocks.bytes.len()) {
            return Err(misfit());
        }
        let stride = groups * block_bytes(form);
        let panels = outputs.div_ceil(PANEL);
        let batch = (RELEASED / (PANEL * row).max(1)).max(1);
        // SAFETY: every panel is written in full, by one task.
        let packed = unsafe {
            Panels::build(panels * stride, |out: Output<u8>| {
                for first in (0..panels).step_by(batch) {
                    let count = batch.min(panels - first);
                    for_each_range(count, PANEL * groups * GROUP, |range| {
                        for panel in first + range.start..first + range.end {
                            let to = out.at(panel * stride);
                            to.write_bytes(0, stride);
                            let bytes = std::slice::from_raw_parts_mut(to, stride);
                            pack_panel(form, blocks, panel * PANEL, bytes);
                        }
                    });
                    blocks.release_rows(first * PANEL..(first + count) * PANEL);
                }
            })?
        };
        Ok(Some(Self {
            kind: blocks.kind,
            form,
            stride,
            panels: packed,
            inputs,
            outputs,
        }))
    }
}

/// Rows of so many inputs, with zeros up to whole groups.
fn whole_groups(x: &[f32], inputs: usize) -> Cow<'_, [f32]> {
    if inputs == 0 || inputs.is_multiple_of(GROUP) {
        return Cow::Borrowed(x);
    }
    let width = inputs.next_multiple_of(GROUP);
    let mut padded = vec![0.0; x.len() / inputs * width];
    for (to, row) in padded.chunks_exact_mut(width).zip(x.chunks_exact(inputs)) {
        to[..inputs].copy_from_slice(row);
    }
    Cow::Owned(padded)
}

/// The outputs from `first` on into a panel of zeros.
fn pack_panel(form: GroupForm, blocks: &QuantizedTensor, first: usize, panel: &mut [u8]) {
    let outputs = blocks.shape.first().copied().unwrap_or(0);
    // Floats of e4m3 are read as a 256th of what they are.
    let raised = if blocks.kind == BlockType::Fp8 {
        256.0
    } else {
        1.0
    };
    let mut codes = [0u8; GROUP];
    for row in 0..PANEL.min(outputs - first) {
        let bytes = blocks
            .row_bytes(first + row)
            .chunks_exact(blocks.kind.bytes());
        for (block, to) in bytes.zip(panel.chunks_exact_mut(block_bytes(form))) {
            let numbers = form.header(block);
            form.codes(block, &mut codes);
            let (header, to) = to.split_at_mut(header_bytes(form));
            let (scales, minimums) = numbers[..form.numbers()].split_at(form.scales());
            let scales = scales.iter().map(|scale| scale * raised);
            for (number, value) in scales.chain(minimums.iter().copied()).enumerate() {
                header[4 * (number * PANEL + row)..][..4].copy_from_slice(&value.to_le_bytes());
            }
            if form.bits == 8 {
                for (input, &code) in codes.iter().enumerate() {
                    to[input * PANEL + row] = code;
                }
                continue;
            }
            for (word, codes) in codes.chunks_exact(8).enumerate() {
                for (at, pair) in codes.chunks_exact(2).enumerate() {
                    to[4 * (word * PANEL + row) + at] = pair[0] | pair[1] << 4;
                }
            }
        }
    }
}

impl WeightMatrix<f32> for GroupedMatrix {
    const PANEL: usize = PANEL;
    type Rows<'a> = GroupedRows<'a>;
    type Workspace = ();

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn task_rows(&self, _: Isa) -> TaskRows {
        TaskRows {
            most: 96,
            unit: kernel::MOST_ROWS,
            together: 96,
            padded: false,
        }
    }

    fn span(&self) -> Option<Span> {
        Some(Span::new(&self.panels))
    }

    fn prepare<'a>(&self, _: Isa, x: &'a [f32], _: usize) -> GroupedRows<'a> {
        let sum = |group: &[f32]| {
            let mut sums = [0f32; 8];
            for part in group.chunks_exact(8) {
                for (sum, value) in sums.iter_mut().zip(part) {
                    *sum += value;
                }
            }
            sums.iter().sum::<f32>()
        };
        let x = whole_groups(x, self.inputs);
        let sums = x.chunks_exact(SUMMED).map(sum).collect();
        GroupedRows { x, sums }
    }

    unsafe fn multiply_tile(
        &self,
        context: &Context,
        (): &mut (),
        x: &GroupedRows<'_>,
        tile: Tile,
    ) {
        let groups = self.inputs.div_ceil(GROUP);
        let levels = self.form.levels();
        let (width, sums) = (groups * GROUP, groups * GROUP / SUMMED);
        let operands = kernel::Operands {
            x: x.x[tile.row * width..][..tile.rows * width].as_ptr(),
            sums: x.sums[tile.row * sums..][..tile.rows * sums].as_ptr(),
            groups,
            panel: self.panels[tile.panel * self.stride..][..self.stride].as_ptr(),
            levels: &levels[..],
        };
        // SAFETY: x and the panel have as many groups; the caller vouches for the sums.
        unsafe { kernel::multiply(context.isa, self.kind, operands, tile.rows, tile.sums) };
    }
}
