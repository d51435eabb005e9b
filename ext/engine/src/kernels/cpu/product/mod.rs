//! Products of rows with a weight matrix, for every type that weights are kept in.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod blocks;
pub(crate) mod byte_matrix;
pub(crate) mod gemm;
pub(crate) mod half_matrix;
mod panels;
mod store;
