//! Models: what a checkpoint is, and the forward pass of each shape.

pub mod decoder;
pub mod encoder;
pub mod verification;
