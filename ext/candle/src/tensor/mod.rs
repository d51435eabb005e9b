//! `Candle::Tensor`

use candle_core::{Device as CandleDevice, Tensor};
use engine::Device;
use magnus::{method, prelude::*, DataTypeFunctions, Error, RModule, Ruby, TypedData};

use crate::{device::RbDevice, dtype::RbDType, error, gc::Tracked};

/// A tensor of Ruby's. Views share the memory of the tensor they look into, and its accounting.
#[derive(TypedData)]
#[magnus(class = "Candle::Tensor", free_immediately, size)]
pub struct RbTensor {
    tensor: Tensor,
    tracked: Tracked,
}

impl DataTypeFunctions for RbTensor {
    fn size(&self) -> usize {
        size_of::<Self>() + bytes(&self.tensor)
    }
}

impl RbTensor {
    /// Wraps memory that no other Ruby object knows of.
    pub fn new(ruby: &Ruby, tensor: Tensor) -> Self {
        let tracked = Tracked::new(ruby, bytes(&tensor));
        Self { tensor, tracked }
    }

    /// Wraps what was computed from `self`: a view of its memory, or memory of its own.
    pub fn view_of(&self, ruby: &Ruby, tensor: Tensor) -> Self {
        if storage_address(&self.tensor) != storage_address(&tensor) {
            return Self::new(ruby, tensor);
        }
        let tracked = self.tracked.clone();
        Self { tensor, tracked }
    }

    /// The tensor to compute with; a `DeviceError` when its GPU was lost to a fork.
    pub fn tensor(&self, ruby: &Ruby) -> Result<&Tensor, Error> {
        if !matches!(self.tensor.device(), CandleDevice::Cpu) {
            Device::of(self.tensor.device())
                .open()
                .map_err(error::raised(ruby))?;
        }
        Ok(&self.tensor)
    }
}

fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

fn storage_address(tensor: &Tensor) -> usize {
    std::ptr::from_ref(&*tensor.storage_and_layout().0).addr()
}

fn shape(tensor: &RbTensor) -> Vec<usize> {
    tensor.tensor.dims().to_vec()
}

fn dtype(tensor: &RbTensor) -> RbDType {
    RbDType(tensor.tensor.dtype())
}

fn device(tensor: &RbTensor) -> RbDevice {
    RbDevice(Device::of(tensor.tensor.device()))
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Tensor", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_method("shape", method!(shape, 0))?;
    class.define_method("dtype", method!(dtype, 0))?;
    class.define_method("device", method!(device, 0))
}
