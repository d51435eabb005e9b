//! Shapes: dimensions counted from either end, broadcasting, views, concatenation.

use candle_core::Tensor;

use super::create::element_count;
use super::dtype::promote;
use super::storage::to_dtype;
pub use super::storage::{contiguous, copy};
use crate::{CancelToken, Error, Result};
use base::runtime::memory::ensure_elements;

/// A dimension of `dims`, where -1 is the last.
pub fn dimension(dims: &[usize], dim: i64) -> Result<usize> {
    position(dims.len(), dim).ok_or_else(|| {
        Error::InvalidInput(format!(
            "dimension {dim} is out of range for shape {dims:?} of rank {}",
            dims.len()
        ))
    })
}

fn position(size: usize, index: i64) -> Option<usize> {
    let size = i64::try_from(size).ok()?;
    let index = if index < 0 { index + size } else { index };
    usize::try_from(index).ok().filter(|_| index < size)
}

/// The shape that both broadcast to.
pub fn broadcast(a: &[usize], b: &[usize], operation: &str) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |dims: &[usize], place: usize| {
        (place + dims.len())
            .checked_sub(rank)
            .map_or(1, |index| dims[index])
    };
    let shape: Result<Vec<_>> = (0..rank)
        .map(|place| match (size(a, place), size(b, place)) {
            (a_size, b_size) if a_size == b_size => Ok(a_size),
            (1, other) | (other, 1) => Ok(other),
            _ => Err(Error::InvalidInput(format!(
                "{operation}: shapes {a:?} and {b:?} do not broadcast to one"
            ))),
        })
        .collect();
    let shape = shape?;
    element_count(&shape)?;
    Ok(shape)
}

pub fn broadcast_as(tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if broadcast(tensor.dims(), shape, "broadcast_as")? != shape {
        return Err(Error::InvalidInput(format!(
            "broadcast_as: shape {:?} does not broadcast to {shape:?}",
            tensor.dims()
        )));
    }
    Ok(tensor.broadcast_as(shape)?)
}

/// One size may be -1: what the others leave.
pub fn reshape(tensor: &Tensor, sizes: &[i64], cancel: &CancelToken) -> Result<Tensor> {
    let mismatch = || {
        Error::InvalidInput(format!(
            "reshape: shape {:?} with {} elements does not fit {sizes:?}",
            tensor.dims(),
            tensor.elem_count()
        ))
    };
    if sizes.iter().any(|&size| size < -1) || sizes.iter().filter(|&&size| size == -1).count() > 1 {
        return Err(Error::InvalidInput(format!(
            "reshape: {sizes:?} is not a shape: sizes are at least 0, and one of them may be -1"
        )));
    }
    let known: Vec<usize> = sizes
        .iter()
        .filter_map(|&size| usize::try_from(size).ok())
        .collect();
    let known_count = element_count(&known)?;
    let open = tensor
        .elem_count()
        .checked_div(known_count)
        .unwrap_or_default();
    let shape: Vec<usize> = sizes
        .iter()
        .map(|&size| usize::try_from(size).unwrap_or(open))
        .collect();
    if element_count(&shape)? != tensor.elem_count() {
        return Err(mismatch());
    }
    Ok(contiguous(tensor, cancel)?.reshape(shape)?)
}

pub fn unsqueeze(tensor: &Tensor, dim: i64) -> Result<Tensor> {
    let dim = position(tensor.rank() + 1, dim).ok_or_else(|| {
        Error::InvalidInput(format!(
            "unsqueeze: dimension {dim} is out of range for shape {:?}",
            tensor.dims()
        ))
    })?;
    Ok(tensor.unsqueeze(dim)?)
}

pub fn permute(tensor: &Tensor, dims: &[i64]) -> Result<Tensor> {
    let order: Vec<usize> = dims
        .iter()
        .map(|&dim| dimension(tensor.dims(), dim))
        .collect::<Result<_>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..tensor.rank()) {
        return Err(Error::InvalidInput(format!(
            "permute: {dims:?} does not name every dimension of shape {:?} once",
            tensor.dims()
        )));
    }
    Ok(tensor.permute(order)?)
}

/// The part at `index` of a dimension, which is dropped.
pub fn select(tensor: &Tensor, dim: i64, index: i64) -> Result<Tensor> {
    let dim = dimension(tensor.dims(), dim)?;
    let size = tensor.dims()[dim];
    let start = position(size, index).ok_or_else(|| {
        Error::InvalidInput(format!(
            "index {index} is out of range for dimension {dim} of shape {:?}",
            tensor.dims()
        ))
    })?;
    Ok(tensor.narrow(dim, start, 1)?.squeeze(dim)?)
}

pub fn narrow(tensor: &Tensor, dim: i64, start: i64, length: usize) -> Result<Tensor> {
    let dim = dimension(tensor.dims(), dim)?;
    let size = tensor.dims()[dim];
    let begin = position(size + 1, if start < 0 { start - 1 } else { start })
        .filter(|begin| length <= size - begin)
        .ok_or_else(|| {
            Error::InvalidInput(format!(
                "narrow: {length} elements from {start} on are out of range for dimension {dim} of shape {:?}",
                tensor.dims()
            ))
        })?;
    let part = tensor.narrow(dim, begin, length)?;
    if part.elem_count() == 0 {
        // candle's operations trip over an empty view that starts beyond its memory.
        return Ok(Tensor::zeros(part.shape(), part.dtype(), part.device())?);
    }
    Ok(part)
}

/// Joins tensors along a dimension; their other dimensions agree.
pub fn cat(tensors: &[Tensor], dim: i64, cancel: &CancelToken) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        return Err(Error::InvalidInput("cat: there are no tensors".into()));
    };
    let dim = dimension(first.dims(), dim)?;
    let mut shape = first.dims().to_vec();
    shape[dim] = 0;
    for tensor in tensors {
        let agrees = tensor.rank() == first.rank()
            && (0..first.rank()).all(|d| d == dim || tensor.dims()[d] == first.dims()[d]);
        if !agrees {
            return Err(Error::InvalidInput(format!(
                "cat: shapes {:?} and {:?} differ outside of dimension {dim}",
                first.dims(),
                tensor.dims()
            )));
        }
        shape[dim] += tensor.dims()[dim];
    }
    let dtype = tensors.iter().fold(first.dtype(), |dtype, tensor| {
        promote(dtype, tensor.dtype())
    });
    let what = format_args!("a tensor of shape {shape:?}");
    ensure_elements(&shape, dtype.size_in_bytes(), what)?;
    let parts: Vec<Tensor> = tensors
        .iter()
        .filter(|tensor| tensor.elem_count() > 0)
        .map(|tensor| contiguous(&to_dtype(tensor, dtype, cancel)?, cancel))
        .collect::<Result<_>>()?;
    if parts.is_empty() {
        return Ok(Tensor::zeros(shape, dtype, first.device())?);
    }
    Ok(Tensor::cat(&parts, dim)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_as_in_numpy() {
        assert_eq!(broadcast(&[3, 1], &[4], "t").unwrap(), [3, 4]);
        assert_eq!(broadcast(&[], &[2, 0], "t").unwrap(), [2, 0]);
        assert_eq!(broadcast(&[1], &[0], "t").unwrap(), [0]);
        let message = broadcast(&[2, 3], &[4], "add").unwrap_err().to_string();
        assert!(
            message.contains("[2, 3]") && message.contains("[4]"),
            "{message}"
        );
    }
}
