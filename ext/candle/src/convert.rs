//! Ruby values to engine values, where more than one class needs it.

use candle_core::DType;
use engine::Device;
use magnus::value::ReprValue;
use magnus::{Error, Ruby, TryConvert, Value};

use crate::{device::RbDevice, dtype::RbDType, error};

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
pub fn dtype(ruby: &Ruby, value: Value) -> Result<DType, Error> {
    if let Ok(dtype) = <&RbDType>::try_convert(value) {
        return Ok(dtype.0);
    }
    let name: String = value.funcall("to_s", ())?;
    crate::dtype::parse(&name).map_err(error::raised(ruby))
}

/// The same, with nil allowed.
pub fn optional_dtype(ruby: &Ruby, value: Value) -> Result<Option<DType>, Error> {
    if value.is_nil() {
        return Ok(None);
    }
    dtype(ruby, value).map(Some)
}
