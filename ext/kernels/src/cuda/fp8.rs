//! Matrices of FP8 on Hopper's tensor cores, with rows rounded to FP8 by a launch ahead.

use candle_core::cuda_backend::cudarc::driver::{sys, DeviceRepr, LaunchConfig};
use candle_core::{CudaDevice, DType, Result, Tensor};

use super::compile::{attribute, capability, function, FP8_PRODUCT, FP8_ROWS, HOPPER};
use super::device::{address, device_of, result, ALIGNMENT};
use super::launch::{argument, launch_early};
use super::parameters::small;
use super::product::MOST_MATRICES;
use super::recording::is_older;
use super::tensor_map::TensorMap;
use crate::blocks::BlockFactor;
use crate::fp8::{Scaling, LEAST_ROWS};
use crate::Activation;

/// Beyond so many rows the depth of a product is not split.
const MOST_SPLIT_ROWS: usize = 256;

/// As in the CUDA source.
const TILE_COLUMNS: usize = 128;
const HALF_TILE: usize = 64;
const DEPTH: usize = 128;
const UNIT: usize = 272;
const SCALE_BYTES: usize = 16;
const MOST_SPLITS: usize = 8;
/// Steps of each block that shares a depth, at least.
const LEAST_STEPS: usize = 4;
const THREADS: u32 = 3 * 128;
const ROW_THREADS: u32 = 256;
/// More inputs would make kernels too long.
const MOST_INPUTS: usize = 1 << 16;

/// As `Fp8Rows` in the CUDA source.
#[derive(Clone, Copy)]
#[repr(C)]
struct RowParameters {
    x: u64,
    out: u64,
    scales: u64,
    pitch: u32,
}

/// As `Fp8Product` in the CUDA source.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Parameters {
    weights: [u64; MOST_MATRICES],
    biases: [u64; MOST_MATRICES],
    residual: u64,
    scales: u64,
    out: u64,
    ends: [u32; MOST_MATRICES],
    tiles: [u32; MOST_MATRICES],
    rows: u32,
    outputs: u32,
    depth: u32,
    pitch: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for RowParameters {}
// SAFETY: as above.
unsafe impl DeviceRepr for Parameters {}

/// How a product is cut.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    tile_rows: usize,
    /// Thread blocks that share the depth of a tile.
    splits: usize,
    /// Thread blocks of a cluster that have the same rows.
    sharers: usize,
    /// Clusters that tiles are spread over.
    clusters: usize,
}

impl Plan {
    /// Up to `MOST_SPLIT_ROWS` rows the splits depend on the matrices alone, and the bits of a row with them.
    fn of(rows: usize, across: usize, steps: usize, processors: usize) -> Self {
        let tile_rows = if rows <= 128 { 128 } else { 256 };
        let down = rows.div_ceil(tile_rows);
        let splits = if rows <= MOST_SPLIT_ROWS {
            let most = (processors / across.max(1)).min(steps / LEAST_STEPS);
            1 << most.clamp(1, MOST_SPLITS).ilog2()
        } else {
            1
        };
        let sharers = if splits == 1 && tile_rows == 256 {
            2
        } else {
            1
        };
        let tiles = across.div_ceil(sharers) * down;
        let clusters = if splits == 1 {
            tiles.min((processors / sharers).max(1))
        } else {
            tiles
        };
        Self {
            tile_rows,
            splits,
            sharers,
            clusters,
        }
    }

    /// As in the CUDA source.
    fn shared_bytes(&self) -> usize {
        let stages = if self.tile_rows == 256 { 4 } else { 6 };
        let tiles = stages * (self.tile_rows + TILE_COLUMNS) * DEPTH;
        let results = if self.splits == 1 {
            8 * 16 * (64 + 8) * 2
        } else {
            0
        };
        let columns = 2 * 2 * TILE_COLUMNS * size_of::<f32>();
        tiles + results + columns + 2 * stages * size_of::<u64>()
    }
}

/// Whether matrices of the device's are multiplied with rows of FP8.
pub fn multiplies(device: &CudaDevice) -> Result<bool> {
    Ok(capability(device)? == HOPPER)
}

/// `None` where the matrices, the rows or the device ask for another way. `x` is [rows, in].
pub(super) fn product(
    x: &Tensor,
    matrices: &[BlockFactor<'_>],
    gated: bool,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let (rows, inputs) = x.dims2()?;
    let Some(scaling) = common_scaling(matrices) else {
        return Ok(None);
    };
    let dtype = x.dtype();
    let sound = |factor: &BlockFactor<'_>| {
        let bias = factor.bias;
        factor.blocks.inputs() == inputs
            && factor.blocks.outputs().is_multiple_of(8)
            && factor.blocks.outputs() > 0
            && bias.is_none_or(|bias| bias.is_contiguous() && bias.dtype() == dtype)
    };
    let fits = rows >= LEAST_ROWS
        && matches!(dtype, DType::F16 | DType::BF16)
        && inputs <= MOST_INPUTS
        && x.is_contiguous()
        && residual.is_none_or(|one| one.is_contiguous() && one.dtype() == dtype)
        && matrices.len() <= MOST_MATRICES
        && matrices.iter().all(sound);
    let device = device_of(x)?;
    if !fits || !multiplies(&device)? {
        return Ok(None);
    }
    let mut parameters = Parameters {
        rows: small(rows)?,
        depth: small(inputs / DEPTH)?,
        residual: residual.map(address).transpose()?.unwrap_or(0),
        ..Parameters::default()
    };
    let wide = if gated { HALF_TILE } else { TILE_COLUMNS };
    let (mut end, mut across) = (0, 0);
    for (at, factor) in matrices.iter().enumerate() {
        parameters.weights[at] = address(factor.blocks.bytes())?;
        parameters.biases[at] = factor.bias.map(address).transpose()?.unwrap_or(0);
        if at == 0 || !gated {
            end += factor.blocks.outputs();
            across += factor.blocks.outputs().div_ceil(wide);
        }
        parameters.ends[at] = small(end)?;
        parameters.tiles[at] = small(across)?;
    }
    parameters.ends[matrices.len()..].fill(small(end)?);
    parameters.tiles[matrices.len()..].fill(small(across)?);
    parameters.outputs = small(end)?;
    let from = address(x)?;
    let addresses = [from, parameters.residual];
    let aligned = |at: &u64| at.is_multiple_of(ALIGNMENT);
    if !addresses.iter().chain(&parameters.weights).all(aligned) {
        return Ok(None);
    }
    let (codes, scales) = rounded(&device, x, scaling, &mut parameters)?;
    let (out, to) = result(&device, (rows, end), dtype)?;
    parameters.out = to;
    let is_there = matrices
        .iter()
        .all(|factor| is_older(factor.blocks.bytes()));
    let cut = Cut {
        across,
        gated,
        scaling,
        activation,
        is_there,
    };
    launch(&device, dtype, &codes, matrices, &parameters, &cut)?;
    drop(scales);
    Ok(Some(out))
}

fn common_scaling(matrices: &[BlockFactor<'_>]) -> Option<Scaling> {
    let scaling = matrices.first()?.blocks.fp8_scaling()?;
    let alike = |factor: &BlockFactor<'_>| factor.blocks.fp8_scaling() == Some(scaling);
    matrices.iter().all(alike).then_some(scaling)
}

/// Rows as codes, [rows, in], and their scales.
fn rounded(
    device: &CudaDevice,
    x: &Tensor,
    scaling: Scaling,
    parameters: &mut Parameters,
) -> Result<(Tensor, Tensor)> {
    let (rows, inputs) = x.dims2()?;
    let per_group = scaling == Scaling::Squares;
    let (codes, to) = result(device, (rows, inputs), DType::U8)?;
    let count = if per_group {
        inputs / DEPTH * rows
    } else {
        rows
    };
    let (scales, scales_to) = result(device, count, DType::F32)?;
    parameters.scales = scales_to;
    parameters.pitch = small(rows)?;
    let row_parameters = RowParameters {
        x: address(x)?,
        out: to,
        scales: scales_to,
        pitch: parameters.pitch,
    };
    let definitions = [("COLUMNS", inputs), ("PER_GROUP", usize::from(per_group))];
    let function = function(device, FP8_ROWS, "fp8_rows", x.dtype(), &definitions, 0)?;
    let grid = LaunchConfig {
        grid_dim: (small(rows)?, 1, 1),
        block_dim: (ROW_THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    let arguments = [argument(&row_parameters)];
    // SAFETY: the argument is the kernel's, and its addresses are of tensors of the shapes it says; it reads nothing ahead.
    unsafe { launch_early(device, &function, grid, &arguments, true) }?;
    Ok((codes, scales))
}

/// What a launch is made for.
struct Cut {
    /// Tiles side by side.
    across: usize,
    gated: bool,
    scaling: Scaling,
    activation: Activation,
    is_there: bool,
}

fn launch(
    device: &CudaDevice,
    dtype: DType,
    codes: &Tensor,
    matrices: &[BlockFactor<'_>],
    parameters: &Parameters,
    cut: &Cut,
) -> Result<()> {
    let (rows, inputs) = codes.dims2()?;
    let processors = attribute(
        device,
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    )? as usize;
    let plan = Plan::of(rows, cut.across, inputs / DEPTH, processors);
    let tile_rows = plan.tile_rows / plan.sharers;
    let x_map = TensorMap::new(
        address(codes)?,
        DType::U8,
        (rows, inputs),
        inputs,
        tile_rows,
    )?;
    let last = matrices.len() - 1;
    let map = |at: usize| -> Result<TensorMap> {
        let at = at.min(last);
        let outputs = matrices[at].blocks.outputs();
        let from = parameters.weights[at] + SCALE_BYTES as u64;
        let used = (UNIT - SCALE_BYTES, UNIT);
        TensorMap::of_units(from, (outputs, inputs / used.0), used, HALF_TILE)
    };
    let maps = [map(0)?, map(1)?, map(2)?];
    let definitions = [
        ("TILE_ROWS", plan.tile_rows),
        ("GATED", usize::from(cut.gated)),
        ("SPLITS", plan.splits),
        ("SHARERS", plan.sharers),
        ("PER_GROUP", usize::from(cut.scaling == Scaling::Squares)),
        ("ACTIVATION", cut.activation.number() as usize),
    ];
    let shared = small(plan.shared_bytes())?;
    let name = "fp8_product";
    let function = function(device, FP8_PRODUCT, name, dtype, &definitions, shared)?;
    let grid = LaunchConfig {
        grid_dim: (small(plan.clusters * plan.splits * plan.sharers)?, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: shared,
    };
    let arguments = [
        argument(&x_map),
        argument(&maps[0]),
        argument(&maps[1]),
        argument(&maps[2]),
        argument(parameters),
    ];
    // SAFETY: the arguments are the kernel's, and its addresses are of tensors of the shapes it says, which live until
    // after the launch; matrices are all that it reads ahead.
    unsafe { launch_early(device, &function, grid, &arguments, cut.is_there) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_fill_the_processors_and_do_not_depend_on_rows() {
        for (across, steps, splits) in [
            (32, 32, 4),
            (32, 112, 4),
            (48, 32, 2),
            (224, 32, 1),
            (4, 8, 2),
        ] {
            for rows in [17, 64, 128, 129, 256] {
                let plan = Plan::of(rows, across, steps, 132);
                assert_eq!(plan.splits, splits);
                assert_eq!(plan.tile_rows, if rows <= 128 { 128 } else { 256 });
                assert!(plan.clusters * plan.splits * plan.sharers <= 132);
                // Sums of a tile fit where its factors were, and all of it into a processor.
                assert!(plan.tile_rows * (TILE_COLUMNS + 8) * 4 <= 6 * 256 * DEPTH);
                assert!(plan.shared_bytes() <= 227 << 10);
            }
        }
        let long = Plan::of(2048, 48, 32, 132);
        assert_eq!((long.splits, long.sharers, long.clusters), (1, 2, 66));
        assert_eq!(Plan::of(300, 7, 32, 132).clusters, 8);
    }
}
