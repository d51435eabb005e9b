//! `Candle::Device`

use engine::Device;
use magnus::{function, method, prelude::*, Error, RModule, Ruby, Value};

use crate::{convert, gvl};

#[magnus::wrap(class = "Candle::Device", free_immediately, size, frozen_shareable)]
pub struct RbDevice(pub Device);

fn parse(ruby: &Ruby, value: Value) -> Result<RbDevice, Error> {
    gvl::hold(ruby, || convert::device(ruby, value).map(RbDevice))
}

/// A device by name that is also proven to open.
fn open(ruby: &Ruby, name: String) -> Result<RbDevice, Error> {
    gvl::leave(ruby, |_| {
        let device = Device::parse(&name)?;
        device.open()?;
        Ok(RbDevice(device))
    })
}

fn best(ruby: &Ruby) -> Result<RbDevice, Error> {
    gvl::leave(ruby, |_| Ok(RbDevice(Device::best())))
}

fn available(ruby: &Ruby) -> Result<Vec<String>, Error> {
    gvl::leave(ruby, |_| {
        Ok(Device::available()
            .iter()
            .map(ToString::to_string)
            .collect())
    })
}

fn synchronize(ruby: &Ruby, device: &RbDevice) -> Result<(), Error> {
    let device = device.0;
    gvl::leave(ruby, |_| device.synchronize())
}

fn kind(device: &RbDevice) -> &'static str {
    device.0.kind()
}

fn index(device: &RbDevice) -> usize {
    device.0.index()
}

fn name(device: &RbDevice) -> String {
    device.0.to_string()
}

/// Why a CUDA build beside this one is not in use, for the errors of CUDA devices.
fn cuda_is_unused(reason: String) {
    base::runtime::device::cuda::build_is_unused(reason);
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Device", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_parse", function!(parse, 1))?;
    class
        .singleton_class()?
        .define_private_method("_open", function!(open, 1))?;
    class
        .singleton_class()?
        .define_private_method("_best", function!(best, 0))?;
    class
        .singleton_class()?
        .define_private_method("_cuda_is_unused", function!(cuda_is_unused, 1))?;
    class
        .singleton_class()?
        .define_private_method("_available", function!(available, 0))?;
    class.define_private_method("_kind", method!(kind, 0))?;
    class.define_method("index", method!(index, 0))?;
    class.define_method("to_s", method!(name, 0))?;
    class.define_private_method("_synchronize", method!(synchronize, 0))
}
