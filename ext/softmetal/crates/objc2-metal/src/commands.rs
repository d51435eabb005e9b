//! Queues and command buffers.

use std::ffi::c_void;
use std::ptr::NonNull;

use block2::{DynBlock, RcBlock};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString};
use softmetal_interface::{runtime, Sink};

use crate::device::the_device;
use crate::{
    autoreleased, raw, MTLBlitCommandEncoder, MTLCommandBufferStatus, MTLComputeCommandEncoder,
    MTLDevice, MTLDispatchType, MTLResidencySet,
};

pub trait MTLCommandQueue {
    fn commandBuffer(&self) -> Option<Retained<ProtocolObject<dyn MTLCommandBuffer>>>;

    fn device(&self) -> Retained<ProtocolObject<dyn MTLDevice>> {
        the_device().soft_autoreleased()
    }

    fn addResidencySet(&self, _set: &ProtocolObject<dyn MTLResidencySet>) {}

    fn setLabel(&self, _label: Option<&NSString>) {}
}

impl MTLCommandQueue for ProtocolObject<dyn MTLCommandQueue> {
    fn commandBuffer(&self) -> Option<Retained<ProtocolObject<dyn MTLCommandBuffer>>> {
        // SAFETY: the queue is alive.
        autoreleased(unsafe { (runtime().command_buffer)(raw(self)) })
    }
}

type Handler = dyn Fn(NonNull<ProtocolObject<dyn MTLCommandBuffer>>);
pub type MTLCommandBufferHandler = *mut DynBlock<Handler>;

pub trait MTLCommandBuffer {
    fn computeCommandEncoderWithDispatchType(
        &self,
        kind: MTLDispatchType,
    ) -> Option<Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>>;
    fn blitCommandEncoder(&self) -> Option<Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>>;
    fn commit(&self);
    fn status(&self) -> MTLCommandBufferStatus;
    fn error(&self) -> Option<Retained<NSError>>;
    fn waitUntilCompleted(&self);
    unsafe fn addCompletedHandler(&self, block: MTLCommandBufferHandler);

    fn enqueue(&self) {}

    fn setLabel(&self, _label: Option<&NSString>) {}

    fn device(&self) -> Retained<ProtocolObject<dyn MTLDevice>> {
        the_device().soft_autoreleased()
    }
}

/// A block that waits for a command buffer, and which.
struct Completion {
    block: RcBlock<Handler>,
    command_buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
}

unsafe extern "C" fn complete(context: *mut c_void) {
    // SAFETY: the context is the box that `addCompletedHandler` leaked, and this is the only call.
    let completion = unsafe { Box::from_raw(context.cast::<Completion>()) };
    completion
        .block
        .call((NonNull::from(&*completion.command_buffer),));
}

impl MTLCommandBuffer for ProtocolObject<dyn MTLCommandBuffer> {
    fn computeCommandEncoderWithDispatchType(
        &self,
        kind: MTLDispatchType,
    ) -> Option<Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>> {
        let concurrent = kind == MTLDispatchType::Concurrent;
        // SAFETY: the command buffer is alive.
        autoreleased(unsafe { (runtime().encoder)(raw(self), concurrent) })
    }

    fn blitCommandEncoder(&self) -> Option<Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>> {
        // SAFETY: the command buffer is alive.
        autoreleased(unsafe { (runtime().encoder)(raw(self), false) })
    }

    fn commit(&self) {
        // SAFETY: the command buffer is alive.
        unsafe { (runtime().commit)(raw(self)) }
    }

    fn status(&self) -> MTLCommandBufferStatus {
        // SAFETY: the command buffer is alive.
        MTLCommandBufferStatus(unsafe { (runtime().status)(raw(self)) })
    }

    fn error(&self) -> Option<Retained<NSError>> {
        // SAFETY: the command buffer is alive.
        let (failed, text) = Sink::collect(|sink| unsafe { (runtime().error)(raw(self), sink) });
        failed.then(|| NSError::soft_new(&text).soft_autoreleased())
    }

    fn waitUntilCompleted(&self) {
        // SAFETY: the command buffer is alive.
        unsafe { (runtime().wait)(raw(self)) }
    }

    unsafe fn addCompletedHandler(&self, block: MTLCommandBufferHandler) {
        // SAFETY: the caller passes a living block.
        let Some(block) = (unsafe { RcBlock::copy(block) }) else {
            return;
        };
        let command_buffer = Retained::soft_from_ref(self);
        let context = Box::into_raw(Box::new(Completion {
            block,
            command_buffer,
        }));
        // SAFETY: the command buffer is alive, and `complete` takes this context.
        unsafe { (runtime().on_completion)(raw(self), complete, context.cast()) };
    }
}
