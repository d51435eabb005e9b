//! The norm of parts of rows and its gate in one launch.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{DType, Result, Tensor};

use super::compile::{function, ROWS};
use super::device::{address, device_of, result};
use super::launch::{argument, launch_early};
use super::small;

/// As `GatedNorm` in the CUDA source.
#[derive(Clone, Copy)]
#[repr(C)]
struct Parameters {
    x: u64,
    gate: u64,
    weight: u64,
    out: u64,
    gate_row: u64,
    width: u32,
    part: u32,
    weights: u32,
    sigmoid: u32,
    norm_first: u32,
    epsilon: f32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

pub struct Launch<'a> {
    pub weight: &'a Tensor,
    pub part: usize,
    pub epsilon: f32,
    pub sigmoid: bool,
    pub norm_first: bool,
}

impl Launch<'_> {
    /// As `forward` of the type for all devices.
    pub fn forward(&self, x: &Tensor, gate: &Tensor, dtype: DType) -> Result<Tensor> {
        let (tokens, width) = x.dims2()?;
        let weights = self.weight.dims1()?;
        let fits = gate.dims() == [tokens, width]
            && x.dtype() == DType::F32
            && x.is_contiguous()
            && (width <= 1 || gate.stride()[1] == 1)
            && width.is_multiple_of(self.part)
            && (weights == self.part || weights == width);
        if !fits {
            candle_core::bail!(
                "a gate of {:?} and {weights} weights for parts of {} of {:?}",
                gate.dims(),
                self.part,
                x.dims()
            );
        }
        let device = device_of(x)?;
        let (out, to) = result(&device, (tokens, width), dtype)?;
        if tokens * width == 0 {
            return Ok(out);
        }
        let parameters = Parameters {
            x: address(x)?,
            gate: address(gate)?,
            weight: address(self.weight)?,
            out: to,
            gate_row: gate.stride()[0] as u64,
            width: small(width)?,
            part: small(self.part)?,
            weights: small(weights)?,
            sigmoid: self.sigmoid.into(),
            norm_first: self.norm_first.into(),
            epsilon: self.epsilon,
        };
        let kernel = match dtype {
            DType::F16 => "gated_norm_to_f16",
            DType::BF16 => "gated_norm_to_bf16",
            _ => "gated_norm_to_f32",
        };
        let function = function(&device, ROWS, kernel, gate.dtype(), &[], 0)?;
        let threads = self.part.div_ceil(4).next_multiple_of(32).clamp(32, 1024);
        let grid = LaunchConfig {
            grid_dim: (small(tokens * (width / self.part))?, 1, 1),
            block_dim: (threads as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the argument is the kernel's; a block reads and writes one part of a row, which all tensors have, and
        // nothing is read ahead.
        unsafe { launch_early(&device, &function, grid, &[argument(&parameters)], true) }?;
        Ok(out)
    }
}
