//! Sums and products of whole tensors, broadcast, that keep working after `fork`: candle's own hand
//! large ones to threads that a forked child does not have.

use candle_core::Tensor;

use crate::tensor::{arithmetic, Arithmetic};
use crate::{CancelToken, Result};

pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    arithmetic(Arithmetic::Add, a, b, &CancelToken::new())
}

pub fn multiply(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    arithmetic(Arithmetic::Mul, a, b, &CancelToken::new())
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
