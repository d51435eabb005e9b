//! Stands in for objc2-metal: its interface, as far as candle and the engine use it, over the software device.
#![allow(
    non_snake_case,
    non_upper_case_globals,
    clippy::missing_safety_doc,
    clippy::too_many_arguments
)]

mod capture;
mod commands;
mod device;
mod encoders;
mod library;
mod resources;

pub use capture::{MTLCaptureDescriptor, MTLCaptureManager};
pub use commands::{MTLCommandBuffer, MTLCommandBufferHandler, MTLCommandQueue};
pub use device::{MTLArchitecture, MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice};
pub use encoders::{MTLBlitCommandEncoder, MTLCommandEncoder, MTLComputeCommandEncoder};
pub use library::{
    MTLCompileOptions, MTLComputePipelineState, MTLFunction, MTLFunctionConstantValues, MTLLibrary,
};
pub use resources::{
    MTLAllocation, MTLBuffer, MTLFence, MTLResidencySet, MTLResidencySetDescriptor, MTLResource,
};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSUInteger};
use softmetal_interface::{Handle, Raw};

/// The object behind a protocol.
fn raw<P: ?Sized + 'static>(object: &ProtocolObject<P>) -> Raw {
    object.soft_body::<Handle>().raw()
}

/// A new reference that the device returned, as an object of a class or protocol.
fn object<T: objc2::Message>(returned: Raw) -> Option<Retained<T>> {
    Handle::take(returned).map(Retained::soft_new)
}

/// The same as a method returns it that autoreleases what it returns.
fn autoreleased<T: objc2::Message>(returned: Raw) -> Option<Retained<T>> {
    object(returned).map(Retained::soft_autoreleased)
}

/// The object, or the problem that the device wrote of.
fn result<T: objc2::Message>(
    (returned, problem): (Raw, String),
) -> Result<Retained<T>, Retained<NSError>> {
    object(returned).ok_or_else(|| NSError::soft_new(&problem).soft_autoreleased())
}

macro_rules! options {
    ($name:ident: $type:ty { $($constant:ident = $value:expr,)* }) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $type);
        impl $name { $(pub const $constant: Self = Self($value);)* }
        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self { Self(self.0 | other.0) }
        }
    };
}

options!(MTLResourceOptions: NSUInteger {
    CPUCacheModeDefaultCache = 0, StorageModeShared = 0, StorageModeManaged = 1 << 4, StorageModePrivate = 2 << 4,
    HazardTrackingModeDefault = 0, HazardTrackingModeUntracked = 1 << 8, HazardTrackingModeTracked = 2 << 8,
});
options!(MTLBarrierScope: NSUInteger { Buffers = 1, Textures = 2, RenderTargets = 4, });
options!(MTLDispatchType: NSUInteger { Serial = 0, Concurrent = 1, });
options!(MTLCommandBufferStatus: NSUInteger {
    NotEnqueued = 0, Enqueued = 1, Committed = 2, Scheduled = 3, Completed = 4, Error = 5,
});
options!(MTLDataType: NSUInteger { Float = 3, UInt = 33, UShort = 41, Bool = 53, ULong = 85, });
options!(MTLMathMode: isize { Safe = 0, Relaxed = 1, Fast = 2, });
options!(MTLMathFloatingPointFunctions: isize { Fast = 0, Precise = 1, });
options!(MTLCaptureDestination: isize { DeveloperTools = 1, GPUTraceDocument = 2, });

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct MTLSize {
    pub width: NSUInteger,
    pub height: NSUInteger,
    pub depth: NSUInteger,
}

macro_rules! classes {
    ($($name:ident)*) => {$(
        #[repr(transparent)]
        pub struct $name(objc2::runtime::AnyObject);
        // SAFETY: `repr(transparent)`.
        unsafe impl objc2::Message for $name {}
    )*};
}
pub(crate) use classes;
