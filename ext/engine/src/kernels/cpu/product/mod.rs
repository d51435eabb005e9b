//! Products of rows with a weight matrix, for every type that weights are kept in: each type is a
//! `WeightMatrix`, and `driver` runs them all.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod blocks;
pub(crate) mod byte_matrix;
mod driver;
mod epilogue;
pub(crate) mod gemm;
pub(crate) mod half_matrix;
pub(crate) mod head_panels;
mod panels;
#[cfg(target_arch = "x86_64")]
pub(crate) mod parts;
pub(crate) mod row_matrix;
pub(crate) mod row_tiles;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use driver::{multiply_each, Sums, WeightMatrix};
pub(crate) use epilogue::GemmEpilogue;
