//! Launches of kernels that wait for what comes before them themselves.

use std::ffi::c_void;
use std::sync::OnceLock;

use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
};
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, DeviceRepr, LaunchConfig};
use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaDevice, Result};

use super::compile::capability;
use super::recording;

/// GPUs and drivers on which a recorded launch can begin before the one ahead of it has ended.
const LEAST_CAPABILITY: i32 = 90;
const LEAST_DRIVER: i32 = 12_030;

/// Launches a kernel that calls `await_previous`. While its thread records, its thread blocks may begin while the
/// launch ahead still runs, if what they read before they wait `is_there` before the recording.
///
/// # Safety
///
/// The arguments are those of the kernel.
pub(super) unsafe fn launch_early(
    device: &CudaDevice,
    function: &CudaFunction,
    config: LaunchConfig,
    arguments: &[*const c_void],
    is_there: bool,
) -> Result<()> {
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().w()?;
    let early = is_there && recording::device().is_some() && overlaps(device)?;
    let mut attribute = CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: CUlaunchAttributeValue {
            programmaticStreamSerializationAllowed: 1,
        },
    };
    let (grid, block) = (config.grid_dim, config.block_dim);
    let config = CUlaunchConfig {
        gridDimX: grid.0,
        gridDimY: grid.1,
        gridDimZ: grid.2,
        blockDimX: block.0,
        blockDimY: block.1,
        blockDimZ: block.2,
        sharedMemBytes: config.shared_mem_bytes,
        hStream: stream.cu_stream(),
        attrs: &mut attribute,
        numAttrs: u32::from(early),
    };
    let mut arguments: Vec<*mut c_void> = arguments.iter().map(|at| at.cast_mut()).collect();
    let none = std::ptr::null_mut();
    // SAFETY: the caller's arguments are the kernel's, and are copied before the call returns.
    unsafe {
        sys::cuLaunchKernelEx(
            &config,
            function.cu_function(),
            arguments.as_mut_ptr(),
            none,
        )
    }
    .result()
    .w()
}

/// An argument of a kernel.
pub(super) fn argument<T: DeviceRepr>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

fn overlaps(device: &CudaDevice) -> Result<bool> {
    static DRIVER: OnceLock<i32> = OnceLock::new();
    let driver = *DRIVER.get_or_init(|| {
        let mut version = 0;
        // SAFETY: `version` is a living i32 that the driver writes.
        match unsafe { sys::cuDriverGetVersion(&mut version) }.result() {
            Ok(()) => version,
            Err(_) => 0,
        }
    });
    Ok(driver >= LEAST_DRIVER && capability(device)? >= LEAST_CAPABILITY)
}
