//! A few rows times one to three matrices, by our own kernel: the shape of decoding.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{Result, Tensor};

use super::compile::{function, PRODUCT};
use super::device::{address, device_of, result, ALIGNMENT};
use super::launch::{argument, launch_early};
use super::parameters::small;
use super::recording::is_older;
use super::Activation;
use crate::matrix::Matrix;

/// Beyond this many rows the library's matrix product is faster.
pub const MOST_ROWS: usize = 2;
pub const MOST_MATRICES: usize = 3;

/// Warps of a block, and elements of a row for which one is enough: longer rows are shared by several.
pub(super) const WARPS: usize = 8;
pub(super) const WARP_INPUTS: usize = 1024;

/// As `Product` in the CUDA source.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Parameters {
    pub x: u64,
    pub out: u64,
    pub weights: [u64; MOST_MATRICES],
    pub biases: [u64; MOST_MATRICES],
    pub residual: u64,
    pub ends: [u32; MOST_MATRICES],
    pub outputs: u32,
    pub width: u32,
    pub inputs: u32,
    pub rows: u32,
    pub activation: u32,
    pub leads: u32,
    pub follows: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

pub enum Outcome {
    /// The matrices' outputs side by side, activated.
    Joined,
    /// activation(first) · second, of two matrices of one shape.
    Gated,
}

/// `None` where the shapes or layouts ask for another way. `x` is [rows, in].
pub fn product(
    x: &Tensor,
    matrices: &[Matrix<'_>],
    outcome: Outcome,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let (rows, inputs) = x.dims2()?;
    let gated = matches!(outcome, Outcome::Gated);
    let fits = rows > 0
        && rows <= MOST_ROWS
        && inputs > 0
        && inputs % 8 == 0
        && x.is_contiguous()
        && residual.is_none_or(Tensor::is_contiguous)
        && matrices.len() <= MOST_MATRICES
        && matrices.iter().all(|matrix| sound(matrix, x));
    if !fits {
        return Ok(None);
    }
    let mut parameters = Parameters {
        x: address(x)?,
        inputs: small(inputs)?,
        rows: rows as u32,
        activation: activation.number(),
        residual: residual.map(address).transpose()?.unwrap_or(0),
        ..Parameters::default()
    };
    let mut end = 0;
    for (i, matrix) in matrices.iter().enumerate() {
        parameters.weights[i] = address(matrix.weight)?;
        parameters.biases[i] = matrix.bias.map(address).transpose()?.unwrap_or(0);
        end += matrix.weight.dim(0)?;
        parameters.ends[i] = small(end)?;
    }
    parameters.ends[matrices.len()..].fill(u32::MAX);
    let outputs = if gated { end / 2 } else { end };
    let aligned = parameters.weights.iter().all(|at| at % ALIGNMENT == 0);
    if !aligned || !parameters.x.is_multiple_of(ALIGNMENT) || outputs == 0 {
        return Ok(None);
    }
    parameters.outputs = small(outputs)?;
    parameters.width = parameters.outputs;
    let device = device_of(x)?;
    let (out, to) = result(&device, (rows, outputs), x.dtype())?;
    parameters.out = to;
    let sharers = 1 << (inputs / WARP_INPUTS).clamp(1, WARPS).ilog2();
    let definitions = [
        ("ROWS", rows.next_power_of_two()),
        ("GATED", usize::from(gated)),
        ("SHARERS", sharers),
    ];
    let function = function(&device, PRODUCT, "product", x.dtype(), &definitions, 0)?;
    let grid = LaunchConfig {
        grid_dim: (small(outputs.div_ceil(WARPS / sharers))?, 1, 1),
        block_dim: ((WARPS * 32) as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    let is_there = matrices.iter().all(|matrix| is_older(matrix.weight));
    // SAFETY: the argument is the kernel's, and its addresses are of tensors of the shapes it says; weights are all that
    // it reads ahead.
    unsafe { launch_early(&device, &function, grid, &[argument(&parameters)], is_there) }?;
    Ok(Some(out))
}

fn sound(matrix: &Matrix<'_>, x: &Tensor) -> bool {
    matrix.weight.is_contiguous()
        && matrix.weight.dtype() == x.dtype()
        && matrix
            .bias
            .is_none_or(|bias| bias.is_contiguous() && bias.dtype() == x.dtype())
}
