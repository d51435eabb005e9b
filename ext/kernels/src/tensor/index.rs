//! Picking elements by index or by condition.

use candle_core::{DType, Device, Tensor};

use super::create::Numbers;
use super::dtype::{promote, Scalar};
use super::elementwise::{compare, Comparison};
use super::shape::{broadcast, contiguous, dimension};
use super::storage::{to_dtype, to_numbers};
use crate::{CancelToken, Error, Result};
use base::runtime::memory::ensure_elements;

/// Indices as candle takes them: counted from the front, and proven to be in range.
fn checked(
    indices: &Tensor,
    size: usize,
    dims: &[usize],
    operation: &str,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let Numbers::Integer(values) = to_numbers(indices, cancel)? else {
        return Err(Error::InvalidInput(format!(
            "{operation}: indices are integers, not {}: convert with to_dtype(:i64)",
            indices.dtype().as_str()
        )));
    };
    let length = i64::try_from(size).unwrap_or(i64::MAX);
    let values: Vec<u32> = values
        .into_iter()
        .map(|value| {
            let index = if value < 0 { value + length } else { value };
            u32::try_from(index)
                .ok()
                .filter(|_| index < length)
                .ok_or_else(|| {
                    Error::InvalidInput(format!(
                        "{operation}: index {value} is out of range for size {size} of shape {dims:?}"
                    ))
                })
        })
        .collect::<Result<_>>()?;
    Ok(Tensor::from_vec(values, indices.shape(), &Device::Cpu)?)
}

/// The slices of `dim` that `indices` (rank 1) name, in that order.
pub fn index_select(
    tensor: &Tensor,
    indices: &Tensor,
    dim: i64,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let dim = dimension(tensor.dims(), dim)?;
    if indices.rank() != 1 {
        return Err(Error::InvalidInput(format!(
            "index_select: indices have rank 1, but their shape is {:?} (selecting from shape {:?})",
            indices.dims(),
            tensor.dims()
        )));
    }
    let indices = checked(
        indices,
        tensor.dims()[dim],
        tensor.dims(),
        "index_select",
        cancel,
    )?;
    let mut shape = tensor.dims().to_vec();
    shape[dim] = indices.elem_count();
    ensure_elements(
        &shape,
        tensor.dtype().size_in_bytes(),
        "the selected elements",
    )?;
    if shape.contains(&0) {
        return Ok(Tensor::zeros(shape, tensor.dtype(), tensor.device())?);
    }
    let indices = indices.to_device(tensor.device())?;
    Ok(contiguous(tensor, cancel)?.index_select(&indices, dim)?)
}

/// For each place of `indices`, the element at that place but with `dim` replaced by the index.
pub fn gather(tensor: &Tensor, indices: &Tensor, dim: i64, cancel: &CancelToken) -> Result<Tensor> {
    let dim = dimension(tensor.dims(), dim)?;
    let fits = indices.rank() == tensor.rank()
        && (0..tensor.rank()).all(|d| d == dim || indices.dims()[d] <= tensor.dims()[d]);
    if !fits {
        return Err(Error::InvalidInput(format!(
            "gather: indices of shape {:?} do not lie within shape {:?} outside of dimension {dim}",
            indices.dims(),
            tensor.dims()
        )));
    }
    let indices = checked(indices, tensor.dims()[dim], tensor.dims(), "gather", cancel)?;
    let what = format_args!("a tensor of shape {:?}", indices.dims());
    ensure_elements(indices.dims(), tensor.dtype().size_in_bytes(), what)?;
    if indices.elem_count() == 0 {
        return Ok(Tensor::zeros(
            indices.shape(),
            tensor.dtype(),
            tensor.device(),
        )?);
    }
    let mut source = tensor.clone();
    for d in (0..tensor.rank()).filter(|&d| d != dim) {
        source = source.narrow(d, 0, indices.dims()[d])?;
    }
    let indices = indices.to_device(tensor.device())?;
    Ok(contiguous(&source, cancel)?.gather(&indices, dim)?)
}

/// `on_true` where the condition is not zero, else `on_false`; all three broadcast.
pub fn where_cond(
    condition: &Tensor,
    on_true: &Tensor,
    on_false: &Tensor,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let dtype = promote(on_true.dtype(), on_false.dtype());
    let shape = broadcast(on_true.dims(), on_false.dims(), "where_cond")?;
    let shape = broadcast(condition.dims(), &shape, "where_cond")?;
    let what = format_args!("a tensor of shape {shape:?}");
    ensure_elements(&shape, dtype.size_in_bytes(), what)?;
    let condition = if condition.dtype() == DType::U8 {
        condition.clone()
    } else {
        let zero = Scalar::Integer(0).to_tensor(condition.dtype(), condition.device())?;
        compare(Comparison::Ne, condition, &zero, cancel)?
    };
    let choice = |tensor: &Tensor| -> Result<Tensor> {
        let tensor = to_dtype(tensor, dtype, cancel)?;
        contiguous(&tensor.broadcast_as(shape.as_slice())?, cancel)
    };
    let condition = contiguous(&condition.broadcast_as(shape.as_slice())?, cancel)?;
    Ok(condition.where_cond(&choice(on_true)?, &choice(on_false)?)?)
}
