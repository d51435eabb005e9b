//! Products with matrices as they lie: our own kernel for a few rows, cuBLASLt for many, bias and
//! residual inside; on Hopper our own for many rows that are activated.

use candle_core::Tensor;

use super::blas;
use super::product::{product, Outcome, MOST_MATRICES};
use super::wide_product;
use crate::matrix::{Epilogue, Matrix};
use crate::Activation;
use crate::Result;

/// `None` where the layout asks for candle's product. `x` is [rows, in].
pub fn multiply(
    x: &Tensor,
    matrix: &Matrix<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<Option<Tensor>> {
    let x = x.contiguous()?;
    let (rows, _) = x.dims2()?;
    let outputs = matrix.weight.dim(0)?;
    let residual = match epilogue.residual {
        Some(residual) if residual.elem_count() == rows * outputs => {
            Some(residual.reshape((rows, outputs))?.contiguous()?)
        }
        Some(_) => return Ok(None),
        None => None,
    };
    let residual = residual.as_ref();
    let activation = epilogue.activation.unwrap_or(Activation::Identity);
    let few = product(&x, &[*matrix], Outcome::Joined, activation, residual)?;
    if few.is_some() {
        return Ok(few);
    }
    if activation == Activation::Identity {
        return Ok(blas::multiply(&x, matrix, residual)?);
    }
    if residual.is_none() {
        let wide = wide_product::multiply(&x, matrix, activation)?;
        if wide.is_some() {
            return Ok(wide);
        }
    }
    let Some(product) = blas::multiply(&x, matrix, None)? else {
        return Ok(None);
    };
    let activated = crate::activate(&product, activation)?;
    match residual {
        Some(residual) => Ok(Some((activated + residual)?)),
        None => Ok(Some(activated)),
    }
}

/// The outputs of several matrices side by side.
pub fn multiply_joined(x: &Tensor, matrices: &[Matrix<'_>]) -> Result<Option<Tensor>> {
    if matrices.len() > MOST_MATRICES || !all_take(x, matrices)? {
        return Ok(None);
    }
    let (x, none) = (x.contiguous()?, Activation::Identity);
    Ok(product(&x, matrices, Outcome::Joined, none, None)?)
}

pub fn multiply_gated(
    x: &Tensor,
    matrices: &[Matrix<'_>; 2],
    activation: Activation,
) -> Result<Option<Tensor>> {
    let [gate, up] = matrices;
    if gate.weight.dims() != up.weight.dims() || !all_take(x, matrices)? {
        return Ok(None);
    }
    let x = x.contiguous()?;
    Ok(product(&x, matrices, Outcome::Gated, activation, None)?)
}

fn all_take(x: &Tensor, matrices: &[Matrix<'_>]) -> Result<bool> {
    let (_, inputs) = x.dims2()?;
    Ok(matrices
        .iter()
        .all(|matrix| matrix.weight.dims().last() == Some(&inputs)))
}
