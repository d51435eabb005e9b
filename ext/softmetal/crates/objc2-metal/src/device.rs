//! The device, of which there is one.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString, NSUInteger};
use softmetal_interface::{runtime, Bytes, Sink};

use crate::resources::Residents;
use crate::{
    object, raw, result, MTLBuffer, MTLCommandQueue, MTLCompileOptions, MTLComputePipelineState,
    MTLFence, MTLFunction, MTLLibrary, MTLResidencySet, MTLResidencySetDescriptor,
    MTLResourceOptions,
};

crate::classes!(MTLArchitecture);

struct DeviceBody;

pub(crate) fn the_device() -> Retained<ProtocolObject<dyn MTLDevice>> {
    struct Holder(Retained<ProtocolObject<dyn MTLDevice>>);
    // SAFETY: the object has no state, and its count is atomic.
    unsafe impl Send for Holder {}
    // SAFETY: as above.
    unsafe impl Sync for Holder {}
    static DEVICE: OnceLock<Holder> = OnceLock::new();
    DEVICE
        .get_or_init(|| Holder(Retained::soft_new(DeviceBody)))
        .0
        .clone()
}

pub fn MTLCreateSystemDefaultDevice() -> Option<Retained<ProtocolObject<dyn MTLDevice>>> {
    Some(the_device())
}

pub fn MTLCopyAllDevices() -> Retained<NSArray<ProtocolObject<dyn MTLDevice>>> {
    NSArray::from_retained_slice(&[the_device()])
}

pub trait MTLDevice {
    fn registryID(&self) -> u64 {
        1
    }

    fn recommendedMaxWorkingSetSize(&self) -> u64 {
        16 << 30
    }

    fn currentAllocatedSize(&self) -> usize {
        // SAFETY: takes nothing.
        unsafe { (runtime().allocated)() }
    }

    fn architecture(&self) -> Retained<MTLArchitecture> {
        Retained::<MTLArchitecture>::soft_new(()).soft_autoreleased()
    }

    fn newFence(&self) -> Option<Retained<ProtocolObject<dyn MTLFence>>> {
        // SAFETY: takes nothing.
        object(unsafe { (runtime().fence)() })
    }

    fn newCommandQueue(&self) -> Option<Retained<ProtocolObject<dyn MTLCommandQueue>>> {
        // SAFETY: takes nothing.
        object(unsafe { (runtime().queue)() })
    }

    fn newResidencySetWithDescriptor_error(
        &self,
        _descriptor: &MTLResidencySetDescriptor,
    ) -> Result<Retained<ProtocolObject<dyn MTLResidencySet>>, Retained<NSError>> {
        Ok(Retained::soft_new(Mutex::new(Residents::new())))
    }

    fn newBufferWithLength_options(
        &self,
        length: NSUInteger,
        options: MTLResourceOptions,
    ) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>> {
        let private = options.0 & MTLResourceOptions::StorageModePrivate.0 != 0;
        // SAFETY: takes numbers.
        object(unsafe { (runtime().buffer)(length, private) })
    }

    unsafe fn newBufferWithBytes_length_options(
        &self,
        bytes: NonNull<c_void>,
        length: NSUInteger,
        _options: MTLResourceOptions,
    ) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>> {
        let start = bytes.as_ptr().cast_const().cast();
        // SAFETY: the caller lends so many bytes.
        object(unsafe { (runtime().buffer_with_bytes)(Bytes { start, length }) })
    }

    fn newLibraryWithSource_options_error(
        &self,
        source: &NSString,
        _options: Option<&MTLCompileOptions>,
    ) -> Result<Retained<ProtocolObject<dyn MTLLibrary>>, Retained<NSError>> {
        let source = source.to_string();
        // SAFETY: the text is alive.
        let library = unsafe { (runtime().library)(Bytes::of(source.as_bytes())) };
        result((library, "no library".to_string()))
    }

    fn newComputePipelineStateWithFunction_error(
        &self,
        function: &ProtocolObject<dyn MTLFunction>,
    ) -> Result<Retained<ProtocolObject<dyn MTLComputePipelineState>>, Retained<NSError>> {
        // SAFETY: the function is alive.
        result(Sink::collect(|sink| unsafe {
            (runtime().pipeline)(raw(function), sink)
        }))
    }
}

impl MTLDevice for ProtocolObject<dyn MTLDevice> {}

impl MTLArchitecture {
    /// candle reads the size of the GPU from its last letter.
    pub fn name(&self) -> Retained<NSString> {
        let name = std::env::var("SOFTMETAL_ARCHITECTURE");
        NSString::from_str(name.as_deref().unwrap_or("applegpu_g13g")).soft_autoreleased()
    }
}
