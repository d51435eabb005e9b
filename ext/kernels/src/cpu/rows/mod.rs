//! Kernels that read and write whole rows: norms, softmax, activations, rotary positions, pooling,
//! the largest number.

pub mod activation;
pub mod largest;
pub mod norm;
pub mod pointwise;
pub mod pool;
pub mod rope;
pub mod softmax;
