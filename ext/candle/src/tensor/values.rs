//! Tensors back to Ruby's numbers, arrays and strings.

use engine::Error as EngineError;
use kernels::tensor::{self, Numbers};
use magnus::{method, prelude::*, Error, IntoValue, RArray, RClass, RString, Ruby, Value};

use super::{compute, on_cpu, RbTensor, INTERVAL};
use crate::{convert, error, gvl};

fn numbers(ruby: &Ruby, this: &RbTensor) -> Result<Numbers, Error> {
    let source = this.tensor(ruby)?;
    compute(ruby, on_cpu(source), source.elem_count(), |cancel| {
        tensor::to_numbers(source, cancel)
    })
}

fn number(ruby: &Ruby, numbers: &Numbers, index: usize) -> Value {
    match numbers {
        Numbers::Integer(values) => values.get(index).copied().into_value_with(ruby),
        Numbers::Float(values) => values.get(index).copied().into_value_with(ruby),
    }
}

fn flat(ruby: &Ruby, this: &RbTensor) -> Result<RArray, Error> {
    let numbers = numbers(ruby, this)?;
    gvl::hold(ruby, || array(ruby, &numbers, 0, this.tensor.elem_count()))
}

fn array(ruby: &Ruby, numbers: &Numbers, start: usize, count: usize) -> Result<RArray, Error> {
    let array = ruby.ary_new_capa(count);
    for index in start..start + count {
        if index % INTERVAL == INTERVAL - 1 {
            gvl::check_interrupts()?;
        }
        array.push(number(ruby, numbers, index))?;
    }
    Ok(array)
}

fn nested(ruby: &Ruby, this: &RbTensor) -> Result<Value, Error> {
    let numbers = numbers(ruby, this)?;
    gvl::hold(ruby, || level(ruby, &numbers, this.tensor.dims(), &mut 0))
}

fn level(
    ruby: &Ruby,
    numbers: &Numbers,
    dims: &[usize],
    position: &mut usize,
) -> Result<Value, Error> {
    match dims {
        [] => Ok(number(ruby, numbers, *position)),
        [size] => {
            let row = array(ruby, numbers, *position, *size)?;
            *position += size;
            Ok(row.as_value())
        }
        [size, rest @ ..] => {
            let rows = ruby.ary_new_capa(*size);
            for _ in 0..*size {
                rows.push(level(ruby, numbers, rest, position)?)?;
            }
            Ok(rows.as_value())
        }
    }
}

fn item(ruby: &Ruby, this: &RbTensor) -> Result<Value, Error> {
    if this.tensor.elem_count() != 1 {
        return Err(error::to_ruby(
            ruby,
            EngineError::InvalidInput(format!(
                "a tensor of shape {:?} has {} elements, not one: select an element with [], or use to_a",
                this.tensor.dims(),
                this.tensor.elem_count()
            )),
        ));
    }
    Ok(number(ruby, &numbers(ruby, this)?, 0))
}

fn packed(ruby: &Ruby, this: &RbTensor) -> Result<RString, Error> {
    let source = this.tensor(ruby)?;
    let bytes = compute(ruby, on_cpu(source), source.elem_count(), |cancel| {
        tensor::to_bytes(source, cancel)
    })?;
    Ok(ruby.str_from_slice(&bytes))
}

fn equal(ruby: &Ruby, this: &RbTensor, other: &RbTensor) -> Result<bool, Error> {
    let (a, b) = (this.tensor(ruby)?, other.tensor(ruby)?);
    compute(ruby, on_cpu(a), a.elem_count(), |cancel| {
        tensor::equal(a, b, cancel)
    })
}

fn to_dtype(ruby: &Ruby, this: &RbTensor, dtype: Value) -> Result<RbTensor, Error> {
    let dtype = convert::dtype(ruby, dtype)?;
    this.derive(ruby, this.tensor.elem_count(), |source, cancel| {
        tensor::to_dtype(source, dtype, cancel)
    })
}

fn to_device(ruby: &Ruby, this: &RbTensor, device: Value) -> Result<RbTensor, Error> {
    let device = convert::device(ruby, device)?;
    this.derive(ruby, usize::MAX, |source, _| {
        Ok(source.to_device(&device.open()?)?)
    })
}

pub fn init(class: RClass) -> Result<(), Error> {
    class.define_method("values", method!(flat, 0))?;
    class.define_method("to_a", method!(nested, 0))?;
    class.define_method("item", method!(item, 0))?;
    class.define_method("to_packed", method!(packed, 0))?;
    class.define_private_method("_equal", method!(equal, 1))?;
    class.define_private_method("_to_dtype", method!(to_dtype, 1))?;
    class.define_private_method("_to_device", method!(to_device, 1))
}
