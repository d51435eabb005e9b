//! Launches what chooses experts, and the sums of what these give.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{CudaDevice, DType, Result, Tensor};

use super::compile::{function, EXPERTS};
use super::device::{address, device_of, result};
use super::launch::{argument, launch_early};
use super::parameters::small;
use super::ELEMENT_THREADS;
use crate::experts::{RouteScores, Router, Routes, SharedResult};

pub(super) const LANES: u32 = 32;

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

pub(super) fn optional(tensor: Option<&Tensor>) -> Result<u64> {
    Ok(tensor.map(address).transpose()?.unwrap_or(0))
}

/// As [`Router::route`].
pub fn route(router: &Router, logits: &Tensor, together: usize) -> Result<Routes> {
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
            let chosen = (&chosen, logits.dtype());
            let (order, tiles) = sorted(&device, chosen, experts, together)?;
            (Some(order), tiles)
        }
    };
    Ok(Routes {
        chosen,
        weights,
        order,
        tiles,
        together,
        used: rule.used,
    })
}

/// The choices of one expert after those of another, and tiles of at most so many of them, where it is more than one.
fn sorted(
    device: &CudaDevice,
    (chosen, dtype): (&Tensor, DType),
    experts: usize,
    together: usize,
) -> Result<(Tensor, Option<Tensor>)> {
    let pairs = chosen.elem_count();
    let (order, order_at) = result(device, pairs, DType::U32)?;
    let most_tiles = pairs.min(experts + pairs / together);
    let tiles = if together > 1 {
        Some(result(device, (most_tiles, 2), DType::U32)?)
    } else {
        None
    };
    let tiles_at = tiles.as_ref().map_or(0, |(_, at)| *at);
    let kernel = function(device, EXPERTS, "order_choices", dtype, &[], 0)?;
    let (count, experts) = (small(pairs)?, small(experts)?);
    let (tile_rows, most_tiles) = (small(together)?, small(most_tiles)?);
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
