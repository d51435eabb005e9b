//! Opening CUDA devices, and why there is none, in words that say what to do.

use std::sync::OnceLock;

/// Why the CUDA build of the extension is not the one in use; set by who chose between the builds.
static UNUSED_BUILD: OnceLock<String> = OnceLock::new();

/// Remembers why a CUDA build that is there could not be used; the first reason stays.
pub fn build_is_unused(reason: String) {
    // A second reason would be about the same build.
    let _ = UNUSED_BUILD.set(reason);
}

/// What a build without CUDA says of `device`.
pub fn missing_from_build(device: impl std::fmt::Display) -> String {
    match UNUSED_BUILD.get() {
        Some(reason) => format!("{device} is not available: {reason}"),
        None => format!(
            "{device} is not available: red-candle was built without CUDA. \
             Reinstall with: gem install red-candle --platform ruby -- --features cuda"
        ),
    }
}

/// Why there is no GPU, by CUDA's own error and the number of GPUs it counts.
pub fn explain(index: usize, error: &str, count: Option<usize>) -> String {
    let device = format!("cuda:{index}");
    let has = |name: &str| error.contains(name);
    if let Some(count) = count.filter(|&count| count > 0 && index >= count) {
        let valid: Vec<String> = (0..count).map(|index| format!("cuda:{index}")).collect();
        return format!(
            "{device} does not exist: this machine has {}. CUDA_VISIBLE_DEVICES may hide others",
            valid.join(", ")
        );
    }
    if has("NO_DEVICE") || count == Some(0) {
        return format!(
            "{device} is not available: no NVIDIA GPU found. nvidia-smi lists those of the machine; \
             CUDA_VISIBLE_DEVICES may hide them, and a container needs --gpus all"
        );
    }
    if has("STUB_LIBRARY") || has("NOT_INITIALIZED") || has("SYSTEM_NOT_READY") {
        return format!(
            "{device} is not available: no NVIDIA driver found ({error}). Install the driver, and see that \
             libcuda.so.1 is the driver's own and not the toolkit's stub"
        );
    }
    if has("INSUFFICIENT_DRIVER") || has("DRIVER_MISMATCH") || has("UNSUPPORTED_PTX") {
        return format!(
            "{device} is not available: the NVIDIA driver is too old for the CUDA that red-candle was built with \
             ({error}). Update the driver, or build with an older CUDA toolkit"
        );
    }
    format!("{device} cannot be opened ({error}): check the driver and the GPU with nvidia-smi")
}

/// Freed memory up to this stays with the process, for the next tensors; the rest goes back to the GPU
/// whenever the stream is waited for.
#[cfg(feature = "cuda")]
const RETAINED_BYTES: u64 = 1 << 30;

/// Opens a GPU with one stream of its own that all threads share: candle's default is a stream per
/// thread, on which a model that one thread loaded may not be complete when another runs it.
#[cfg(feature = "cuda")]
pub fn open(index: usize) -> candle_core::Result<candle_core::Device> {
    use candle_core::cuda_backend::cudarc::driver::result as driver;
    use candle_core::cuda_backend::cudarc::driver::sys::CUmemPool_attribute;
    use candle_core::cuda_backend::WrapErr;

    let device = candle_core::CudaDevice::new_with_stream(index)?;
    // SAFETY: there is one stream, so nothing happens out of its order.
    unsafe { device.disable_event_tracking() };
    let context = device.cuda_stream().context().clone();
    if context.has_async_alloc() {
        let mut bytes = RETAINED_BYTES;
        // SAFETY: the device is open, and the attribute is a number of this size.
        unsafe {
            let pool = driver::device::get_default_mem_pool(context.cu_device()).w()?;
            let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            driver::mem_pool::set_attribute(pool, attribute, (&raw mut bytes).cast()).w()?;
        }
    }
    Ok(candle_core::Device::Cuda(device))
}

#[cfg(not(feature = "cuda"))]
pub fn open(index: usize) -> candle_core::Result<candle_core::Device> {
    candle_core::Device::new_cuda(index)
}

/// How many GPUs the driver counts; `None` where it does not say.
#[cfg(feature = "cuda")]
pub fn count() -> Option<usize> {
    use candle_core::cuda_backend::cudarc::driver::CudaContext;
    CudaContext::device_count()
        .ok()
        .and_then(|count| usize::try_from(count).ok())
}

#[cfg(not(feature = "cuda"))]
pub fn count() -> Option<usize> {
    None
}

/// The memory of a GPU that nothing has taken; `None` where the driver does not say.
#[cfg(feature = "cuda")]
pub fn free_bytes(device: &candle_core::Device) -> Option<usize> {
    let stream = device.as_cuda_device().ok()?.cuda_stream();
    let (free, _) = stream.context().mem_get_info().ok()?;
    Some(free)
}

#[cfg(not(feature = "cuda"))]
pub fn free_bytes(_: &candle_core::Device) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lack_of_the_machine_has_its_own_words() {
        let valid = explain(7, "CUDA_ERROR_INVALID_DEVICE", Some(2));
        assert!(valid.contains("cuda:7 does not exist") && valid.contains("cuda:0, cuda:1"));
        for (error, count, words) in [
            ("CUDA_ERROR_NO_DEVICE", None, "no NVIDIA GPU found"),
            ("anything", Some(0), "no NVIDIA GPU found"),
            (
                "CUDA_ERROR_STUB_LIBRARY",
                None,
                "no NVIDIA driver found (CUDA_ERROR_STUB_LIBRARY)",
            ),
            ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", None, "too old"),
            ("CUDA_ERROR_UNKNOWN", Some(1), "nvidia-smi"),
        ] {
            let message = explain(0, error, count);
            assert!(
                message.starts_with("cuda:0 ") && message.contains(words),
                "{message}"
            );
        }
    }
}
