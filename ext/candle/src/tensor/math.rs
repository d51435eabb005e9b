//! Arithmetic on tensors.

use std::str::FromStr;

use candle_core::{DType, Tensor};
use kernels::tensor::reduce::{self, Reduction};
use kernels::tensor::{self, index, matmul, normalize, Arithmetic, Comparison, Scalar, Unary};
use magnus::{method, prelude::*, Error, Float, Integer, RClass, Ruby, Symbol, TryConvert, Value};

use super::{compute, on_cpu, RbTensor};
use crate::{convert, error, gvl};

/// Work that may use the pool whatever its size.
const ALWAYS_AWAY: usize = usize::MAX;

fn named<T: FromStr<Err = engine::Error>>(ruby: &Ruby, name: Symbol) -> Result<T, Error> {
    name.name()?.parse().map_err(error::raised(ruby))
}

/// A number, or nothing when it isn't one.
fn scalar(value: Value, ruby: &Ruby) -> Result<Option<Scalar>, Error> {
    if let Some(integer) = Integer::from_value(value) {
        return Ok(Some(match integer.to_i64() {
            Ok(small) => Scalar::Integer(small),
            Err(_) => Scalar::Float(integer.funcall("to_f", ())?),
        }));
    }
    if let Some(float) = Float::from_value(value) {
        return Ok(Some(Scalar::Float(float.to_f64())));
    }
    if value.is_kind_of(ruby.class_numeric()) {
        return Ok(convert::real(ruby, value)?.map(Scalar::Float));
    }
    Ok(None)
}

/// The other side of an operation: a tensor, or a number in the type that `choose` gives.
fn operand(
    ruby: &Ruby,
    this: &Tensor,
    other: Value,
    choose: fn(Scalar, DType) -> DType,
) -> Result<Tensor, Error> {
    if let Ok(tensor) = <&RbTensor>::try_convert(other) {
        return tensor.tensor(ruby).cloned();
    }
    let Some(number) = scalar(other, ruby)? else {
        // SAFETY: the name is used before Ruby runs again.
        let class = unsafe { other.classname() }.into_owned();
        return Err(Error::new(
            ruby.exception_type_error(),
            format!("a Candle::Tensor works with tensors and real numbers, not with {class}"),
        ));
    };
    gvl::hold(ruby, || {
        number
            .to_tensor(choose(number, this.dtype()), this.device())
            .map_err(error::raised(ruby))
    })
}

/// More than the true count when the shapes do not broadcast, which the work then says.
fn combined_count(a: &Tensor, b: &Tensor) -> usize {
    a.elem_count().saturating_mul(b.elem_count())
}

fn result_count(a: &Tensor, b: &Tensor) -> usize {
    let larger = a.elem_count().max(b.elem_count());
    if a.elem_count() == 1 || b.elem_count() == 1 || a.dims() == b.dims() {
        larger
    } else {
        combined_count(a, b)
    }
}

fn as_scalar(ruby: &Ruby, this: &RbTensor, number: Value) -> Result<RbTensor, Error> {
    let tensor = operand(ruby, this.tensor(ruby)?, number, Scalar::dtype_beside)?;
    Ok(RbTensor::new(ruby, tensor))
}

fn unary(ruby: &Ruby, this: &RbTensor, name: Symbol) -> Result<RbTensor, Error> {
    let operation: Unary = named(ruby, name)?;
    this.derive(ruby, this.tensor.elem_count(), |source, cancel| {
        tensor::unary(operation, source, cancel)
    })
}

fn power(ruby: &Ruby, this: &RbTensor, exponent: f64) -> Result<RbTensor, Error> {
    this.derive(ruby, this.tensor.elem_count(), |source, cancel| {
        tensor::power(source, exponent, cancel)
    })
}

fn arithmetic(ruby: &Ruby, this: &RbTensor, name: Symbol, other: Value) -> Result<RbTensor, Error> {
    let operation: Arithmetic = named(ruby, name)?;
    let a = this.tensor(ruby)?;
    let b = operand(ruby, a, other, Scalar::dtype_beside)?;
    let result = compute(ruby, on_cpu(a), result_count(a, &b), |cancel| {
        tensor::arithmetic(operation, a, &b, cancel)
    })?;
    Ok(RbTensor::new(ruby, result))
}

fn compare(ruby: &Ruby, this: &RbTensor, name: Symbol, other: Value) -> Result<RbTensor, Error> {
    let comparison: Comparison = named(ruby, name)?;
    let a = this.tensor(ruby)?;
    let b = operand(ruby, a, other, Scalar::dtype_compared_with)?;
    let result = compute(ruby, on_cpu(a), result_count(a, &b), |cancel| {
        tensor::compare(comparison, a, &b, cancel)
    })?;
    Ok(RbTensor::new(ruby, result))
}

fn product(ruby: &Ruby, this: &RbTensor, other: &RbTensor) -> Result<RbTensor, Error> {
    let other = other.tensor(ruby)?;
    this.derive(ruby, ALWAYS_AWAY, |source, cancel| {
        matmul::matmul(source, other, cancel)
    })
}

fn reduction(
    ruby: &Ruby,
    this: &RbTensor,
    name: Symbol,
    axes: Option<Vec<i64>>,
    keep: bool,
) -> Result<RbTensor, Error> {
    let reduction: Reduction = named(ruby, name)?;
    this.derive(ruby, this.tensor.elem_count(), |source, cancel| {
        reduce::reduce(reduction, source, axes.as_deref(), keep, cancel)
    })
}

fn where_cond(
    ruby: &Ruby,
    this: &RbTensor,
    on_true: &RbTensor,
    on_false: &RbTensor,
) -> Result<RbTensor, Error> {
    let (on_true, on_false) = (on_true.tensor(ruby)?, on_false.tensor(ruby)?);
    let size = combined_count(on_true, on_false).saturating_mul(this.tensor.elem_count());
    this.derive(ruby, size, |source, cancel| {
        index::where_cond(source, on_true, on_false, cancel)
    })
}

fn index_select(
    ruby: &Ruby,
    this: &RbTensor,
    indices: &RbTensor,
    dim: i64,
) -> Result<RbTensor, Error> {
    let indices = indices.tensor(ruby)?;
    let size = combined_count(&this.tensor, indices);
    this.derive(ruby, size, |source, cancel| {
        index::index_select(source, indices, dim, cancel)
    })
}

fn gather(ruby: &Ruby, this: &RbTensor, indices: &RbTensor, dim: i64) -> Result<RbTensor, Error> {
    let indices = indices.tensor(ruby)?;
    let size = this.tensor.elem_count().max(indices.elem_count());
    this.derive(ruby, size, |source, cancel| {
        index::gather(source, indices, dim, cancel)
    })
}

fn gelu(ruby: &Ruby, this: &RbTensor) -> Result<RbTensor, Error> {
    this.derive(ruby, ALWAYS_AWAY, normalize::gelu)
}

fn softmax(ruby: &Ruby, this: &RbTensor, dim: i64) -> Result<RbTensor, Error> {
    this.derive(ruby, ALWAYS_AWAY, |source, cancel| {
        normalize::softmax(source, dim, cancel)
    })
}

fn layer_norm(
    ruby: &Ruby,
    this: &RbTensor,
    weight: &RbTensor,
    bias: Option<&RbTensor>,
    epsilon: f64,
) -> Result<RbTensor, Error> {
    let weight = weight.tensor(ruby)?;
    let bias = bias.map(|bias| bias.tensor(ruby)).transpose()?;
    this.derive(ruby, ALWAYS_AWAY, |source, cancel| {
        normalize::layer_norm(source, weight, bias, epsilon, cancel)
    })
}

fn rms_norm(
    ruby: &Ruby,
    this: &RbTensor,
    weight: &RbTensor,
    epsilon: f64,
) -> Result<RbTensor, Error> {
    let weight = weight.tensor(ruby)?;
    this.derive(ruby, ALWAYS_AWAY, |source, cancel| {
        normalize::rms_norm(source, weight, epsilon, cancel)
    })
}

pub fn init(class: RClass) -> Result<(), Error> {
    class.define_private_method("_as_scalar", method!(as_scalar, 1))?;
    class.define_private_method("_unary", method!(unary, 1))?;
    class.define_private_method("_power", method!(power, 1))?;
    class.define_private_method("_arithmetic", method!(arithmetic, 2))?;
    class.define_private_method("_compare", method!(compare, 2))?;
    class.define_private_method("_matmul", method!(product, 1))?;
    class.define_private_method("_reduce", method!(reduction, 3))?;
    class.define_private_method("_where_cond", method!(where_cond, 2))?;
    class.define_private_method("_index_select", method!(index_select, 2))?;
    class.define_private_method("_gather", method!(gather, 2))?;
    class.define_private_method("_gelu", method!(gelu, 0))?;
    class.define_private_method("_softmax", method!(softmax, 1))?;
    class.define_private_method("_layer_norm", method!(layer_norm, 3))?;
    class.define_private_method("_rms_norm", method!(rms_norm, 2))
}
