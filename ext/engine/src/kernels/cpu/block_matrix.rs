//! Products with a matrix of quantized blocks that stays as its file has it.

use super::gemm::{multiply_panel, GemmEpilogue, PANEL};
use super::isa::{dispatched, Isa};
use super::simd::Simd;
use super::{build, for_each_range, with_scratch, Output};
use crate::weights::{dequantize_block, BlockType, QuantizedTensor};
use crate::{Error, Result};

/// From this many rows of x on, expanding blocks into a panel for the micro-kernels pays.
const PANEL_ROWS: usize = 6;

/// A matrix [outputs, inputs].
#[derive(Clone, Debug)]
pub(crate) struct BlockMatrix {
    blocks: QuantizedTensor,
    pub inputs: usize,
    pub outputs: usize,
}

impl BlockMatrix {
    pub fn new(blocks: QuantizedTensor) -> Result<Self> {
        let [outputs, inputs] = blocks.shape[..] else {
            return Err(Error::InvalidInput(format!(
                "a linear layer needs a matrix, not a tensor of shape {:?}",
                blocks.shape
            )));
        };
        let row = inputs / blocks.kind.elements() * blocks.kind.bytes();
        if inputs % blocks.kind.elements() != 0 || blocks.bytes.len() < outputs * row {
            return Err(Error::InvalidInput(format!(
                "{} bytes of {} do not hold a matrix of shape {:?}",
                blocks.bytes.len(),
                blocks.kind.name(),
                blocks.shape
            )));
        }
        Ok(Self {
            blocks,
            inputs,
            outputs,
        })
    }

    /// x · matrixᵀ and the epilogue, for `rows` rows of x.
    pub fn multiply(
        &self,
        isa: Isa,
        x: &[f32],
        rows: usize,
        epilogue: &GemmEpilogue<'_>,
    ) -> Vec<f32> {
        assert_eq!(x.len(), rows * self.inputs);
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == self.outputs));
        assert!(epilogue
            .residual
            .is_none_or(|residual| residual.len() == rows * self.outputs));
        let panels = self.outputs.div_ceil(PANEL);
        // SAFETY: the tasks cover every panel once.
        unsafe {
            build(rows * self.outputs, |out| {
                for_each_range(panels, rows.max(2) * self.inputs * PANEL, |range| {
                    for panel in range {
                        let start = panel * PANEL;
                        let width = PANEL.min(self.outputs - start);
                        if rows >= PANEL_ROWS {
                            self.multiply_expanded(isa, x, rows, (start, width), epilogue, out);
                        } else {
                            self.multiply_rows(isa, x, rows, (start, width), epilogue, out);
                        }
                        let columns = start..start + width;
                        epilogue.finish(isa, (0, rows), columns, self.outputs, out);
                    }
                })
            })
        }
    }

    /// # Safety
    /// `out` holds the rows of the product; no other task writes these columns.
    unsafe fn multiply_expanded(
        &self,
        isa: Isa,
        x: &[f32],
        rows: usize,
        (start, width): (usize, usize),
        epilogue: &GemmEpilogue<'_>,
        out: Output<f32>,
    ) {
        with_scratch(self.inputs * (PANEL + 1), |scratch| {
            let (row, panel) = scratch.split_at_mut(self.inputs);
            for column in 0..width {
                self.expand(isa, start + column, row);
                for (k, &value) in row.iter().enumerate() {
                    panel[k * PANEL + column] = value;
                }
            }
            let bias = epilogue
                .bias
                .map_or(std::ptr::null(), |bias| bias[start..].as_ptr());
            // SAFETY: x has the rows, the panel its inputs, and the bias and out `width` columns here.
            unsafe {
                let to = out.at(start);
                let (inputs, outputs) = (self.inputs, self.outputs);
                multiply_panel(
                    isa,
                    x.as_ptr(),
                    panel.as_ptr(),
                    bias,
                    to,
                    rows,
                    inputs,
                    outputs,
                    width,
                );
            }
        });
    }

    /// # Safety
    /// As for `multiply_expanded`.
    unsafe fn multiply_rows(
        &self,
        isa: Isa,
        x: &[f32],
        rows: usize,
        (start, width): (usize, usize),
        epilogue: &GemmEpilogue<'_>,
        out: Output<f32>,
    ) {
        with_scratch(self.inputs, |row| {
            for column in start..start + width {
                self.expand(isa, column, row);
                let bias = epilogue.bias.map_or(0.0, |bias| bias[column]);
                for (index, x) in x.chunks_exact(self.inputs).enumerate().take(rows) {
                    // SAFETY: both have `inputs` elements, and the place is this task's.
                    unsafe {
                        let sum = dot(isa, row.as_ptr(), x.as_ptr(), self.inputs);
                        *out.at(index * self.outputs + column) = sum + bias;
                    }
                }
            }
        });
    }

    /// One row of the matrix into `output`, which has as many elements as it.
    fn expand(&self, isa: Isa, row: usize, output: &mut [f32]) {
        let bytes = self.blocks.row_bytes(row);
        // SAFETY: `new` checked that every row is whole.
        unsafe { expand_row(isa, self.blocks.kind, bytes, output) }
    }
}

#[inline(always)]
unsafe fn expand_row_with<S: Simd>(kind: BlockType, bytes: &[u8], output: &mut [f32]) {
    let outputs = output.chunks_exact_mut(kind.elements());
    for (output, block) in outputs.zip(bytes.chunks_exact(kind.bytes())) {
        dequantize_block(kind, block, output);
    }
}

dispatched! {
    unsafe fn expand_row(kind: BlockType, bytes: &[u8], output: &mut [f32]) = expand_row_with
}

#[inline(always)]
unsafe fn dot_with<S: Simd>(a: *const f32, b: *const f32, count: usize) -> f32 {
    // SAFETY: the caller vouches for `count` elements of both.
    unsafe {
        let mut sums = [S::splat(0.0); 4];
        let mut i = 0;
        while i + 4 * S::LANES <= count {
            for (lane, sum) in sums.iter_mut().enumerate() {
                let at = i + lane * S::LANES;
                *sum = S::fma(S::load(a.add(at)), S::load(b.add(at)), *sum);
            }
            i += 4 * S::LANES;
        }
        let mut total = S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]));
        while i + S::LANES <= count {
            total = S::fma(S::load(a.add(i)), S::load(b.add(i)), total);
            i += S::LANES;
        }
        let mut sum = S::sum(total);
        while i < count {
            sum += *a.add(i) * *b.add(i);
            i += 1;
        }
        sum
    }
}

dispatched! {
    unsafe fn dot(a: *const f32, b: *const f32, count: usize) -> f32 = dot_with
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{dequantize, Bytes};

    const KINDS: [BlockType; 10] = [
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::Q2K,
        BlockType::Q3K,
        BlockType::Q4K,
        BlockType::Q5K,
        BlockType::Q6K,
    ];

    /// Blocks of random bits whose scales, which are f16, stay small.
    fn random_blocks(kind: BlockType, count: usize) -> Vec<u8> {
        let mut state = 7u32;
        let mut bytes: Vec<u8> = (0..count * kind.bytes())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        for block in bytes.chunks_mut(kind.bytes()) {
            let ends = [0, 2, kind.bytes() - 4, kind.bytes() - 2];
            for at in ends {
                // The sign and exponent of an f16 between 2⁻⁶ and 2⁻⁵.
                block[at + 1] = 0b0010_0100 | (block[at + 1] & 0b1000_0011);
            }
        }
        bytes
    }

    #[test]
    fn every_block_type_multiplies_like_its_expansion() {
        let (inputs, outputs) = (512, 37);
        for kind in KINDS {
            let bytes = random_blocks(kind, inputs / kind.elements() * outputs);
            let dense = dequantize(kind, &bytes).unwrap();
            let matrix = BlockMatrix::new(QuantizedTensor {
                kind,
                shape: vec![outputs, inputs],
                bytes: Bytes::unpacked(bytes),
            })
            .unwrap();
            let bias: Vec<f32> = (0..outputs).map(|i| i as f32).collect();
            for rows in [1, 2, 5, 6, 19] {
                let x: Vec<f32> = (0..rows * inputs).map(|i| (i % 11) as f32 - 5.0).collect();
                for &isa in Isa::available() {
                    let epilogue = GemmEpilogue {
                        bias: Some(&bias),
                        ..Default::default()
                    };
                    let got = matrix.multiply(isa, &x, rows, &epilogue);
                    for (i, got) in got.iter().enumerate() {
                        let (row, output) = (i / outputs, i % outputs);
                        let products = x[row * inputs..][..inputs]
                            .iter()
                            .zip(&dense[output * inputs..][..inputs])
                            .map(|(a, b)| f64::from(*a) * f64::from(*b));
                        let size: f64 = products.clone().map(f64::abs).sum();
                        let expected = products.sum::<f64>() + f64::from(bias[output]);
                        let off = (f64::from(*got) - expected).abs();
                        assert!(
                            off <= 1e-5 * (1.0 + size),
                            "{} {isa:?} {rows}: {off}",
                            kind.name()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_that_do_not_make_a_matrix_are_refused() {
        let tensor = |shape: Vec<usize>, length: usize| QuantizedTensor {
            kind: BlockType::Q8_0,
            shape,
            bytes: Bytes::unpacked(vec![0; length]),
        };
        assert!(BlockMatrix::new(tensor(vec![2, 32], 2 * 34)).is_ok());
        assert!(BlockMatrix::new(tensor(vec![2, 32], 34)).is_err());
        assert!(BlockMatrix::new(tensor(vec![2, 33], 2 * 34)).is_err());
        assert!(BlockMatrix::new(tensor(vec![64], 68)).is_err());
    }
}
