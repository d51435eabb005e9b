//! Sums and products of whole tensors, broadcast, that keep working after `fork`: candle's own hand
//! large ones to threads that a forked child does not have.

use candle_core::{DType, Tensor};

use crate::{CancelToken, Result};
use kernels::tensor::{arithmetic, Arithmetic};

pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    arithmetic(Arithmetic::Add, a, b, &CancelToken::new())
}

pub fn subtract(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    arithmetic(Arithmetic::Sub, a, b, &CancelToken::new())
}

pub fn multiply(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    arithmetic(Arithmetic::Mul, a, b, &CancelToken::new())
}

/// A function of every element, computed in f32 where the tensor lies on the CPU or is copied there.
pub fn each(x: &Tensor, function: impl Fn(f32) -> f32) -> Result<Tensor> {
    let values: Vec<f32> = values(x)?.into_iter().map(function).collect();
    like(values, x)
}

/// A function that changes each row of a tensor, given the same row of `beside` where there is one.
pub fn each_row(
    x: &Tensor,
    beside: Option<&Tensor>,
    function: impl Fn(&mut [f32], &[f32]),
) -> Result<Tensor> {
    let width = x.dims().last().copied().unwrap_or(0).max(1);
    let mut rows = values(x)?;
    let others = match beside {
        Some(beside) => values(beside)?,
        None => Vec::new(),
    };
    let mut others = others.chunks(width);
    for row in rows.chunks_mut(width) {
        function(row, others.next().unwrap_or_default());
    }
    like(rows, x)
}

fn values(x: &Tensor) -> Result<Vec<f32>> {
    Ok(x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

fn like(values: Vec<f32>, x: &Tensor) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, x.shape(), x.device())?.to_dtype(x.dtype())?)
}

pub fn scale(x: &Tensor, factor: f32) -> Result<Tensor> {
    if factor == 1.0 {
        return Ok(x.clone());
    }
    if x.device().is_cuda() {
        // Without a copy from the host, which could not be recorded.
        return Ok(x.affine(f64::from(factor), 0.0)?);
    }
    let factor = Tensor::new(factor, x.device())?.to_dtype(x.dtype())?;
    multiply(x, &factor)
}
