//! Launches what stands around scans.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{DType, Result, Tensor};

use super::compile::{function, SCAN};
use super::device::{address, device_of, result};
use super::launch::{argument, launch_early};
use super::{small, ELEMENT_THREADS};
use crate::scan::launch::{GateParameters, UnitParameters, SIMD_WIDTH};
use crate::scan::{Decay, UnitHeads};

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for GateParameters {}
// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for UnitParameters {}

/// A kernel over the columns of rows, which reads these tensors and writes rows of so many numbers.
fn launch<P: DeviceRepr>(
    kernel: &str,
    read: &[&Tensor],
    outputs: usize,
    (blocks, threads): (usize, usize),
    parameters: P,
) -> Result<Tensor> {
    let (tokens, device) = (read[0].dim(0)?, device_of(read[0])?);
    let (out, to) = result(&device, (tokens, outputs), DType::F32)?;
    if tokens * outputs == 0 {
        return Ok(out);
    }
    let function = function(&device, SCAN, kernel, DType::F32, &[], 0)?;
    let read = read.iter().map(|tensor| address(tensor));
    let read = read.collect::<Result<Vec<u64>>>()?;
    let mut arguments: Vec<_> = read.iter().map(argument).collect();
    arguments.extend([argument(&to), argument(&parameters)]);
    let grid = LaunchConfig {
        grid_dim: (small(tokens)?, small(blocks)?, 1),
        block_dim: (threads as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the arguments are the kernel's, and rows lie within their tensors; nothing is read ahead.
    unsafe { launch_early(&device, &function, grid, &arguments, true) }?;
    Ok(out)
}

/// How much states keep; `numbers` are biases and rates.
pub fn decays(x: &Tensor, numbers: &Tensor, rule: Decay) -> Result<Tensor> {
    let width = x.dim(1)?;
    let parameters = GateParameters::new(width, rule)?;
    let grid = (width.div_ceil(ELEMENT_THREADS), ELEMENT_THREADS);
    launch("scan_decays", &[x, numbers], width, grid, parameters)
}

/// What recurrent units take and keep, given inputs and both gates; `numbers` are both biases, and rates.
pub fn open(rows: [&Tensor; 3], numbers: &Tensor, begins: &Tensor) -> Result<Tensor> {
    let width = rows[0].dim(1)?;
    let [given, input, fading] = rows;
    let rows = [
        given.contiguous()?,
        input.contiguous()?,
        fading.contiguous()?,
    ];
    let read = [&rows[0], &rows[1], &rows[2], numbers, begins];
    let parameters = GateParameters::new(width, Decay::Softplus)?;
    let grid = (width.div_ceil(ELEMENT_THREADS), ELEMENT_THREADS);
    launch("scan_open", &read, 2 * width, grid, parameters)
}

/// The first heads of rows divided by their lengths.
pub fn units(x: &Tensor, heads: UnitHeads) -> Result<Tensor> {
    let width = x.dim(1)?;
    let parameters = UnitParameters::new(width, heads)?;
    let grid = (width.div_ceil(heads.size), SIMD_WIDTH);
    launch("scan_units", &[x], width, grid, parameters)
}
