//! CUDA sources, compiled by NVRTC when a process first needs them and loaded once per device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::cuda_backend::cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute};
use candle_core::cuda_backend::cudarc::driver::CudaFunction;
use candle_core::cuda_backend::cudarc::nvrtc::{compile_ptx_with_opts, CompileOptions};
use candle_core::cuda_backend::{DeviceId, WrapErr};
use candle_core::{CudaDevice, DType, Result};

const TYPES: &str = include_str!("types.cuh");

/// A source file; what a kernel needs to know when it is compiled is defined in front of it.
#[derive(Clone, Copy)]
pub struct Source {
    pub name: &'static str,
    pub text: &'static str,
    /// Whether it takes instructions that Hopper has, and nothing after it.
    pub for_hopper: bool,
}

pub const ROWS: Source = Source {
    name: "rows",
    text: include_str!("rows.cu"),
    for_hopper: false,
};
pub const SAMPLING: Source = Source {
    name: "sampling",
    text: include_str!("sampling.cu"),
    for_hopper: false,
};
pub const SCAN: Source = Source {
    name: "scan",
    text: include_str!("scan.cu"),
    for_hopper: false,
};
pub const EXPERTS: Source = Source {
    name: "experts",
    text: include_str!("experts.cu"),
    for_hopper: false,
};
pub const ORDER: Source = Source {
    name: "order",
    text: include_str!("order.cu"),
    for_hopper: false,
};
pub const ATTENTION: Source = Source {
    name: "attention",
    text: concat!(
        include_str!("attention.cu"),
        include_str!("attention_rows.cu")
    ),
    for_hopper: false,
};
pub const PRODUCT: Source = Source {
    name: "product",
    text: concat!(
        "#define WEIGHT ELEMENT\n",
        include_str!("product.cuh"),
        include_str!("product.cu")
    ),
    for_hopper: false,
};
pub const EXPERT_TILES: Source = Source {
    name: "expert_tiles",
    text: concat!(
        "#define WEIGHT ELEMENT\n",
        include_str!("product.cuh"),
        include_str!("tensor_cores.cuh"),
        include_str!("expert_tiles.cu")
    ),
    for_hopper: false,
};
pub const BLOCKS: Source = Source {
    name: "blocks",
    text: concat!(
        "typedef unsigned char uchar;\n#define WEIGHT uchar\n",
        include_str!("product.cuh"),
        include_str!("groups.cuh"),
        include_str!("block_runs.cuh"),
        include_str!("blocks.cu")
    ),
    for_hopper: false,
};
pub const BLOCK_TILES: Source = Source {
    name: "block_tiles",
    text: concat!(
        "typedef unsigned char uchar;\n#define WEIGHT uchar\n",
        include_str!("product.cuh"),
        include_str!("tensor_cores.cuh"),
        include_str!("block_numbers.cuh"),
        include_str!("block_tiles.cu")
    ),
    for_hopper: false,
};

pub const BLOCK_PANELS: Source = Source {
    name: "block_panels",
    text: concat!(
        "typedef unsigned char uchar;\n#define WEIGHT uchar\n",
        include_str!("product.cuh"),
        include_str!("tensor_cores.cuh"),
        include_str!("cluster.cuh"),
        include_str!("groups.cuh"),
        include_str!("block_runs.cuh"),
        include_str!("block_panels.cu")
    ),
    for_hopper: false,
};

pub const BLOCK_STREAMS: Source = Source {
    name: "block_streams",
    text: concat!(
        "typedef unsigned char uchar;\n#define WEIGHT uchar\n",
        include_str!("product.cuh"),
        include_str!("tensor_cores.cuh"),
        include_str!("block_numbers.cuh"),
        include_str!("groups.cuh"),
        include_str!("block_streams.cu"),
        include_str!("group_streams.cu"),
        include_str!("stream.cu")
    ),
    for_hopper: false,
};

pub const WIDE_PRODUCT: Source = Source {
    name: "wide_product",
    text: concat!(
        include_str!("cluster.cuh"),
        include_str!("warpgroups.cuh"),
        include_str!("wide_product.cu")
    ),
    for_hopper: true,
};
pub const FP8_ROWS: Source = Source {
    name: "fp8_rows",
    text: include_str!("fp8_rows.cu"),
    for_hopper: true,
};
pub const FP8_PRODUCT: Source = Source {
    name: "fp8_product",
    text: concat!(
        include_str!("cluster.cuh"),
        include_str!("warpgroups.cuh"),
        include_str!("fp8_product.cu")
    ),
    for_hopper: true,
};
pub const ATTENTION_WARPGROUPS: Source = Source {
    name: "attention_warpgroups",
    text: concat!(
        include_str!("attention.cu"),
        include_str!("warpgroups.cuh"),
        include_str!("attention_warpgroups.cu")
    ),
    for_hopper: true,
};

/// The compute capability of sources that are `for_hopper`.
pub const HOPPER: i32 = 90;

/// A block gets more shared memory than this only when it asks for it.
const PLAIN_SHARED_BYTES: u32 = 48 << 10;

type Functions = HashMap<(DeviceId, String), CudaFunction>;

/// The kernel of a source, compiled for one element type and the other definitions.
pub fn function(
    device: &CudaDevice,
    source: Source,
    kernel: &str,
    dtype: DType,
    definitions: &[(&str, usize)],
    shared_bytes: u32,
) -> Result<CudaFunction> {
    static LOADED: Mutex<Option<Functions>> = Mutex::new(None);
    let module = module_name(source, dtype, definitions);
    let key = (device.id(), format!("{module} {kernel}"));
    let find = |loaded: &Mutex<Option<Functions>>| {
        let mut guard = loaded.lock().unwrap_or_else(|e| e.into_inner());
        guard.get_or_insert_default().get(&key).cloned()
    };
    if let Some(function) = find(&LOADED) {
        return Ok(function);
    }
    let ptx = ptx(device, &module, source, dtype, definitions)?;
    let function = device.get_or_load_custom_func(kernel, &module, &ptx)?;
    let function = function.into_cuda_function();
    if shared_bytes > PLAIN_SHARED_BYTES {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, shared_bytes as i32).w()?;
    }
    let mut guard = LOADED.lock().unwrap_or_else(|e| e.into_inner());
    guard.get_or_insert_default().insert(key, function.clone());
    Ok(function)
}

pub fn attribute(device: &CudaDevice, attribute: CUdevice_attribute) -> Result<i32> {
    device.cuda_stream().context().attribute(attribute).w()
}

/// The device's compute capability, ten times the major part plus the minor.
pub fn capability(device: &CudaDevice) -> Result<i32> {
    let ask = |what| attribute(device, what);
    Ok(
        10 * ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    )
}

fn module_name(source: Source, dtype: DType, definitions: &[(&str, usize)]) -> String {
    let mut name = format!("{} {}", source.name, dtype.as_str());
    for (_, value) in definitions {
        name.push_str(&format!(" {value}"));
    }
    name
}

fn ptx(
    device: &CudaDevice,
    module: &str,
    source: Source,
    dtype: DType,
    definitions: &[(&str, usize)],
) -> Result<Arc<str>> {
    /// By architecture and what it was compiled from.
    type Compiled = HashMap<(i32, String), Arc<str>>;
    static COMPILED: Mutex<Option<Compiled>> = Mutex::new(None);
    // PTX for an older architecture runs on a newer one.
    let (architecture, arch) = match capability(device)? {
        HOPPER if source.for_hopper => (HOPPER, "compute_90a"),
        90.. => (90, "compute_90"),
        80.. => (80, "compute_80"),
        _ => (75, "compute_75"),
    };
    let mut guard = COMPILED.lock().unwrap_or_else(|e| e.into_inner());
    let compiled = guard.get_or_insert_default();
    let key = (architecture, module.to_owned());
    if let Some(ptx) = compiled.get(&key) {
        return Ok(ptx.clone());
    }
    let element = match dtype {
        DType::F32 => "float",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        other => candle_core::bail!("kernels take f32, f16 or bf16 tensors, not {other:?}"),
    };
    let mut text = format!("#define ELEMENT {element}\n");
    for (name, value) in definitions {
        text.push_str(&format!("#define {name} {value}\n"));
    }
    text.push_str(TYPES);
    text.push_str(source.text);
    let options = CompileOptions {
        name: Some(format!("{}.cu", source.name)),
        arch: Some(arch),
        ..CompileOptions::default()
    };
    let ptx = compile_ptx_with_opts(text, options).map_err(|error| {
        let message = format!("NVRTC cannot compile {}.cu: {error:?}", source.name);
        candle_core::Error::Cuda(message.into())
    })?;
    let ptx: Arc<str> = ptx.to_src().into();
    compiled.insert(key, ptx.clone());
    Ok(ptx)
}
