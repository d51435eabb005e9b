//! Kernels on rows, of attention, of products and on quantized blocks on Metal: sources in this folder, compiled at run
//! time, libraries and pipelines kept per device. The launcher needs candle's Metal backend; what can be tested without
//! is in `plan`.

// Elsewhere only its tests use it.
#[cfg_attr(not(feature = "metal"), allow(dead_code))]
mod plan;

#[cfg(feature = "metal")]
pub(super) mod attention;
#[cfg(feature = "metal")]
pub(super) mod blocks;
#[cfg(feature = "metal")]
pub(super) mod heads;
#[cfg(feature = "metal")]
pub(super) mod largest;
#[cfg(feature = "metal")]
mod launch;
#[cfg(feature = "metal")]
mod operands;
#[cfg(feature = "metal")]
mod pipelines;
#[cfg(feature = "metal")]
pub(super) mod product;
#[cfg(feature = "metal")]
pub(super) mod sampling;
#[cfg(feature = "metal")]
pub(super) mod scan;
#[cfg(feature = "metal")]
pub(super) mod scan_gates;
#[cfg(feature = "metal")]
pub(super) mod store;
#[cfg(all(feature = "metal", feature = "selftest"))]
pub mod tuning;

#[cfg(feature = "metal")]
pub(super) use launch::{
    activate, add_norm, clamped_glu, each_element, gated, l2_normalize, mean_pool, norm, rope,
    softmax,
};
