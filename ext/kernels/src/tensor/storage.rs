//! Reading and writing the elements of CPU tensors.

use std::mem::MaybeUninit;

use candle_core::{DType, Device, Storage, Tensor, WithDType};
use rayon::prelude::*;

use super::create::Numbers;
use super::dtype::for_dtype;
use crate::{CancelToken, Error, Result};
use base::runtime::memory::ensure_elements;

/// From this many elements on, work is spread over the pool.
pub(super) const PARALLEL: usize = 1 << 16;
/// The share of one task.
pub(super) const CHUNK: usize = 1 << 14;
/// candle's copies and conversions can't be cancelled, so large ones go in blocks of this size.
const BLOCK: usize = 1 << 22;

pub(super) fn on_cpu(tensor: &Tensor) -> bool {
    matches!(tensor.device(), Device::Cpu)
}

/// Lends the elements of a CPU tensor in order.
pub(super) fn read<T: WithDType, R>(
    tensor: &Tensor,
    cancel: &CancelToken,
    use_elements: impl FnOnce(&[T]) -> Result<R>,
) -> Result<R> {
    if tensor.elem_count() == 0 {
        return use_elements(&[]);
    }
    let tensor = contiguous(tensor, cancel)?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::Internal(
            "a GPU tensor met an operation of the CPU".into(),
        ));
    };
    let elements = T::cpu_storage_as_slice(storage)?;
    let start = layout.start_offset();
    let elements = elements
        .get(start..start + layout.shape().elem_count())
        .ok_or_else(|| Error::Internal("a tensor reaches beyond its memory".into()))?;
    use_elements(elements)
}

/// A vector whose parts are written by `write(start, part)`, in parallel when it is long.
pub(super) fn fill<U: WithDType>(
    count: usize,
    cancel: &CancelToken,
    write: impl Fn(usize, &mut [U]) + Sync,
) -> Result<Vec<U>> {
    ensure_elements(&[count], size_of::<U>(), "the result")?;
    if count < PARALLEL {
        let mut result = vec![U::zero(); count];
        write(0, &mut result);
        return Ok(result);
    }
    let mut result = Vec::with_capacity(count);
    each_part(&mut result.spare_capacity_mut()[..count], &|index, part| {
        cancel.check()?;
        write(index * CHUNK, zeroed(part));
        Ok(())
    })?;
    // SAFETY: the parts cover the `count` elements of the capacity, and `zeroed` has initialized each of them.
    unsafe { result.set_len(count) };
    Ok(result)
}

/// What writes a part of a fresh vector, by its number.
type WritePart<'a, U> = dyn Fn(usize, &mut [MaybeUninit<U>]) -> Result<()> + Sync + 'a;

/// Runs `work` on every part of a fresh vector, over the pool. Compiled once per element type, not per operation.
fn each_part<U: Send>(all: &mut [MaybeUninit<U>], work: &WritePart<'_, U>) -> Result<()> {
    let parts = all.par_chunks_mut(CHUNK).enumerate();
    parts.try_for_each(|(index, part)| work(index, part))
}

/// A part of a fresh vector, small enough to be in cache when it is written again.
fn zeroed<U: WithDType>(part: &mut [MaybeUninit<U>]) -> &mut [U] {
    for slot in part.iter_mut() {
        slot.write(U::zero());
    }
    // SAFETY: every element of the exclusively borrowed `part` was just written; `MaybeUninit<U>` has the layout
    // of `U`.
    unsafe { &mut *(part as *mut [MaybeUninit<U>] as *mut [U]) }
}

/// `tensor` in row-major order: itself when it is so already.
pub fn contiguous(tensor: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
    if tensor.is_contiguous() {
        return Ok(tensor.clone());
    }
    blockwise(tensor, tensor.dtype(), cancel, Tensor::contiguous)
}

/// Memory of its own, in row-major order.
pub fn copy(tensor: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
    blockwise(tensor, tensor.dtype(), cancel, Tensor::force_contiguous)
}

pub fn to_dtype(tensor: &Tensor, dtype: DType, cancel: &CancelToken) -> Result<Tensor> {
    if tensor.dtype() == dtype {
        return Ok(tensor.clone());
    }
    blockwise(tensor, dtype, cancel, |part| {
        part.to_dtype(dtype)?.contiguous()
    })
}

/// Applies `convert` to slabs along the first dimension that has any.
fn blockwise(
    tensor: &Tensor,
    dtype: DType,
    cancel: &CancelToken,
    convert: impl Fn(&Tensor) -> candle_core::Result<Tensor>,
) -> Result<Tensor> {
    let count = tensor.elem_count();
    ensure_elements(&[count], dtype.size_in_bytes(), "a copy of the tensor")?;
    if count == 0 {
        return Ok(Tensor::zeros(tensor.shape(), dtype, tensor.device())?);
    }
    let slab = tensor.dims().iter().position(|&size| size > 1);
    let (Some(dim), true) = (slab, on_cpu(tensor) && count > BLOCK) else {
        return Ok(convert(tensor)?);
    };
    let size = tensor.dim(dim)?;
    let step = (BLOCK / (count / size)).max(1);
    let result = Tensor::zeros(tensor.shape(), dtype, tensor.device())?;
    for start in (0..size).step_by(step) {
        cancel.check()?;
        let part = tensor.narrow(dim, start, step.min(size - start))?;
        result.slice_set(&convert(&part)?, dim, start)?;
    }
    Ok(result)
}

/// Every element in row-major order.
pub fn to_numbers(tensor: &Tensor, cancel: &CancelToken) -> Result<Numbers> {
    ensure_elements(&[tensor.elem_count()], 8, "the values of the tensor")?;
    let tensor = tensor.to_device(&Device::Cpu)?;
    let copied = |wide| to_dtype(&tensor, wide, cancel);
    if tensor.dtype().is_float() {
        read::<f64, _>(&copied(DType::F64)?, cancel, |all| {
            Ok(Numbers::Float(all.to_vec()))
        })
    } else {
        read::<i64, _>(&copied(DType::I64)?, cancel, |all| {
            Ok(Numbers::Integer(all.to_vec()))
        })
    }
}

/// Every element in row-major order as little-endian bytes.
pub fn to_bytes(tensor: &Tensor, cancel: &CancelToken) -> Result<Vec<u8>> {
    let size = tensor.dtype().size_in_bytes();
    ensure_elements(&[tensor.elem_count()], size, "the bytes of the tensor")?;
    let tensor = tensor.to_device(&Device::Cpu)?;
    for_dtype!(tensor.dtype(), T => read::<T, _>(&tensor, cancel, |all| {
        let mut bytes = Vec::with_capacity(size_of_val(all));
        all.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
        Ok(bytes)
    }))
}

/// Whether both have the same shape, type and elements; NaN equals nothing.
pub fn equal(a: &Tensor, b: &Tensor, cancel: &CancelToken) -> Result<bool> {
    if a.dims() != b.dims() || a.dtype() != b.dtype() {
        return Ok(false);
    }
    let (a, b) = (a.to_device(&Device::Cpu)?, b.to_device(&Device::Cpu)?);
    for_dtype!(a.dtype(), T => read::<T, _>(&a, cancel, |a| {
        read::<T, _>(&b, cancel, |b| Ok(a == b))
    }))
}
