//! Kernels for CPU, Metal and CUDA: norms, softmax, activations, rotary positions and pooling by rows,
//! attention, and products with matrices.
//!
//! Each function takes candle tensors of f32, f16 or bf16 on one device, computes in f32 and rounds
//! once. Rows may be strided as long as the last dimension is contiguous; another layout is copied
//! first. `docs/internals/kernels.md` says which backend runs what.

pub mod attention;
pub mod backend;
pub mod blocks;
mod columns;
pub mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub mod cuda_graphs;
pub mod experts;
pub mod f32_tiles;
pub mod fp8;
mod gated_norm;
pub mod heads;
pub mod matrix;
#[cfg(any(test, feature = "metal"))]
mod metal;
mod ops;
pub mod packed_weight;
pub mod paged;
#[cfg(any(test, feature = "metal", feature = "cuda"))]
mod parameter_block;
pub mod recording;
pub mod reference;
mod row_kernels;
pub(crate) mod rows;
pub mod sampling;
pub mod scan;
pub mod selftest;
pub mod tensor;
mod types;
pub mod winograd;

pub use base::{CancelToken, Device, Error, Result};
pub use columns::join_columns;
pub use cpu::isa::Isa;
pub use cpu::windows::Windows;
pub use gated_norm::{GateOrder, GatedNorm};
pub use matrix::Epilogue;
#[cfg(all(feature = "metal", feature = "selftest"))]
pub use metal::tuning;
pub use row_kernels::{
    activate, add_layer_norm, add_rms_norm, clamped_glu, gated, gated_fused, gather_at, gather_sum,
    l2_normalize, largest, largest_of, layer_norm, log_sum_exp, mean_pool, pointwise, rms_norm,
    rms_norm_offset, rope, rotate_and_store, softmax, softmax_masked,
};
pub use types::{
    Activation, ClampedGlu, Largest, Pointwise, RopeKind, Rotation, SoftmaxOptions, Xielu,
    LEAST_L2_NORM,
};
