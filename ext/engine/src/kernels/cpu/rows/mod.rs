//! Kernels that read and write whole rows: norms, softmax, activations, rotary positions, pooling,
//! the largest number.

pub(crate) mod activation;
pub(crate) mod largest;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod rope;
pub(crate) mod softmax;
