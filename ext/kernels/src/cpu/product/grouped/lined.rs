//! Products with matrices of codes whose scales belong to columns: rows of x are scaled for the outputs that share a
//! line of scales, and then multiplied with their codes.

use super::{kernel, whole_groups, PANEL};
use crate::cpu::isa::Isa;
use crate::cpu::product::driver::{Context, Sums, TaskRows, Tile, WeightMatrix};
use crate::cpu::product::epilogue::{Finish, GemmEpilogue};
use crate::cpu::product::store::Panels;
use crate::cpu::{for_each_range, Element, Output};
use crate::{Error, Result};
use base::quant::{BlockType, GroupForm, LinedTensor, GROUP};
use base::runtime::prefetch::Span;

/// Rows of x that are scaled together.
const ROWS: usize = 24;
/// Numbers that are added up side by side.
const TURNS: usize = 8;

/// A matrix [outputs, inputs] whose outputs are those of the first line, then those of the next. Its panels have
/// 16 outputs of one line, as panels of groups without scales.
#[derive(Clone)]
pub struct LinedMatrix {
    bits: usize,
    lines: usize,
    /// [lines, inputs in whole groups].
    scales: Vec<f32>,
    minimums: Vec<f32>,
    stride: usize,
    panels: Panels<u8>,
    pub inputs: usize,
    pub outputs: usize,
}

impl std::fmt::Debug for LinedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (outputs, inputs, lines) = (self.outputs, self.inputs, self.lines);
        write!(f, "LinedMatrix[{outputs}, {inputs}] of {lines} lines")
    }
}

/// The rows of a tile, scaled for a line of a matrix.
#[derive(Default)]
pub struct ScaledRows {
    /// Which matrix, line and rows these are.
    of: Option<(usize, usize, usize, usize)>,
    x: Vec<f32>,
    /// What minimums add to all outputs of the line.
    constants: Vec<f32>,
}

impl LinedMatrix {
    /// Whether panels have outputs of one line alone.
    pub fn takes(matrix: &LinedTensor) -> bool {
        let rows = matrix.shape[0].checked_div(matrix.lines).unwrap_or(0);
        matches!(matrix.bits, 4 | 8) && rows > 0 && rows.is_multiple_of(PANEL)
    }

    pub fn new(matrix: &LinedTensor) -> Result<Self> {
        if !matrix.is_whole() || !Self::takes(matrix) {
            return Err(Error::InvalidInput(format!(
                "{} codes with {} scales in {} lines do not make a matrix of shape {:?}",
                matrix.codes.len(),
                matrix.scales.len(),
                matrix.lines,
                matrix.shape
            )));
        }
        let [outputs, inputs] = matrix.shape;
        let width = inputs.next_multiple_of(GROUP);
        let stride = width * PANEL * matrix.bits / 8;
        let (panels, rows) = (outputs / PANEL, outputs / matrix.lines);
        // SAFETY: every panel is written in full, by one task.
        let packed = unsafe {
            Panels::build(panels * stride, |out: Output<u8>| {
                for_each_range(panels, PANEL * width, |range| {
                    for panel in range {
                        let to = out.at(panel * stride);
                        to.write_bytes(0, stride);
                        let bytes = std::slice::from_raw_parts_mut(to, stride);
                        for lane in 0..PANEL {
                            let (line, at) = (panel * PANEL / rows, panel * PANEL % rows + lane);
                            let row = at * matrix.lines + line;
                            let codes = &matrix.codes[row * inputs..][..inputs];
                            put_codes(matrix.bits, codes, lane, bytes);
                        }
                    }
                });
            })?
        };
        Ok(Self {
            bits: matrix.bits,
            lines: matrix.lines,
            scales: whole_groups(&matrix.scales, inputs).into_owned(),
            minimums: whole_groups(&matrix.minimums, inputs).into_owned(),
            stride,
            panels: packed,
            inputs,
            outputs,
        })
    }

    /// The groups whose numbers are as many bits.
    pub fn kind(&self) -> BlockType {
        match self.bits {
            8 => BlockType::Int8,
            _ => BlockType::Int4,
        }
    }

    /// x · matrixᵀ and the epilogue, for `rows` rows of x, with the outputs in their usual order.
    pub fn multiply_in_order(
        &self,
        isa: Isa,
        x: &[f32],
        rows: usize,
        epilogue: &GemmEpilogue<'_, f32>,
    ) -> Vec<f32> {
        epilogue.check(rows, self.outputs);
        let product = self.multiply(isa, x, rows, &GemmEpilogue::default());
        let of_line = self.outputs / self.lines;
        let mut placed = vec![0f32; product.len()];
        let all = placed.chunks_exact_mut(self.outputs);
        for (to, from) in all.zip(product.chunks_exact(self.outputs)) {
            for (line, outputs) in from.chunks_exact(of_line).enumerate() {
                for (to, &output) in to[line..].iter_mut().step_by(self.lines).zip(outputs) {
                    *to = output;
                }
            }
        }
        let start = placed.as_mut_ptr();
        let finish = Finish {
            sums: Sums {
                start,
                stride: self.outputs,
            },
            rows,
            columns: self.outputs,
            bias: epilogue.bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            activation: epilogue.activation,
            residual: epilogue
                .residual
                .map_or(std::ptr::null(), |residual| residual.as_ptr().cast()),
            out: start.cast(),
            stride: self.outputs,
            stored: f32::STORED,
        };
        // SAFETY: outputs are whole vectors, since they are whole panels; the bias and the residual fit, as checked.
        unsafe { finish.run(isa) };
        placed
    }

    /// Scales the rows of a tile for a line, unless that was the last one.
    fn scale(&self, saved: &mut ScaledRows, x: &[f32], (line, row, rows): (usize, usize, usize)) {
        let of = Some((std::ptr::from_ref(self) as usize, line, row, rows));
        if saved.of == of {
            return;
        }
        saved.of = of;
        let width = self.inputs.next_multiple_of(GROUP);
        let scales = &self.scales[line * width..][..width];
        let minimums = &self.minimums[line * width..][..self.inputs];
        saved.x.clear();
        saved.x.resize(rows * width, 0.0);
        saved.constants.clear();
        let from = x[row * self.inputs..][..rows * self.inputs].chunks_exact(self.inputs);
        for (to, x) in saved.x.chunks_exact_mut(width).zip(from) {
            for ((to, x), scale) in to.iter_mut().zip(x).zip(scales) {
                *to = x * scale;
            }
            let mut sums = [0f32; TURNS];
            for (x, minimums) in x.chunks(TURNS).zip(minimums.chunks(TURNS)) {
                for ((sum, x), minimum) in sums.iter_mut().zip(x).zip(minimums) {
                    *sum += x * minimum;
                }
            }
            saved.constants.push(sums.iter().sum());
        }
    }
}

/// The codes of one output into a panel.
fn put_codes(bits: usize, codes: &[u8], lane: usize, panel: &mut [u8]) {
    for (input, &code) in codes.iter().enumerate() {
        match bits {
            8 => panel[input * PANEL + lane] = code,
            _ => panel[4 * (input / 8 * PANEL + lane) + input % 8 / 2] |= code << (input % 2 * 4),
        }
    }
}

impl WeightMatrix<f32> for LinedMatrix {
    const PANEL: usize = PANEL;
    type Rows<'a> = &'a [f32];
    type Workspace = ScaledRows;

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn task_rows(&self, _: Isa) -> TaskRows {
        TaskRows {
            most: ROWS,
            unit: kernel::MOST_ROWS,
            together: ROWS,
            padded: false,
        }
    }

    fn span(&self) -> Option<Span> {
        Some(Span::new(&self.panels))
    }

    fn prepare<'a>(&self, _: Isa, x: &'a [f32], _: usize) -> &'a [f32] {
        x
    }

    unsafe fn multiply_tile(
        &self,
        context: &Context,
        workspace: &mut ScaledRows,
        x: &&[f32],
        tile: Tile,
    ) {
        let line = tile.panel * PANEL / (self.outputs / self.lines);
        self.scale(workspace, x, (line, tile.row, tile.rows));
        let levels: &[f32] = GroupForm::of(self.kind()).map_or(&[], |form| &form.levels()[..]);
        let operands = kernel::Operands {
            x: workspace.x.as_ptr(),
            // Not read.
            sums: workspace.x.as_ptr(),
            groups: self.inputs.div_ceil(GROUP),
            panel: self.panels[tile.panel * self.stride..][..self.stride].as_ptr(),
            levels,
        };
        // SAFETY: the scaled rows and the panel have as many groups; the caller vouches for the sums, whose rows have
        // those of a panel.
        unsafe {
            kernel::multiply_codes(context.isa, self.bits, operands, tile.rows, tile.sums);
            for (row, constant) in workspace.constants.iter().enumerate() {
                for sum in std::slice::from_raw_parts_mut(tile.sums.row(row), PANEL) {
                    *sum += constant;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::test_numbers::numbers;

    fn tensor(bits: usize, outputs: usize, inputs: usize, lines: usize) -> LinedTensor {
        let codes = (0..outputs * inputs).map(|at| (at * 37 % (1 << bits)) as u8);
        let minimums = numbers(lines * inputs, 5);
        LinedTensor {
            shape: [outputs, inputs],
            bits,
            codes: codes.collect(),
            lines,
            scales: minimums.iter().map(|value| value / 16.0 + 0.1).collect(),
            minimums,
        }
    }

    #[test]
    fn codes_multiply_like_their_expansion() {
        for (bits, outputs, inputs, lines) in [
            (4, 64, 128, 4),
            (8, 48, 100, 3),
            (4, 32, 8, 1),
            (4, 192, 64, 6),
        ] {
            let tensor = tensor(bits, outputs, inputs, lines);
            let dense = tensor.dequantize();
            let matrix = LinedMatrix::new(&tensor).unwrap();
            for rows in [1, 7, 25] {
                let x = numbers(rows * inputs, 3);
                let (bias, residual) = (numbers(outputs, 7), numbers(rows * outputs, 9));
                let epilogue = GemmEpilogue {
                    bias: Some(&bias),
                    activation: None,
                    residual: Some(&residual),
                };
                let mut first = None;
                for isa in Isa::of_numbers() {
                    let found = matrix.multiply_in_order(isa, &x, rows, &epilogue);
                    assert!(*first.get_or_insert_with(|| found.clone()) == found);
                    for (at, found) in found.iter().enumerate() {
                        let (row, output) = (at / outputs, at % outputs);
                        let weights = dense[output * inputs..][..inputs].iter();
                        let products = weights.zip(&x[row * inputs..]);
                        let products = products.map(|(w, x)| f64::from(*w) * f64::from(*x));
                        let size: f64 = products.clone().map(f64::abs).sum();
                        let wanted = products.sum::<f64>() + f64::from(bias[output] + residual[at]);
                        assert!((f64::from(*found) - wanted).abs() <= 1e-5 * (1.0 + size));
                    }
                    // A row does not depend on the others.
                    let last = &x[(rows - 1) * inputs..];
                    let epilogue = GemmEpilogue {
                        bias: Some(&bias),
                        activation: None,
                        residual: Some(&residual[(rows - 1) * outputs..]),
                    };
                    let alone = matrix.multiply_in_order(isa, last, 1, &epilogue);
                    assert!(alone == found[(rows - 1) * outputs..]);
                }
            }
        }
    }

    #[test]
    fn what_does_not_make_a_matrix_is_refused() {
        let sound = tensor(4, 64, 128, 4);
        assert!(LinedMatrix::new(&sound).is_ok());
        let few = |change: fn(&mut LinedTensor)| {
            let mut tensor = sound.clone();
            change(&mut tensor);
            LinedMatrix::new(&tensor).is_err()
        };
        assert!(few(|tensor| tensor.codes.truncate(9)));
        assert!(few(|tensor| tensor.scales.truncate(9)));
        assert!(few(|tensor| tensor.shape[0] = usize::MAX));
        assert!(few(|tensor| tensor.lines = 0));
        assert!(few(|tensor| tensor.bits = 3));
        // Eight rows to a line.
        assert!(LinedMatrix::new(&self::tensor(4, 64, 128, 8)).is_err());
    }
}
