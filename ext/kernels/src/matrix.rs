//! Products with matrices as checkpoints store them, by kernels of the device's own.
//!
//! Each gives `None` where the device has no such kernel, or its kernel does not take the shapes: the
//! caller then goes by candle's product.

use candle_core::Tensor;

use super::Activation;
use crate::Result;

/// A matrix [out, in] and its bias [out].
#[derive(Clone, Copy)]
#[cfg_attr(
    not(any(feature = "cuda", feature = "metal")),
    allow(dead_code, reason = "only GPUs have such kernels")
)]
pub struct Matrix<'a> {
    pub weight: &'a Tensor,
    pub bias: Option<&'a Tensor>,
}

/// What follows the product, in this order: bias (the layer's own), activation, residual.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    pub activation: Option<Activation>,
    /// Added last; shaped like the output.
    pub residual: Option<&'a Tensor>,
}

/// x · weightᵀ + bias and what follows; `x` is [rows, in].
pub fn multiply(
    x: &Tensor,
    matrix: &Matrix<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<Option<Tensor>> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return super::cuda::matrix::multiply(x, matrix, epilogue);
    }
    #[cfg(feature = "metal")]
    if x.device().is_metal() {
        return Ok(super::metal::product::multiply_dense(x, matrix, epilogue)?);
    }
    let _ = (x, matrix, epilogue);
    Ok(None)
}

/// The products with several matrices side by side, in one launch.
pub fn multiply_joined(x: &Tensor, matrices: &[Matrix<'_>]) -> Result<Option<Tensor>> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() && x.rank() == 2 {
        return super::cuda::matrix::multiply_joined(x, matrices);
    }
    #[cfg(feature = "metal")]
    if x.device().is_metal() && x.rank() == 2 {
        return Ok(super::metal::product::multiply_joined_dense(x, matrices)?);
    }
    let _ = (x, matrices);
    Ok(None)
}

/// activation(x · gateᵀ) · (x · upᵀ), in one launch.
pub fn multiply_gated(
    x: &Tensor,
    matrices: &[Matrix<'_>; 2],
    activation: Activation,
) -> Result<Option<Tensor>> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() && x.rank() == 2 {
        return super::cuda::matrix::multiply_gated(x, matrices, activation);
    }
    #[cfg(feature = "metal")]
    if x.device().is_metal() && x.rank() == 2 {
        use super::metal::product::{product, Factor, Outcome};
        let factors: [Factor<'_>; 2] = matrices.map(Into::into);
        return Ok(product(x, &factors, Outcome::Gated(activation), None)?);
    }
    let _ = (x, matrices, activation);
    Ok(None)
}
