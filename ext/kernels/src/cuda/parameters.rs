//! What the kernels take besides pointers, laid out as in the CUDA source.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::Result;

use crate::rows::Rows;

/// As `Rows` in the CUDA source.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct DeviceRows {
    pub inner_size: u32,
    pub middle_size: u32,
    pub inner_stride: u64,
    pub middle_stride: u64,
    pub outer_stride: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct NormParameters {
    pub columns: u32,
    pub flags: u32,
    pub epsilon: f32,
    pub weight_offset: f32,
    pub input: DeviceRows,
    pub residual: DeviceRows,
    pub rows: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct SoftmaxParameters {
    pub columns: u32,
    pub flags: u32,
    pub scale: f32,
    pub lowest: f32,
    pub input: DeviceRows,
    pub additive: DeviceRows,
    pub keep: DeviceRows,
    pub lengths: DeviceRows,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ActivationParameters {
    pub elements: u64,
    pub columns: u32,
    pub activation: u32,
    pub gated: u32,
    pub dense: u32,
    pub gate: DeviceRows,
    pub up: DeviceRows,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PointwiseParameters {
    pub elements: u64,
    pub columns: u32,
    pub function: u32,
    pub numbers: [f32; 4],
    pub input: DeviceRows,
    pub other: DeviceRows,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RopeParameters {
    pub columns: u32,
    pub rotated: u32,
    pub heads: u32,
    pub known: u32,
    pub interleaved: u32,
    pub input: DeviceRows,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PoolParameters {
    pub columns: u32,
    pub least: f32,
    pub input: DeviceRows,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for NormParameters {}
// SAFETY: plain numbers, laid out as the softmax kernels declare them.
unsafe impl DeviceRepr for SoftmaxParameters {}
// SAFETY: plain numbers, laid out as the activation kernels declare them.
unsafe impl DeviceRepr for ActivationParameters {}
// SAFETY: plain numbers, laid out as the kernel of pointwise functions declares them.
unsafe impl DeviceRepr for PointwiseParameters {}
// SAFETY: plain numbers, laid out as the rope kernels declare them.
unsafe impl DeviceRepr for RopeParameters {}
// SAFETY: plain numbers, laid out as the pool kernels declare them.
unsafe impl DeviceRepr for PoolParameters {}

pub(super) const HAS_BIAS: u32 = 1;
pub(super) const CENTERED: u32 = 2;
pub(super) const HAS_RESIDUAL: u32 = 4;
pub(super) const HAS_ADDITIVE: u32 = 1;
pub(super) const HAS_KEEP: u32 = 2;
pub(super) const HAS_LENGTHS: u32 = 4;

impl DeviceRows {
    pub const NONE: Self = Self {
        inner_size: 1,
        middle_size: 1,
        inner_stride: 0,
        middle_stride: 0,
        outer_stride: 0,
    };

    pub fn of(rows: &Rows) -> Result<Self> {
        let [outer, middle, inner] = rows.dims;
        Ok(Self {
            inner_size: small(inner.0.max(1))?,
            middle_size: small(middle.0.max(1))?,
            inner_stride: inner.1 as u64,
            middle_stride: middle.1 as u64,
            outer_stride: outer.1 as u64,
        })
    }
}

pub fn small(value: usize) -> Result<u32> {
    match i32::try_from(value) {
        Ok(value) => Ok(value as u32),
        Err(_) => candle_core::bail!("{value} rows or columns are more than a CUDA kernel takes"),
    }
}
