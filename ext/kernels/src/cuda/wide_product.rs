//! Many rows times a matrix, activated before they are rounded, by our own kernel for Hopper.

use candle_core::cuda_backend::cudarc::driver::{sys, DeviceRepr, LaunchConfig};
use candle_core::{DType, Result, Tensor};

use super::compile::{attribute, capability, function, HOPPER, WIDE_PRODUCT};
use super::device::{address, device_of, result, ALIGNMENT};
use super::launch::{argument, launch_early};
use super::parameters::small;
use super::tensor_map::{TensorMap, TILE_DEPTH};
use super::Activation;
use crate::matrix::Matrix;

/// As in the CUDA source.
const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 128;
const CLUSTER: usize = 2;
const STAGES: usize = 6;
const THREADS: u32 = 3 * 128;
/// Tiles in their stages, what eight warps store, and two barriers for each stage.
const SHARED_BYTES: usize =
    STAGES * (TILE_ROWS + TILE_COLUMNS) * TILE_DEPTH * 2 + 8 * 16 * (64 + 8) * 2 + 2 * STAGES * 8;

/// Fewer rows leave most of its blocks without work.
const LEAST_ROWS: usize = 1024;

/// As `WideProduct` in the CUDA source.
#[derive(Clone, Copy)]
#[repr(C)]
struct Parameters {
    bias: u64,
    out: u64,
    rows: u32,
    outputs: u32,
    depth: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

/// activation(x · weightᵀ + bias), or `None` where the device, shapes or layouts ask for another way. `x` is
/// [rows, in].
pub(super) fn multiply(
    x: &Tensor,
    matrix: &Matrix<'_>,
    activation: Activation,
) -> Result<Option<Tensor>> {
    let (rows, inputs) = x.dims2()?;
    let outputs = matrix.weight.dim(0)?;
    let dtype = x.dtype();
    let tensors = [Some(x), Some(matrix.weight), matrix.bias];
    let sound = |tensor: &Tensor| tensor.is_contiguous() && tensor.dtype() == dtype;
    let fits = matches!(dtype, DType::F16 | DType::BF16)
        && rows >= LEAST_ROWS
        && inputs > 0
        && outputs > 0
        && inputs.is_multiple_of(8)
        && outputs.is_multiple_of(8)
        && tensors.into_iter().flatten().all(sound);
    if !fits {
        return Ok(None);
    }
    let device = device_of(x)?;
    if capability(&device)? != HOPPER {
        return Ok(None);
    }
    let clusters = attribute(
        &device,
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    )? as usize
        / CLUSTER;
    let tiles = rows.div_ceil(CLUSTER * TILE_ROWS) * outputs.div_ceil(TILE_COLUMNS);
    let (from, weight) = (address(x)?, address(matrix.weight)?);
    let bias = matrix.bias.map(address).transpose()?.unwrap_or(0);
    if [from, weight, bias].iter().any(|at| at % ALIGNMENT != 0) {
        return Ok(None);
    }
    let (out, to) = result(&device, (rows, outputs), dtype)?;
    let parameters = Parameters {
        bias,
        out: to,
        rows: small(rows)?,
        outputs: small(outputs)?,
        depth: small(inputs.div_ceil(TILE_DEPTH))?,
    };
    let x_map = TensorMap::new(from, dtype, (rows, inputs), inputs, TILE_ROWS)?;
    let weight_map = TensorMap::new(
        weight,
        dtype,
        (outputs, inputs),
        inputs,
        TILE_COLUMNS / CLUSTER,
    )?;
    let definitions = [("ACTIVATION", activation.number() as usize)];
    let shared = SHARED_BYTES as u32;
    let kernel = "wide_product";
    let function = function(&device, WIDE_PRODUCT, kernel, dtype, &definitions, shared)?;
    let config = LaunchConfig {
        grid_dim: ((CLUSTER * tiles.min(clusters)) as u32, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: shared,
    };
    let arguments = [
        argument(&x_map),
        argument(&weight_map),
        argument(&parameters),
    ];
    // SAFETY: the arguments are the kernel's, and its addresses are of tensors of the shapes it says; it reads
    // nothing ahead.
    unsafe { launch_early(&device, &function, config, &arguments, true) }?;
    Ok(Some(out))
}
