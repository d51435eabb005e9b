//! A matrix for each head, as DeBERTa multiplies its queries and keys with positions.

use std::ops::Range;

use candle_core::{DType, Tensor};

use crate::Result;
use kernels::cpu::isa::Isa;
use kernels::cpu::product::head_panels::HeadPanels;
use kernels::heads::multiply_heads;
use kernels::packed_weight::with_values;

#[derive(Clone, Debug)]
pub(crate) enum HeadMatrices {
    /// [heads, width, columns]
    Plain(Tensor),
    /// On the CPU, laid out for the micro-kernels.
    Panels(HeadPanels),
}

impl HeadMatrices {
    /// `matrices` are [heads, width, columns].
    pub fn new(matrices: &Tensor) -> Result<Self> {
        if !matrices.device().is_cpu() {
            return Ok(Self::Plain(matrices.contiguous()?));
        }
        let shape = matrices.dims3()?;
        with_values(&matrices.to_dtype(DType::F32)?, |values: &[f32]| {
            Ok(Self::Panels(HeadPanels::new(values, shape)))
        })
    }

    /// Some columns of the product of each head of `x`, [tokens, heads, width], with its matrix:
    /// [tokens, heads, columns].
    pub fn forward(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        match self {
            Self::Plain(matrices) => {
                let matrices = matrices.narrow(2, columns.start, columns.len())?;
                if let Some(product) = multiply_heads(x, &matrices)? {
                    return Ok(product);
                }
                let by_head = x.transpose(0, 1)?.contiguous()?;
                let product = by_head.matmul(&matrices.contiguous()?)?;
                Ok(product.transpose(0, 1)?.contiguous()?)
            }
            Self::Panels(panels) => {
                let (tokens, heads, _) = x.dims3()?;
                let shape = (tokens, heads, columns.len());
                let isa = Isa::current()?;
                let product = with_values(&x.to_dtype(DType::F32)?, |x: &[f32]| {
                    Ok(panels.multiply(isa, x, columns))
                })?;
                Ok(Tensor::from_vec(product, shape, x.device())?.to_dtype(x.dtype())?)
            }
        }
    }
}
