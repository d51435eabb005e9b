//! Products of rows with a weight matrix, for every type that weights are kept in: each type is a
//! `WeightMatrix`, and `driver` runs them all.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "aarch64")]
mod arm;
pub mod blocks;
pub mod byte_matrix;
mod driver;
mod epilogue;
pub mod gemm;
pub mod grouped;
pub mod half_matrix;
pub mod head_panels;
mod panels;
#[cfg(target_arch = "x86_64")]
pub(crate) mod parts;
pub mod row_matrix;
pub(crate) mod row_tiles;
mod store;
#[cfg(test)]
mod tests;
pub mod winograd;

pub use driver::{multiply_each, Sums, WeightMatrix};
pub use epilogue::GemmEpilogue;
