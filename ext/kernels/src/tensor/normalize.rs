//! Normalization along a dimension, and the Gaussian unit.

use candle_core::{DType, Device, Tensor};

use super::dtype::promote;
use super::elementwise::require_float;
use super::shape::{contiguous, dimension};
use super::storage::{read, to_dtype};
use crate::{reference, Activation};
use crate::{CancelToken, Error, Result};
use base::runtime::device::placed;

/// Applies `compute` to the elements of an f64 tensor, a type that the kernels do not have.
fn in_f64(
    tensor: &Tensor,
    cancel: &CancelToken,
    compute: impl FnOnce(&[f64]) -> Vec<f64>,
) -> Result<Tensor> {
    let result = compute(&elements(tensor, cancel)?);
    let result = Tensor::from_vec(result, tensor.shape(), &candle_core::Device::Cpu)?;
    placed(&result, tensor.device())
}

fn elements(tensor: &Tensor, cancel: &CancelToken) -> Result<Vec<f64>> {
    let tensor = tensor.to_device(&Device::Cpu)?;
    read::<f64, _>(&tensor, cancel, |all| Ok(all.to_vec()))
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`
pub fn gelu(tensor: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
    require_float(tensor, "gelu")?;
    if tensor.elem_count() == 0 {
        return Ok(tensor.clone());
    }
    if tensor.dtype() == DType::F64 {
        return in_f64(tensor, cancel, |all| {
            let gelu = |&x: &f64| reference::activation(x, Activation::Gelu);
            all.iter().map(gelu).collect()
        });
    }
    crate::activate(&contiguous(tensor, cancel)?, Activation::Gelu)
}

pub fn softmax(tensor: &Tensor, dim: i64, cancel: &CancelToken) -> Result<Tensor> {
    require_float(tensor, "softmax")?;
    let dim = dimension(tensor.dims(), dim)?;
    if tensor.elem_count() == 0 {
        return Ok(tensor.clone());
    }
    let last = tensor.rank() - 1;
    let rows = contiguous(&tensor.transpose(dim, last)?, cancel)?;
    let rows = if tensor.dtype() == DType::F64 {
        let width = rows.dim(last)?;
        in_f64(&rows, cancel, |all| {
            reference::softmax(all, width, 1.0, |_, _| Some(0.0))
        })?
    } else {
        crate::softmax(&rows)?
    };
    contiguous(&rows.transpose(dim, last)?, cancel)
}

/// Rows of the last dimension with mean 0 and variance 1, then scaled and shifted.
pub fn layer_norm(
    tensor: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    epsilon: f64,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let dtype = common_dtype("layer_norm", tensor, weight)?;
    let weight = parameter("layer_norm", "weight", tensor, weight, dtype, cancel)?;
    let bias = bias
        .map(|bias| parameter("layer_norm", "bias", tensor, bias, dtype, cancel))
        .transpose()?;
    let tensor = contiguous(&to_dtype(tensor, dtype, cancel)?, cancel)?;
    if tensor.elem_count() == 0 {
        return Ok(tensor);
    }
    if dtype == DType::F64 {
        let weight = elements(&weight, cancel)?;
        let bias = bias.map(|bias| elements(&bias, cancel)).transpose()?;
        return in_f64(&tensor, cancel, |all| {
            reference::layer_norm(all, &weight, bias.as_deref(), epsilon)
        });
    }
    crate::layer_norm(&tensor, &weight, bias.as_ref(), epsilon as f32)
}

/// Rows of the last dimension with mean square 1, then scaled.
pub fn rms_norm(
    tensor: &Tensor,
    weight: &Tensor,
    epsilon: f64,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let dtype = common_dtype("rms_norm", tensor, weight)?;
    let weight = parameter("rms_norm", "weight", tensor, weight, dtype, cancel)?;
    let tensor = contiguous(&to_dtype(tensor, dtype, cancel)?, cancel)?;
    if tensor.elem_count() == 0 {
        return Ok(tensor);
    }
    if dtype == DType::F64 {
        let weight = elements(&weight, cancel)?;
        return in_f64(&tensor, cancel, |all| {
            reference::rms_norm(all, &weight, epsilon, 0.0)
        });
    }
    crate::rms_norm(&tensor, &weight, epsilon as f32)
}

fn common_dtype(operation: &str, tensor: &Tensor, weight: &Tensor) -> Result<DType> {
    require_float(tensor, operation)?;
    Ok(promote(tensor.dtype(), weight.dtype()))
}

/// A vector as long as the rows it is applied to.
fn parameter(
    operation: &str,
    name: &str,
    tensor: &Tensor,
    parameter: &Tensor,
    dtype: DType,
    cancel: &CancelToken,
) -> Result<Tensor> {
    if parameter.rank() != 1 || tensor.dims().last() != parameter.dims().first() {
        return Err(Error::InvalidInput(format!(
            "{operation}: a {name} of shape {:?} does not fit the last dimension of shape {:?}",
            parameter.dims(),
            tensor.dims()
        )));
    }
    contiguous(&to_dtype(parameter, dtype, cancel)?, cancel)
}
