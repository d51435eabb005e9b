//! Quantized blocks on CUDA: a few rows times one to three matrices of them, and their expansion.

use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaDevice, DType, Result, Tensor};

use super::block_panels;
use super::compile::{attribute, capability, function, Source, BLOCKS, BLOCK_STREAMS, BLOCK_TILES};
use super::device::{address, device_of, result, ALIGNMENT};
use super::launch::{argument, launch_early};
use super::product::{Outcome, Parameters, MOST_MATRICES};
use super::recording::is_older;
use super::small;
use crate::blocks::{BlockFactor, DeviceBlocks};
use crate::fp8;
use crate::matrix::{Epilogue, Matrix};
use crate::Activation;
use base::quant::{BlockType, GroupForm, Rounding};

/// Beyond this many rows a product with the expanded matrix is faster: without tensor cores, and on them.
const MOST_ROWS: usize = 8;
const MOST_PANEL_ROWS: usize = 128;
/// Up to so many rows tiles are faster than panels.
const MOST_TILE_ROWS: usize = 16;
/// Rows of a tile, and the outputs of a thread block on tensor cores.
const TILE_ROWS: usize = 8;
pub(super) const TILE_OUTPUTS: usize = 16;
/// The most rows that are multiplied while blocks are streamed.
const STREAM_ROWS: usize = 2;
/// Whose tensor cores and conversions the tiles use.
pub(super) const TILE_CAPABILITY: i32 = 80;
/// Warps of a block, one output each.
const WARPS: usize = 8;
/// Elements that a thread expands at a time.
const PART: usize = 32;
/// A matrix is expanded by parts of at most so many elements.
const EXPANDED: usize = 1 << 27;
/// More blocks than this go on with what is left.
const MOST_BLOCKS: usize = 1 << 16;

/// As `Expansion` in the CUDA source.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct ExpansionParameters {
    blocks: u64,
    chosen: u64,
    out: u64,
    rows: u32,
    columns: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for ExpansionParameters {}

pub(super) fn definitions(
    (kind, inputs): (BlockType, usize),
    rows: usize,
    gated: bool,
) -> [(&'static str, usize); 6] {
    let number = BlockType::every().position(|one| one == kind);
    [
        ("KIND", number.unwrap_or(usize::MAX)),
        ("BLOCK_BYTES", kind.bytes()),
        ("BLOCK_ELEMENTS", kind.elements()),
        ("ROWS", rows),
        ("GATED", usize::from(gated)),
        (
            "SCALES_FIRST",
            usize::from(fp8::has_scales_first(kind, inputs)),
        ),
    ]
}

/// `None` where the rows are too many. `x` is [rows, in].
pub fn product(
    x: &Tensor,
    matrices: &[BlockFactor<'_>],
    outcome: Outcome,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let (rows, inputs) = x.dims2()?;
    let gated = matches!(outcome, Outcome::Gated);
    if let Some(out) = super::fp8::product(x, matrices, gated, activation, residual)? {
        return Ok(Some(out));
    }
    let one_kind = matrices
        .iter()
        .all(|factor| factor.blocks.kind() == matrices[0].blocks.kind());
    let sound = |factor: &BlockFactor<'_>| {
        let bias = factor.bias;
        factor.blocks.inputs() == inputs
            && bias.is_none_or(|bias| bias.is_contiguous() && bias.dtype() == x.dtype())
    };
    let device = device_of(x)?;
    let in_panels = matrices
        .iter()
        .map(|factor| block_panels::takes(&device, x.dtype(), factor.blocks))
        .collect::<Result<Vec<_>>>()?;
    let in_panels = in_panels.into_iter().all(|takes| takes);
    let most_rows = if in_panels {
        MOST_PANEL_ROWS
    } else {
        MOST_ROWS
    };
    let fits = (1..=most_rows).contains(&rows)
        && inputs > 0
        && x.is_contiguous()
        && residual.is_none_or(Tensor::is_contiguous)
        && !matrices.is_empty()
        && matrices.len() <= MOST_MATRICES
        && matrices.iter().all(sound)
        && (one_kind || !gated);
    let all: usize = matrices.iter().map(|factor| factor.blocks.outputs()).sum();
    let width = if gated { all / 2 } else { all };
    let from = address(x)?;
    if !fits || width == 0 || from % ALIGNMENT != 0 {
        return Ok(None);
    }
    let (out, to) = result(&device, (rows, width), x.dtype())?;
    let mut first = 0;
    let mut streamed = false;
    for group in matrices.chunk_by(|a, b| a.blocks.kind() == b.blocks.kind()) {
        let skipped = (first * x.dtype().size_in_bytes()) as u64;
        let mut parameters = Parameters {
            x: from,
            out: to + skipped,
            width: small(width)?,
            inputs: small(inputs)?,
            rows: rows as u32,
            activation: activation.number(),
            residual: match residual {
                Some(residual) => address(residual)? + skipped,
                None => 0,
            },
            ..Parameters::default()
        };
        let mut end = 0;
        for (i, factor) in group.iter().enumerate() {
            parameters.weights[i] = address(factor.blocks.bytes())?;
            parameters.biases[i] = factor.bias.map(address).transpose()?.unwrap_or(0);
            end += factor.blocks.outputs();
            parameters.ends[i] = small(end)?;
        }
        parameters.ends[group.len()..].fill(u32::MAX);
        parameters.outputs = small(if gated { end / 2 } else { end })?;
        first += end;
        parameters.leads = u32::from(first < all);
        parameters.follows = u32::from(streamed);
        if parameters.outputs > 0 {
            streamed = launch_product(&device, x.dtype(), group, gated, in_panels, &parameters)?;
        }
    }
    Ok(Some(out))
}

/// One kind of blocks; whether they are streamed.
fn launch_product(
    device: &CudaDevice,
    dtype: DType,
    matrices: &[BlockFactor<'_>],
    gated: bool,
    in_panels: bool,
    parameters: &Parameters,
) -> Result<bool> {
    let on_cores = dtype != DType::F32 && capability(device)? >= TILE_CAPABILITY;
    if on_cores && stream(device, dtype, matrices, gated, parameters)? {
        return Ok(true);
    }
    let kind = matrices[0].blocks.kind();
    let (rows, outputs) = (parameters.rows as usize, parameters.outputs as usize);
    let tiles = on_cores && has_tiles(kind) && rows <= MOST_TILE_ROWS;
    if in_panels && !tiles && rows > 1 {
        block_panels::launch(device, dtype, matrices, gated, parameters)?;
        return Ok(false);
    }
    let (source, kernel, together, grid) = if tiles {
        (
            BLOCK_TILES,
            "tiles_of_blocks",
            rows.max(TILE_ROWS).next_power_of_two(),
            outputs.div_ceil(TILE_OUTPUTS),
        )
    } else {
        (
            BLOCKS,
            "product_of_blocks",
            rows.next_power_of_two(),
            outputs.div_ceil(WARPS),
        )
    };
    let definitions = definitions((kind, parameters.inputs as usize), together, gated);
    let kernel = (source, kernel);
    launch(device, kernel, dtype, &definitions, grid, parameters)?;
    Ok(false)
}

/// One or two rows, as fast as blocks can be read. False where the shapes or the kind ask for another way.
fn stream(
    device: &CudaDevice,
    dtype: DType,
    matrices: &[BlockFactor<'_>],
    gated: bool,
    parameters: &Parameters,
) -> Result<bool> {
    let kind = matrices[0].blocks.kind();
    let Some(streamed) = Streamed::of(kind, dtype) else {
        return Ok(false);
    };
    let (rows, inputs) = (parameters.rows as usize, parameters.inputs as usize);
    let together = if gated {
        TILE_OUTPUTS / 2
    } else {
        TILE_OUTPUTS
    };
    // Blocks whose size is not a multiple of 16 bytes are read from where rows begin with a word.
    let (alignment, inputs_alignment) = match streamed.bytes as u64 % ALIGNMENT {
        0 => (ALIGNMENT, STREAM_ELEMENTS),
        _ => (4, 2 * STREAM_ELEMENTS),
    };
    let starts = &parameters.weights[..matrices.len()];
    let fits = rows <= STREAM_ROWS
        && inputs.is_multiple_of(inputs_alignment)
        && starts.iter().all(|at| at % alignment == 0)
        && matrices
            .iter()
            .all(|factor| factor.blocks.outputs().is_multiple_of(together));
    let shared = streamed.shared_bytes(rows, inputs);
    let most = attribute(
        device,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    )?;
    if !fits || shared > most as usize {
        return Ok(false);
    }
    let definitions = definitions((kind, inputs), rows, gated).map(|(name, value)| match name {
        "BLOCK_BYTES" => (name, streamed.bytes),
        _ => (name, value),
    });
    let (source, kernel) = (BLOCK_STREAMS, "stream_of_blocks");
    let function = function(device, source, kernel, dtype, &definitions, most as u32)?;
    let threads = (WARPS * 32) as u32;
    let resident = function
        .occupancy_max_active_blocks_per_multiprocessor(threads, shared, None)
        .w()?;
    let processors = attribute(
        device,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    )?;
    // As many thread blocks as run at once, or fewer that have equally much to do.
    let tiles = parameters.outputs as usize / together;
    let most_blocks = (resident as usize * processors as usize).max(1);
    let grid = tiles.div_ceil(tiles.div_ceil(most_blocks));
    let grid = LaunchConfig {
        grid_dim: (small(grid)?, 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: shared as u32,
    };
    let is_there = matrices
        .iter()
        .all(|factor| is_older(factor.blocks.bytes()));
    // SAFETY: the argument is the kernel's; its addresses are of tensors of the shapes it says, which live
    // until after the launch; blocks are all that it reads ahead.
    unsafe { launch_early(device, &function, grid, &[argument(parameters)], is_there) }?;
    Ok(true)
}

/// How `stream_of_blocks` takes a kind of blocks: 256 elements at a time.
struct Streamed {
    bytes: usize,
    /// From one row to the next in shared memory.
    pitch: usize,
    /// That have a scale each.
    runs: usize,
    /// Whether levels are looked up in a table in shared memory.
    looked_up: bool,
}

const STREAM_ELEMENTS: usize = 256;
/// Of a table of the levels of two codes, which every lane of a warp has for itself.
const PAIRS_BYTES: usize = 256 * 32 * size_of::<u32>();

impl Streamed {
    /// Of what `dtype` is multiplied with. Weights that were rounded to bf16 gave sums beyond the limit with rows in f16.
    fn of(kind: BlockType, dtype: DType) -> Option<Self> {
        if let Some(form) = GroupForm::of(kind) {
            if form.rounding == Rounding::Bf16 && dtype == DType::F16 {
                return None;
            }
            let groups = STREAM_ELEMENTS / kind.elements();
            let bytes = groups * kind.bytes();
            return Some(Self {
                bytes,
                pitch: bytes,
                runs: groups * form.scales(),
                looked_up: form.bits == 4 && !form.has_minimum,
            });
        }
        has_tiles(kind).then(|| Self {
            bytes: kind.bytes(),
            pitch: if kind == BlockType::Q6K {
                240
            } else {
                kind.bytes()
            },
            runs: if kind == BlockType::Q6K { 16 } else { 8 },
            looked_up: false,
        })
    }

    /// What a thread block shares: two stages for each warp, the parts of as many tiles' sums as there are warps, zeros,
    /// the levels where they are looked up, and x with the sums of its runs.
    fn shared_bytes(&self, rows: usize, inputs: usize) -> usize {
        let parts = WARPS * WARPS * rows * TILE_OUTPUTS * size_of::<f32>();
        let levels = if self.looked_up { PAIRS_BYTES } else { 0 };
        let block = STREAM_ELEMENTS * size_of::<u16>() + self.runs * size_of::<f32>();
        let blocks = rows * (inputs / STREAM_ELEMENTS);
        2 * WARPS * TILE_OUTPUTS * self.pitch + parts + 128 + levels + blocks * block
    }
}

/// Whether there is a kernel on tensor cores for rows of half types: the large blocks that most files are made of.
pub(super) fn has_tiles(kind: BlockType) -> bool {
    matches!(kind, BlockType::Q4K | BlockType::Q5K | BlockType::Q6K)
}

/// activation(x · gateᵀ) · (x · upᵀ); `None` where it takes more than one launch.
pub fn multiply_gated(
    x: &Tensor,
    factors: &[BlockFactor<'_>],
    activation: Activation,
) -> crate::Result<Option<Tensor>> {
    let x = x.contiguous()?;
    let gated = |pair: &[BlockFactor<'_>; 2]| -> crate::Result<Option<Tensor>> {
        if pair[0].blocks.outputs() == pair[1].blocks.outputs() {
            Ok(product(&x, pair, Outcome::Gated, activation, None)?)
        } else {
            Ok(None)
        }
    };
    match factors {
        &[gate, up] => gated(&[gate, up]),
        [both] => {
            let (parts, biases) = both.halves()?;
            let factor = |at: usize| BlockFactor {
                blocks: &parts[at],
                bias: biases[at].as_ref(),
            };
            gated(&[factor(0), factor(1)])
        }
        _ => Ok(None),
    }
}

/// x · matrixᵀ + bias + residual, of any number of rows; nothing is empty.
pub fn multiply(
    matrix: &DeviceBlocks,
    x: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> crate::Result<Tensor> {
    let x = x.contiguous()?;
    let residual = residual.map(Tensor::contiguous).transpose()?;
    let residual = residual.as_ref();
    let factor = BlockFactor {
        blocks: matrix,
        bias,
    };
    let none = Activation::Identity;
    if let Some(out) = product(&x, &[factor], Outcome::Joined, none, residual)? {
        return Ok(out);
    }
    // Joining parts and adding the residual take memory by themselves, which a recording must not: its graph would own
    // that memory, and give it back while launches that began early still use it.
    if super::recording::device().is_some() {
        let message = "products with expanded blocks can't be recorded";
        return Err(candle_core::Error::Msg(message.into()).into());
    }
    let (whole, outputs) = ((EXPANDED / matrix.inputs()).max(1), matrix.outputs());
    let mut parts = Vec::with_capacity(outputs.div_ceil(whole));
    for first in (0..outputs).step_by(whole) {
        let count = whole.min(outputs - first);
        let weight = expand(&matrix.part(first, count)?, None, x.dtype())?;
        let bias = bias.map(|bias| bias.narrow(0, first, count)).transpose()?;
        let part = Matrix {
            weight: &weight,
            bias: bias.as_ref(),
        };
        parts.push(
            match super::matrix::multiply(&x, &part, &Epilogue::default())? {
                Some(product) => product,
                None => match &bias {
                    Some(bias) => x.matmul(&weight.t()?)?.broadcast_add(bias)?,
                    None => x.matmul(&weight.t()?)?,
                },
            },
        );
    }
    let product = match &parts[..] {
        [one] => one.clone(),
        _ => Tensor::cat(&parts, 1)?,
    };
    match residual {
        Some(residual) => Ok((product + residual)?),
        None => Ok(product),
    }
}

/// Rows of a matrix, [rows, in]: those given, u32 [rows], which must be within it, or all.
pub fn expand(blocks: &DeviceBlocks, chosen: Option<&Tensor>, dtype: DType) -> Result<Tensor> {
    let device = device_of(blocks.bytes())?;
    let (rows, columns) = (
        chosen.map_or(blocks.outputs(), Tensor::elem_count),
        blocks.inputs(),
    );
    let (out, to) = result(&device, (rows, columns), dtype)?;
    let parts = rows * (columns / PART);
    if parts == 0 {
        return Ok(out);
    }
    let parameters = ExpansionParameters {
        blocks: address(blocks.bytes())?,
        chosen: chosen.map(address).transpose()?.unwrap_or(0),
        out: to,
        rows: small(rows)?,
        columns: small(columns)?,
    };
    let definitions = definitions((blocks.kind(), blocks.inputs()), 1, false);
    let grid = parts.div_ceil(32 * WARPS).min(MOST_BLOCKS);
    let kernel = (BLOCKS, "expand_blocks");
    launch(&device, kernel, dtype, &definitions, grid, &parameters)?;
    Ok(out)
}

fn launch<P: DeviceRepr>(
    device: &CudaDevice,
    (source, kernel): (Source, &str),
    dtype: DType,
    definitions: &[(&str, usize)],
    grid: usize,
    parameters: &P,
) -> Result<()> {
    let function = function(device, source, kernel, dtype, definitions, 0)?;
    let grid = LaunchConfig {
        grid_dim: (small(grid)?, 1, 1),
        block_dim: ((WARPS * 32) as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the argument is the kernel's; its addresses are of tensors of the shapes it says, which live
    // until after the launch; it reads nothing ahead.
    unsafe { launch_early(device, &function, grid, &[argument(parameters)], true) }
}
