//! Linear layers on CUDA: our own kernel for a few rows, cuBLASLt for many, bias and residual inside.

use candle_core::Tensor;

use super::{Epilogue, Linear, Weight};
use crate::kernels::cuda::blas;
use crate::kernels::cuda::product::{product, Matrix, Outcome, MOST_MATRICES};
use crate::kernels::{self, Activation};
use crate::nn::elementwise;
use crate::Result;

/// A layer's weight as the file has it, [out, in].
fn weight(layer: &Linear) -> Result<Option<Tensor>> {
    match &layer.weight {
        Weight::Plain(weight) if weight.device().is_cuda() => Ok(Some(weight.t()?)),
        _ => Ok(None),
    }
}

/// `None` where the layer is not on CUDA, or its layout asks for candle's product. `x` is [rows, in].
pub(super) fn forward(
    layer: &Linear,
    x: &Tensor,
    epilogue: &Epilogue<'_>,
) -> Result<Option<Tensor>> {
    let Some(weight) = weight(layer)? else {
        return Ok(None);
    };
    let matrix = Matrix {
        weight: &weight,
        bias: layer.bias.as_ref(),
    };
    let x = x.contiguous()?;
    let (rows, _) = x.dims2()?;
    let residual = match epilogue.residual {
        Some(residual) if residual.elem_count() == rows * layer.outputs => {
            Some(residual.reshape((rows, layer.outputs))?.contiguous()?)
        }
        Some(_) => return Ok(None),
        None => None,
    };
    let activation = epilogue.activation.unwrap_or(Activation::Identity);
    let matrices = [matrix];
    let few = product(
        &x,
        &matrices,
        Outcome::Joined,
        activation,
        residual.as_ref(),
    )?;
    if few.is_some() {
        return Ok(few);
    }
    if activation == Activation::Identity {
        return Ok(blas::multiply(&x, &matrix, residual.as_ref())?);
    }
    let Some(product) = blas::multiply(&x, &matrix, None)? else {
        return Ok(None);
    };
    let activated = kernels::activate(&product, activation)?;
    match &residual {
        Some(residual) => elementwise::add(&activated, residual).map(Some),
        None => Ok(Some(activated)),
    }
}

/// Several layers of one input in one launch, their outputs side by side.
pub(super) fn joined(layers: &[&Linear], x: &Tensor) -> Result<Option<Tensor>> {
    if layers.len() > MOST_MATRICES {
        return Ok(None);
    }
    let mut weights = Vec::with_capacity(layers.len());
    for layer in layers {
        match weight(layer)? {
            Some(weight) => weights.push(weight),
            None => return Ok(None),
        }
    }
    let matrices: Vec<_> = weights
        .iter()
        .zip(layers)
        .map(|(weight, layer)| Matrix {
            weight,
            bias: layer.bias.as_ref(),
        })
        .collect();
    let x = x.contiguous()?;
    Ok(product(
        &x,
        &matrices,
        Outcome::Joined,
        Activation::Identity,
        None,
    )?)
}

/// activation(gate(x)) · up(x) in one launch.
pub(super) fn gated(
    gate: &Linear,
    up: &Linear,
    x: &Tensor,
    activation: Activation,
) -> Result<Option<Tensor>> {
    let (Some(first), Some(second)) = (weight(gate)?, weight(up)?) else {
        return Ok(None);
    };
    if first.dims() != second.dims() {
        return Ok(None);
    }
    let matrices = [(&first, &gate.bias), (&second, &up.bias)].map(|(weight, bias)| Matrix {
        weight,
        bias: bias.as_ref(),
    });
    let x = x.contiguous()?;
    Ok(product(&x, &matrices, Outcome::Gated, activation, None)?)
}

/// The same of one layer that holds both, gate first.
pub(super) fn gated_fused(
    both: &Linear,
    x: &Tensor,
    activation: Activation,
) -> Result<Option<Tensor>> {
    let Some(weight) = weight(both)? else {
        return Ok(None);
    };
    let half = both.outputs / 2;
    if !both.outputs.is_multiple_of(2) {
        return Ok(None);
    }
    let part = |tensor: &Tensor, at: usize| tensor.narrow(0, at * half, half);
    let weights = [part(&weight, 0)?, part(&weight, 1)?];
    let biases = match &both.bias {
        Some(bias) => [Some(part(bias, 0)?), Some(part(bias, 1)?)],
        None => [None, None],
    };
    let matrices = [0, 1].map(|at| Matrix {
        weight: &weights[at],
        bias: biases[at].as_ref(),
    });
    let x = x.contiguous()?;
    Ok(product(&x, &matrices, Outcome::Gated, activation, None)?)
}
