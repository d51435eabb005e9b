//! The row kernels on Metal: sources in this folder, compiled at run time, libraries and pipelines
//! kept per device. The launcher is for macOS; what can be tested elsewhere is in `plan`.

// Elsewhere only its tests use it.
#[cfg_attr(not(target_os = "macos"), allow(dead_code))]
mod plan;

#[cfg(target_os = "macos")]
mod launch;
#[cfg(target_os = "macos")]
mod operands;
#[cfg(target_os = "macos")]
mod pipelines;

#[cfg(target_os = "macos")]
pub(super) use launch::{activate, add_norm, gated, l2_normalize, mean_pool, norm, rope, softmax};
