//! Launches what chooses experts, their products and the sums of these.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{CudaDevice, DType, Device, Result, Tensor};

use super::blocks::definitions;
use super::compile::{function, BLOCKS, EXPERTS, PRODUCT};
use super::device::{address, device_of, keep, result, ALIGNMENT};
use super::launch::{argument, launch_early};
use super::parameters::small;
use super::product::{Parameters, MOST_MATRICES, WARPS, WARP_INPUTS};
use super::{Activation, ELEMENT_THREADS};
use crate::experts::{ExpertMatrix, RouteScores, Router, Routes, SharedResult};
use base::quant::BlockType;

/// Addresses of an expert in the table.
const ADDRESSES: usize = 2 * MOST_MATRICES;
const LANES: u32 = 32;
/// Choices of an expert that read its matrices together.
const TILE_ROWS: usize = 4;
/// With fewer choices than this for each expert, tiles are slower than single rows: they hold one or two.
const CHOICES_FOR_TILES: usize = 2;

/// As `Route` in the CUDA source.
#[derive(Clone, Copy)]
#[repr(C)]
struct RouteParameters {
    logits: u64,
    bias: u64,
    scales: u64,
    chosen: u64,
    weights: u64,
    experts: u32,
    used: u32,
    scores: u32,
    normalize: u32,
    groups: u32,
    groups_used: u32,
    best_of: u32,
    left_out: f32,
    soft_cap: f32,
    scale: f32,
    least_total: f32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for RouteParameters {}

/// As `Choices` in the CUDA source.
#[derive(Clone, Copy)]
#[repr(C)]
struct ChoiceParameters {
    table: u64,
    chosen: u64,
    order: u64,
    tiles: u64,
    per_row: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for ChoiceParameters {}

/// As `Combine` in the CUDA source.
#[derive(Clone, Copy)]
#[repr(C)]
struct CombineParameters {
    given: u64,
    weights: u64,
    shared: u64,
    gates: u64,
    out: u64,
    used: u32,
    columns: u32,
    rows: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for CombineParameters {}

fn optional(tensor: Option<&Tensor>) -> Result<u64> {
    Ok(tensor.map(address).transpose()?.unwrap_or(0))
}

/// As [`Router::route`].
pub fn route(router: &Router, logits: &Tensor) -> Result<Routes> {
    let rule = &router.rule;
    let logits = logits.contiguous()?;
    let (rows, experts) = logits.dims2()?;
    if experts != rule.experts || rows == 0 {
        candle_core::bail!("{rows} rows of logits for {experts} experts");
    }
    let device = device_of(&logits)?;
    let pairs = rows * rule.used;
    let (chosen, chosen_at) = result(&device, pairs, DType::U32)?;
    let (weights, weights_at) = result(&device, pairs, DType::F32)?;
    let groups = rule.groups.as_ref();
    let parameters = RouteParameters {
        logits: address(&logits)?,
        bias: optional(router.bias.as_ref())?,
        scales: optional(router.scales.as_ref())?,
        chosen: chosen_at,
        weights: weights_at,
        experts: small(experts)?,
        used: small(rule.used)?,
        scores: match rule.scores {
            RouteScores::Softmax => 0,
            RouteScores::Sigmoid => 1,
            RouteScores::SigmoidOfChosen => 2,
        },
        normalize: u32::from(rule.least_total.is_some()),
        groups: small(groups.map_or(0, |groups| groups.count))?,
        groups_used: small(groups.map_or(0, |groups| groups.used))?,
        best_of: small(groups.map_or(0, |groups| groups.best_of))?,
        left_out: groups.map_or(0.0, |groups| groups.left_out),
        soft_cap: rule.soft_cap.unwrap_or(0.0),
        scale: rule.scale,
        least_total: rule.least_total.unwrap_or(0.0),
    };
    let shared = experts * 12 + groups.map_or(0, |groups| groups.count) * 4;
    let kernel = function(
        &device,
        EXPERTS,
        "route",
        logits.dtype(),
        &[],
        small(shared)?,
    )?;
    let grid = LaunchConfig {
        grid_dim: (small(rows)?, 1, 1),
        block_dim: (LANES, 1, 1),
        shared_mem_bytes: small(shared)?,
    };
    // SAFETY: the argument is the kernel's, its addresses are of tensors of the shapes it says, and nothing is read
    // ahead.
    unsafe { launch_early(&device, &kernel, grid, &[argument(&parameters)], true) }?;
    let (order, tiles) = match rows {
        1 => (None, None),
        _ => {
            let (order, tiles) = sorted(&device, (&chosen, logits.dtype()), experts)?;
            (Some(order), tiles)
        }
    };
    Ok(Routes {
        chosen,
        weights,
        order,
        tiles,
        used: rule.used,
    })
}

/// The choices of one expert after those of another, and tiles of them where an expert has several.
fn sorted(
    device: &CudaDevice,
    (chosen, dtype): (&Tensor, DType),
    experts: usize,
) -> Result<(Tensor, Option<Tensor>)> {
    let pairs = chosen.elem_count();
    let (order, order_at) = result(device, pairs, DType::U32)?;
    let most_tiles = pairs.min(experts + pairs / TILE_ROWS);
    let tiles = if pairs >= CHOICES_FOR_TILES * experts {
        Some(result(device, (most_tiles, 2), DType::U32)?)
    } else {
        None
    };
    let tiles_at = tiles.as_ref().map_or(0, |(_, at)| *at);
    let kernel = function(device, EXPERTS, "order_choices", dtype, &[], 0)?;
    let (count, experts) = (small(pairs)?, small(experts)?);
    let (tile_rows, most_tiles) = (TILE_ROWS as u32, small(most_tiles)?);
    let chosen_at = address(chosen)?;
    let arguments = [
        argument(&chosen_at),
        argument(&order_at),
        argument(&tiles_at),
        argument(&count),
        argument(&experts),
        argument(&tile_rows),
        argument(&most_tiles),
    ];
    let grid = LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (ELEMENT_THREADS as u32, 1, 1),
        shared_mem_bytes: 4 * experts,
    };
    // SAFETY: the arguments are the kernel's; every choice is one of the experts, and nothing is read ahead.
    unsafe { launch_early(device, &kernel, grid, &arguments, true) }?;
    Ok((order, tiles.map(|(tiles, _)| tiles)))
}

/// What matrices are made of.
#[derive(Clone, Copy, PartialEq)]
enum Made {
    Numbers(DType),
    Blocks(BlockType),
}

/// The matrices of all experts: their addresses, and what lies there.
pub struct Matrices {
    table: Tensor,
    made: Made,
    inputs: usize,
    /// Of each matrix of an expert.
    widths: Vec<usize>,
    held: Vec<Tensor>,
}

struct Described {
    made: Made,
    inputs: usize,
    outputs: usize,
    weight: Tensor,
    bias: Option<Tensor>,
}

fn described(matrix: &ExpertMatrix<'_>) -> Result<Described> {
    Ok(match matrix {
        ExpertMatrix::Numbers(matrix) => {
            let (outputs, inputs) = matrix.weight.dims2()?;
            Described {
                made: Made::Numbers(matrix.weight.dtype()),
                inputs,
                outputs,
                weight: matrix.weight.clone(),
                bias: matrix.bias.cloned(),
            }
        }
        ExpertMatrix::Blocks(factor) => Described {
            made: Made::Blocks(factor.blocks.kind()),
            inputs: factor.blocks.inputs(),
            outputs: factor.blocks.outputs(),
            weight: factor.blocks.bytes().clone(),
            bias: factor.bias.cloned(),
        },
    })
}

impl Matrices {
    pub fn new(experts: &[Vec<ExpertMatrix<'_>>], device: &Device) -> Result<Option<Self>> {
        let (mut addresses, mut held) = (Vec::<u64>::new(), Vec::new());
        let mut shape: Option<(Made, usize, Vec<usize>)> = None;
        for expert in experts {
            let matrices = expert.iter().map(described);
            let matrices = matrices.collect::<Result<Vec<_>>>()?;
            let Some(first) = matrices.first() else {
                return Ok(None);
            };
            let own = (
                first.made,
                first.inputs,
                matrices.iter().map(|one| one.outputs).collect(),
            );
            let alike = |one: &Described| one.made == first.made && one.inputs == first.inputs;
            let same = shape.get_or_insert_with(|| own.clone()) == &own;
            if !same || !matrices.iter().all(alike) || matrices.len() > MOST_MATRICES {
                return Ok(None);
            }
            let mut of_expert = [0; ADDRESSES];
            for (at, matrix) in matrices.into_iter().enumerate() {
                let bias = matrix.bias.as_ref();
                if !matrix.weight.is_contiguous() || !bias.is_none_or(Tensor::is_contiguous) {
                    return Ok(None);
                }
                of_expert[at] = address(&matrix.weight)?;
                of_expert[MOST_MATRICES + at] = optional(bias)?;
                held.push(matrix.weight);
                held.extend(matrix.bias);
            }
            addresses.extend(of_expert);
        }
        let Some((made, inputs, widths)) = shape else {
            return Ok(None);
        };
        let weights = addresses
            .chunks(ADDRESSES)
            .flat_map(|of| &of[..MOST_MATRICES]);
        let is_aligned = weights.clone().all(|at| at % ALIGNMENT == 0);
        if matches!(made, Made::Numbers(_)) && !(is_aligned && inputs.is_multiple_of(8)) {
            return Ok(None);
        }
        let words: Vec<u32> = addresses
            .iter()
            .flat_map(|at| [*at as u32, (*at >> 32) as u32])
            .collect();
        let count = words.len();
        Ok(Some(Self {
            table: Tensor::from_vec(words, count, device)?,
            made,
            inputs,
            widths,
            held,
        }))
    }

    pub fn multiply(&self, x: &Tensor, routes: &Routes) -> Result<Tensor> {
        let x = x.contiguous()?;
        let (rows, inputs) = x.dims2()?;
        let pairs = routes.chosen.elem_count();
        let width: usize = self.widths.iter().sum();
        if inputs != self.inputs || rows == 0 || pairs % rows != 0 || pairs / rows > routes.used {
            candle_core::bail!("{rows} rows of {inputs} for {pairs} choices of experts");
        }
        let device = device_of(&x)?;
        // Recordings launch on addresses alone.
        self.held.iter().for_each(keep);
        let (out, to) = result(&device, (pairs, width), x.dtype())?;
        let mut parameters = Parameters {
            x: address(&x)?,
            out: to,
            inputs: small(inputs)?,
            outputs: small(width)?,
            width: small(width)?,
            rows: 1,
            activation: Activation::Identity.number(),
            ..Parameters::default()
        };
        if parameters.x % ALIGNMENT != 0 {
            candle_core::bail!("rows for experts are not aligned");
        }
        let mut end = 0;
        for (at, width) in self.widths.iter().enumerate() {
            end += width;
            parameters.ends[at] = small(end)?;
        }
        parameters.ends[self.widths.len()..].fill(u32::MAX);
        let choices = ChoiceParameters {
            table: address(&self.table)?,
            chosen: address(&routes.chosen)?,
            order: optional(routes.order.as_ref())?,
            tiles: optional(routes.tiles.as_ref())?,
            per_row: small(pairs / rows)?,
        };
        let (at_once, tiles) = match &routes.tiles {
            Some(tiles) => (TILE_ROWS, tiles.dim(0)?),
            None => (1, pairs),
        };
        let sharers = 1 << (inputs / WARP_INPUTS).clamp(1, WARPS).ilog2();
        let (function, together) = match self.made {
            Made::Numbers(dtype) if dtype == x.dtype() => {
                let definitions = [("ROWS", at_once), ("GATED", 0), ("SHARERS", sharers)];
                let kernel = "product_of_experts";
                (
                    function(&device, PRODUCT, kernel, dtype, &definitions, 0)?,
                    WARPS / sharers,
                )
            }
            Made::Numbers(dtype) => {
                candle_core::bail!("experts of {dtype:?} got rows of {:?}", x.dtype())
            }
            Made::Blocks(kind) => {
                let definitions = definitions(kind, at_once, false);
                let kernel = "experts_of_blocks";
                (
                    function(&device, BLOCKS, kernel, x.dtype(), &definitions, 0)?,
                    WARPS,
                )
            }
        };
        let grid = LaunchConfig {
            grid_dim: (small(width.div_ceil(together))?, small(tiles)?, 1),
            block_dim: (WARPS as u32 * LANES, 1, 1),
            shared_mem_bytes: 0,
        };
        let arguments = [argument(&parameters), argument(&choices)];
        // SAFETY: the arguments are the kernel's; the table's addresses are of matrices of these shapes, which `held`
        // keeps, and every choice is one of its experts; nothing is read ahead.
        unsafe { launch_early(&device, &function, grid, &arguments, true) }?;
        Ok(out)
    }
}

/// As [`Routes::combine`].
pub fn combine(
    routes: &Routes,
    given: &Tensor,
    shared: Option<SharedResult<'_>>,
) -> Result<Tensor> {
    let given = given.contiguous()?;
    let (pairs, columns) = given.dims2()?;
    let rows = pairs / routes.used;
    let device = device_of(&given)?;
    let shared = match shared {
        Some((shared, gates)) => Some((
            shared.contiguous()?,
            gates.map(Tensor::contiguous).transpose()?,
        )),
        None => None,
    };
    let fits = shared.as_ref().is_none_or(|(shared, gates)| {
        let counted = |tensor: &Tensor, count: usize| {
            tensor.elem_count() == count && tensor.dtype() == given.dtype()
        };
        counted(shared, rows * columns) && gates.as_ref().is_none_or(|gates| counted(gates, rows))
    });
    if !fits || pairs != routes.weights.elem_count() {
        candle_core::bail!("what experts give does not fit their choices");
    }
    let (out, to) = result(&device, (rows, columns), given.dtype())?;
    let gates = shared.as_ref().and_then(|(_, gates)| gates.as_ref());
    let parameters = CombineParameters {
        given: address(&given)?,
        weights: address(&routes.weights)?,
        shared: optional(shared.as_ref().map(|(shared, _)| shared))?,
        gates: optional(gates)?,
        out: to,
        used: small(routes.used)?,
        columns: small(columns)?,
        rows: small(rows)?,
    };
    let kernel = function(&device, EXPERTS, "combine", given.dtype(), &[], 0)?;
    let grid = LaunchConfig {
        grid_dim: (small(columns.div_ceil(ELEMENT_THREADS))?, small(rows)?, 1),
        block_dim: (ELEMENT_THREADS as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the argument is the kernel's, its addresses are of tensors of the shapes it says, and nothing is read
    // ahead.
    unsafe { launch_early(&device, &kernel, grid, &[argument(&parameters)], true) }?;
    Ok(out)
}
