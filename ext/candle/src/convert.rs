//! Ruby values to engine values, where more than one class needs it.

use candle_core::DType;
use engine::Device;
use magnus::value::ReprValue;
use magnus::{Error, Ruby, TryConvert, Value};

use crate::dtype::{ElementType, RbDType, INT8};
use crate::{device::RbDevice, error};

/// A `Candle::Device`, its name, or nil for the best one.
pub fn device(ruby: &Ruby, value: Value) -> Result<Device, Error> {
    if value.is_nil() {
        return Ok(Device::best());
    }
    if let Ok(device) = <&RbDevice>::try_convert(value) {
        return Ok(device.0);
    }
    let name: String = value.funcall("to_s", ())?;
    Device::parse(&name).map_err(error::raised(ruby))
}

/// A `Candle::DType` or its name.
pub fn element_type(ruby: &Ruby, value: Value) -> Result<ElementType, Error> {
    if let Ok(dtype) = <&RbDType>::try_convert(value) {
        return Ok(dtype.0);
    }
    let name: String = value.funcall("to_s", ())?;
    if name.eq_ignore_ascii_case(INT8) {
        return Ok(ElementType::Int8);
    }
    let dtype = crate::dtype::parse(&name).map_err(error::raised(ruby))?;
    Ok(ElementType::Tensor(dtype))
}

/// A Numeric as a float; nothing for one that is not real.
pub fn real(ruby: &Ruby, value: Value) -> Result<Option<f64>, Error> {
    match value.funcall("to_f", ()) {
        Ok(number) => Ok(Some(number)),
        Err(error) if error.is_kind_of(ruby.exception_range_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The dtype of a tensor, which can't be int8.
pub fn dtype(ruby: &Ruby, value: Value) -> Result<DType, Error> {
    match element_type(ruby, value)? {
        ElementType::Tensor(dtype) => Ok(dtype),
        ElementType::Int8 => Err(error::raised(ruby)(engine::Error::InvalidInput(
            "int8 is a dtype of encoders, not of tensors: use u8 or i16".into(),
        ))),
    }
}

/// `dtype`, with nil allowed.
pub fn optional_dtype(ruby: &Ruby, value: Value) -> Result<Option<DType>, Error> {
    if value.is_nil() {
        return Ok(None);
    }
    dtype(ruby, value).map(Some)
}

/// What a model is asked to compute in: the type of its tensors, and whether its layers hold bytes.
pub fn precision(ruby: &Ruby, value: Value) -> Result<(Option<DType>, bool), Error> {
    if value.is_nil() {
        return Ok((None, false));
    }
    Ok(match element_type(ruby, value)? {
        ElementType::Tensor(dtype) => {
            crate::dtype::ensure_computed(dtype).map_err(error::raised(ruby))?;
            (Some(dtype), false)
        }
        ElementType::Int8 => (None, true),
    })
}
