//! Views and rearrangements of tensors.

use kernels::tensor::shape::{self, dimension};
use magnus::{function, method, prelude::*, Error, RArray, RClass, Ruby, TryConvert};

use super::{compute, on_cpu, RbTensor};

fn reshape(ruby: &Ruby, this: &RbTensor, sizes: Vec<i64>) -> Result<RbTensor, Error> {
    this.derive(ruby, this.tensor.elem_count(), |tensor, cancel| {
        shape::reshape(tensor, &sizes, cancel)
    })
}

fn broadcast_as(ruby: &Ruby, this: &RbTensor, sizes: Vec<usize>) -> Result<RbTensor, Error> {
    this.view(ruby, |tensor| shape::broadcast_as(tensor, &sizes))
}

fn squeeze(ruby: &Ruby, this: &RbTensor, dim: i64) -> Result<RbTensor, Error> {
    this.view(ruby, |tensor| {
        Ok(tensor.squeeze(dimension(tensor.dims(), dim)?)?)
    })
}

fn unsqueeze(ruby: &Ruby, this: &RbTensor, dim: i64) -> Result<RbTensor, Error> {
    this.view(ruby, |tensor| shape::unsqueeze(tensor, dim))
}

fn select(ruby: &Ruby, this: &RbTensor, dim: i64, index: i64) -> Result<RbTensor, Error> {
    this.view(ruby, |tensor| shape::select(tensor, dim, index))
}

fn narrow(
    ruby: &Ruby,
    this: &RbTensor,
    dim: i64,
    start: i64,
    length: usize,
) -> Result<RbTensor, Error> {
    this.view(ruby, |tensor| shape::narrow(tensor, dim, start, length))
}

fn transpose(ruby: &Ruby, this: &RbTensor, first: i64, second: i64) -> Result<RbTensor, Error> {
    this.view(ruby, |tensor| {
        let dims = tensor.dims();
        Ok(tensor.transpose(dimension(dims, first)?, dimension(dims, second)?)?)
    })
}

fn permute(ruby: &Ruby, this: &RbTensor, dims: Vec<i64>) -> Result<RbTensor, Error> {
    this.view(ruby, |tensor| shape::permute(tensor, &dims))
}

fn contiguous(ruby: &Ruby, this: &RbTensor) -> Result<RbTensor, Error> {
    this.derive(ruby, this.tensor.elem_count(), shape::contiguous)
}

fn copy(ruby: &Ruby, this: &RbTensor) -> Result<RbTensor, Error> {
    this.derive(ruby, this.tensor.elem_count(), shape::copy)
}

fn detach(ruby: &Ruby, this: &RbTensor) -> Result<RbTensor, Error> {
    this.view(ruby, |tensor| Ok(tensor.detach()))
}

fn cat(ruby: &Ruby, tensors: RArray, dim: i64) -> Result<RbTensor, Error> {
    let parts = tensors
        .into_iter()
        .map(|part| <&RbTensor>::try_convert(part)?.tensor(ruby).cloned())
        .collect::<Result<Vec<_>, Error>>()?;
    let size = parts.iter().map(|part| part.elem_count()).sum();
    let all_on_cpu = parts.iter().all(on_cpu);
    let joined = compute(ruby, all_on_cpu, size, |cancel| {
        shape::cat(&parts, dim, cancel)
    })?;
    Ok(RbTensor::new(ruby, joined))
}

pub fn init(class: RClass) -> Result<(), Error> {
    class
        .singleton_class()?
        .define_private_method("_cat", function!(cat, 2))?;
    class.define_private_method("_reshape", method!(reshape, 1))?;
    class.define_private_method("_broadcast_as", method!(broadcast_as, 1))?;
    class.define_private_method("_squeeze", method!(squeeze, 1))?;
    class.define_private_method("_unsqueeze", method!(unsqueeze, 1))?;
    class.define_private_method("_select", method!(select, 2))?;
    class.define_private_method("_narrow", method!(narrow, 3))?;
    class.define_private_method("_transpose", method!(transpose, 2))?;
    class.define_private_method("_permute", method!(permute, 1))?;
    class.define_method("contiguous", method!(contiguous, 0))?;
    class.define_method("copy", method!(copy, 0))?;
    class.define_method("detach", method!(detach, 0))
}
