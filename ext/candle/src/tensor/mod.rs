//! `Candle::Tensor`

mod create;
mod math;
mod nearest;
mod shape;
mod values;

use std::sync::OnceLock;

use candle_core::{Device as CandleDevice, Tensor};
use engine::{CancelToken, Device};
use magnus::{method, prelude::*, DataTypeFunctions, Error, RArray, RModule, Ruby, TypedData};

use crate::dtype::{ElementType, RbDType};
use crate::{device::RbDevice, error, gc::Tracked, gvl};

/// How many elements are turned into or from Ruby objects, which needs the GVL, before other
/// threads and interrupts get their turn.
const INTERVAL: usize = 1 << 16;

/// A tensor of Ruby's. Views share the memory of the tensor they look into, and its accounting.
#[derive(TypedData)]
#[magnus(class = "Candle::Tensor", free_immediately, size)]
pub struct RbTensor {
    tensor: Tensor,
    tracked: Tracked,
    /// Of its rows, where they were searched.
    lengths: OnceLock<Vec<f32>>,
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
        Self {
            tensor,
            tracked,
            lengths: OnceLock::new(),
        }
    }

    /// Wraps what was computed from `self`: a view of its memory, or memory of its own.
    pub fn view_of(&self, ruby: &Ruby, tensor: Tensor) -> Self {
        if storage_address(&self.tensor) != storage_address(&tensor) {
            return Self::new(ruby, tensor);
        }
        Self {
            tensor,
            tracked: self.tracked.clone(),
            lengths: OnceLock::new(),
        }
    }

    /// The tensor to compute with; a `DeviceError` when its GPU was lost to a fork.
    pub fn tensor(&self, ruby: &Ruby) -> Result<&Tensor, Error> {
        if !on_cpu(&self.tensor) {
            Device::of(self.tensor.device())
                .open()
                .map_err(error::raised(ruby))?;
        }
        Ok(&self.tensor)
    }

    /// What `work` makes of this tensor. Small work is done at once, since leaving the GVL would
    /// take longer than the work itself.
    fn derive(
        &self,
        ruby: &Ruby,
        size: usize,
        work: impl Fn(&Tensor, &CancelToken) -> engine::Result<Tensor> + Send + Sync,
    ) -> Result<Self, Error> {
        let tensor = self.tensor(ruby)?;
        let result = compute(ruby, on_cpu(tensor), size, |cancel| work(tensor, cancel))?;
        Ok(self.view_of(ruby, result))
    }

    /// A tensor made by work that only looks at the shape.
    fn view(
        &self,
        ruby: &Ruby,
        work: impl FnOnce(&Tensor) -> engine::Result<Tensor>,
    ) -> Result<Self, Error> {
        let tensor = self.tensor(ruby)?;
        let result = gvl::hold(ruby, || work(tensor).map_err(error::raised(ruby)))?;
        Ok(self.view_of(ruby, result))
    }
}

/// Runs work on `size` elements, off the GVL unless it is small and on the CPU. Small work of
/// `kernels::tensor` touches no pool.
fn compute<T: Send>(
    ruby: &Ruby,
    on_cpu: bool,
    size: usize,
    work: impl Fn(&CancelToken) -> engine::Result<T> + Send,
) -> Result<T, Error> {
    if on_cpu && size < kernels::tensor::SMALL {
        return gvl::hold(ruby, || {
            work(&CancelToken::new()).map_err(error::raised(ruby))
        });
    }
    gvl::leave(ruby, work)
}

/// What a broadcast view would need counts as if it were memory, so it may exceed any limit.
fn bytes(tensor: &Tensor) -> usize {
    tensor
        .elem_count()
        .saturating_mul(tensor.dtype().size_in_bytes())
}

fn on_cpu(tensor: &Tensor) -> bool {
    matches!(tensor.device(), CandleDevice::Cpu)
}

fn storage_address(tensor: &Tensor) -> usize {
    std::ptr::from_ref(&*tensor.storage_and_layout().0).addr()
}

fn dims(ruby: &Ruby, tensor: &RbTensor) -> RArray {
    ruby.ary_from_iter(tensor.tensor.dims().iter().copied())
}

fn stride(ruby: &Ruby, tensor: &RbTensor) -> RArray {
    ruby.ary_from_iter(tensor.tensor.stride().iter().copied())
}

fn dtype(tensor: &RbTensor) -> RbDType {
    RbDType(ElementType::Tensor(tensor.tensor.dtype()))
}

fn device(tensor: &RbTensor) -> RbDevice {
    RbDevice(Device::of(tensor.tensor.device()))
}

fn rank(tensor: &RbTensor) -> usize {
    tensor.tensor.rank()
}

fn elem_count(tensor: &RbTensor) -> usize {
    tensor.tensor.elem_count()
}

fn is_contiguous(tensor: &RbTensor) -> bool {
    tensor.tensor.is_contiguous()
}

fn is_fortran_contiguous(tensor: &RbTensor) -> bool {
    tensor.tensor.is_fortran_contiguous()
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Tensor", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_method("shape", method!(dims, 0))?;
    class.define_method("stride", method!(stride, 0))?;
    class.define_method("dtype", method!(dtype, 0))?;
    class.define_method("device", method!(device, 0))?;
    class.define_method("rank", method!(rank, 0))?;
    class.define_method("elem_count", method!(elem_count, 0))?;
    class.define_method("is_contiguous", method!(is_contiguous, 0))?;
    class.define_method("is_fortran_contiguous", method!(is_fortran_contiguous, 0))?;
    create::init(class)?;
    values::init(class)?;
    shape::init(class)?;
    nearest::init(class)?;
    math::init(class)
}
