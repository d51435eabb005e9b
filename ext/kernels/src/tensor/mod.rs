//! Tensor operations with numpy's meaning: broadcasting, promotion, empty and strided inputs.
//!
//! On the CPU they run in the engine's own pool and look at the cancel token, where candle's own
//! elementwise operations would use a pool that does not survive `fork`. Up to `SMALL` elements of
//! work nothing here touches a pool at all, except `matmul` and `normalize`.

pub mod create;
pub mod dtype;
pub mod elementwise;
pub mod index;
pub mod matmul;
pub mod max_sim;
pub mod nearest;
pub mod normalize;
pub mod reduce;
pub mod shape;
mod storage;

pub use create::{from_bytes, from_numbers, Numbers};
pub use dtype::Scalar;
pub use elementwise::{arithmetic, compare, power, unary, Arithmetic, Comparison, Unary};
pub use storage::{equal, to_bytes, to_dtype, to_numbers};

/// The number of elements below which an operation is done by the calling thread alone.
pub const SMALL: usize = 1 << 15;
