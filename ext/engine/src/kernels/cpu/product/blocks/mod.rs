//! Products with matrices of quantized blocks, in integers: the rows of x become pairs of bytes with a
//! scale for every 32, and the blocks are laid out once so that a vector instruction serves 16 outputs.

#[cfg(target_arch = "aarch64")]
mod arm;
mod format;
mod integers;
mod level;
mod pack;
mod product;
mod quantize;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use crate::kernels::cpu::isa::Isa;
use crate::kernels::cpu::product::gemm::GemmEpilogue;
use crate::kernels::cpu::product::store::Panels;
use crate::kernels::cpu::rows::norm::add_row;
use crate::kernels::cpu::{build, for_each_range, Output};
use crate::quant::{BlockType, QuantizedTensor};
use crate::{Error, Result};
use format::{for_format, Format, PANEL};
use level::Level;
use product::{multiply_panel, Panel};
use quantize::{QuantizedRows, PLANES};

/// Rows of x that one task takes: with a panel they stay in the second-level cache.
const TASK_ROWS: usize = 96;

/// Bytes of the file that are laid out anew before their pages are let go.
const RELEASED: usize = 4 << 20;

/// A matrix [outputs, inputs].
#[derive(Clone)]
pub(crate) struct BlockMatrix {
    kind: BlockType,
    /// Bytes from panel to panel.
    stride: usize,
    panels: Panels<u8>,
    pub inputs: usize,
    pub outputs: usize,
}

impl std::fmt::Debug for BlockMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind.name();
        write!(
            f,
            "BlockMatrix[{}, {}] of {kind}",
            self.outputs, self.inputs
        )
    }
}

impl BlockMatrix {
    pub fn kind(&self) -> BlockType {
        self.kind
    }

    /// Whether there are products with blocks of this type.
    pub fn takes(kind: BlockType) -> bool {
        for_format!(kind, F => { let _: Option<F> = None; true }, false)
    }

    /// Lays the blocks out anew, and lets go of the file's pages on the way.
    pub fn new(isa: Isa, blocks: &QuantizedTensor) -> Result<Self> {
        let [outputs, inputs] = blocks.shape[..] else {
            return Err(Error::InvalidInput(format!(
                "a linear layer needs a matrix, not a tensor of shape {:?}",
                blocks.shape
            )));
        };
        let stride = for_format!(blocks.kind, F => Some(F::stride(inputs)), None);
        let row = inputs / blocks.kind.elements() * blocks.kind.bytes();
        let whole = inputs % blocks.kind.elements() == 0
            && outputs
                .checked_mul(row)
                .is_some_and(|needed| needed <= blocks.bytes.len());
        let Some(stride) = stride.filter(|_| whole) else {
            return Err(Error::InvalidInput(format!(
                "{} bytes of {} do not hold a matrix of shape {:?}",
                blocks.bytes.len(),
                blocks.kind.name(),
                blocks.shape
            )));
        };
        let panels = outputs.div_ceil(PANEL);
        let batch = (RELEASED / (PANEL * row).max(1)).max(1);
        // SAFETY: every panel is written in full, by one task.
        let packed = unsafe {
            Panels::build(panels * stride, |out: Output<u8>| {
                for first in (0..panels).step_by(batch) {
                    let count = batch.min(panels - first);
                    for_each_range(count, PANEL * inputs, |range| {
                        for panel in first + range.start..first + range.end {
                            let to = out.at(panel * stride);
                            to.write_bytes(0, stride);
                            let bytes = std::slice::from_raw_parts_mut(to, stride);
                            pack::pack_panel(isa, blocks, panel * PANEL, bytes);
                        }
                    });
                    blocks.release_rows(first * PANEL..(first + count) * PANEL);
                }
            })?
        };
        Ok(Self {
            kind: blocks.kind,
            stride,
            panels: packed,
            inputs,
            outputs,
        })
    }

    fn panel_count(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    fn panel(&self, index: usize) -> Panel<'_> {
        Panel {
            kind: self.kind,
            inputs: self.inputs,
            bytes: &self.panels[index * self.stride..][..self.stride],
            width: PANEL.min(self.outputs - index * PANEL),
        }
    }

    /// The rows times one panel, and the epilogue.
    ///
    /// # Safety
    /// `out` holds the product's rows; no other task writes these rows of the panel's columns.
    unsafe fn multiply_panel(
        &self,
        (isa, level): (Isa, Level),
        x: &QuantizedRows,
        rows: Range<usize>,
        index: usize,
        epilogue: &GemmEpilogue<'_>,
        out: Output<f32>,
    ) {
        let panel = self.panel(index);
        let start = index * PANEL;
        let columns = start..start + panel.width;
        // SAFETY: the caller vouches for the rows and columns of out.
        unsafe {
            let to = out.at(rows.start * self.outputs + start);
            multiply_panel(level, &panel, x, rows.start, rows.len(), to, self.outputs);
            if let Some(bias) = epilogue.bias {
                for row in rows.clone() {
                    let run = out.at(row * self.outputs + start);
                    add_row(isa, run, bias[start..].as_ptr(), run, columns.len());
                }
            }
            let rows = (rows.start, rows.len());
            epilogue.finish(isa, rows, columns, self.outputs, out);
        }
    }
}

/// A matrix, and what follows its product.
pub(crate) type Factor<'a> = (&'a BlockMatrix, GemmEpilogue<'a>);

/// x · matrixᵀ and the epilogue, for `rows` rows of x and every matrix, at once.
pub(crate) fn multiply(isa: Isa, x: &[f32], rows: usize, factors: &[Factor<'_>]) -> Vec<Vec<f32>> {
    multiply_at((isa, Level::of(isa)), x, rows, factors)
}

fn multiply_at(
    (isa, level): (Isa, Level),
    x: &[f32],
    rows: usize,
    factors: &[Factor<'_>],
) -> Vec<Vec<f32>> {
    for (matrix, epilogue) in factors {
        assert_eq!(x.len(), rows * matrix.inputs);
        assert!(epilogue.bias.is_none_or(|b| b.len() == matrix.outputs));
        assert!(epilogue
            .residual
            .is_none_or(|r| r.len() == rows * matrix.outputs));
    }
    let x = QuantizedRows::new(isa, x, rows);
    let row_tasks = rows.div_ceil(TASK_ROWS);
    // Where each matrix' panels end in the list of all.
    let ends: Vec<usize> = factors
        .iter()
        .scan(0, |end, (matrix, _)| {
            *end += matrix.panel_count();
            Some(*end)
        })
        .collect();
    let panels = ends.last().copied().unwrap_or(0);
    let inputs = factors.first().map_or(0, |(matrix, _)| matrix.inputs);
    let cost = PLANES * TASK_ROWS.min(rows).max(2) * inputs * PANEL;
    let run = |outputs: &[Output<f32>]| {
        for_each_range(panels * row_tasks, cost, |range| {
            for task in range {
                let (panel, first) = (task / row_tasks, task % row_tasks * TASK_ROWS);
                let at = ends.partition_point(|&end| end <= panel);
                let (matrix, epilogue) = &factors[at];
                let index = panel + matrix.panel_count() - ends[at];
                let rows = first..(first + TASK_ROWS).min(rows);
                // SAFETY: this task alone has these rows of this panel, within the product.
                unsafe {
                    matrix.multiply_panel((isa, level), &x, rows, index, epilogue, outputs[at]);
                }
            }
        })
    };
    let mut products = Vec::with_capacity(factors.len());
    build_all(rows, factors, &mut Vec::new(), &mut products, &run);
    products
}

/// The products' vectors, which `run` fills once it has them all.
fn build_all(
    rows: usize,
    factors: &[Factor<'_>],
    outputs: &mut Vec<Output<f32>>,
    products: &mut Vec<Vec<f32>>,
    run: &dyn Fn(&[Output<f32>]),
) {
    let Some(((matrix, _), rest)) = factors.split_first() else {
        return run(outputs);
    };
    // SAFETY: `run` covers every row and panel of every matrix once.
    let product = unsafe {
        build(rows * matrix.outputs, |out| {
            outputs.push(out);
            build_all(rows, rest, outputs, products, run);
        })
    };
    products.insert(0, product);
}
