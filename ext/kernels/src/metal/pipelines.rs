//! Compiled libraries and pipelines, one of each per device.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use candle_core::metal_backend::DeviceId;
use candle_core::{DType, Error, MetalDevice, Result};
use candle_metal_kernels::metal::{ComputePipeline, Library};
use objc2_metal::MTLCompileOptions;

use super::plan::{kernel_name, Source};

#[derive(Default)]
struct Cache {
    libraries: HashMap<(DeviceId, Source), Library>,
    pipelines: HashMap<(DeviceId, Source, String), ComputePipeline>,
}

/// The pipeline of a kernel for one element type, compiled on first use.
pub fn pipeline(
    device: &MetalDevice,
    source: Source,
    kernel: &str,
    dtype: DType,
) -> Result<ComputePipeline> {
    static CACHE: OnceLock<Mutex<Cache>> = OnceLock::new();
    let mut cache = CACHE
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let key = (device.id(), source, kernel_name(kernel, dtype)?);
    if let Some(pipeline) = cache.pipelines.get(&key) {
        return Ok(pipeline.clone());
    }
    let library = match cache.libraries.get(&(key.0, source)) {
        Some(library) => library.clone(),
        None => {
            let library = compile(device, source)?;
            cache.libraries.insert((key.0, source), library.clone());
            library
        }
    };
    let function = library.get_function(&key.2, None).map_err(|error| {
        let hint = if dtype == DType::BF16 {
            "; bf16 needs macOS 14 or later"
        } else {
            ""
        };
        Error::Msg(format!("Metal kernel {}: {error}{hint}", key.2))
    })?;
    let pipeline = device
        .metal_device()
        .new_compute_pipeline_state_with_function(&function)
        .map_err(|error| Error::Msg(format!("Metal kernel {}: {error}", key.2)))?;
    cache.pipelines.insert(key, pipeline.clone());
    Ok(pipeline)
}

fn compile(device: &MetalDevice, source: Source) -> Result<Library> {
    let options = MTLCompileOptions::new();
    // Fast math, the default, may assume that there are no infinities and no NaN; masks and the
    // promise to hand them on rest on both. Its successor, the math mode, needs macOS 15.
    #[allow(deprecated)]
    options.setFastMathEnabled(false);
    device
        .metal_device()
        .new_library_with_source(&source.text(), Some(&options))
        .map_err(|error| {
            Error::Msg(format!(
                "the Metal source {source:?} does not compile: {error}"
            ))
        })
}
