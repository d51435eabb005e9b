//! Models: what a checkpoint is, and the forward pass of each shape.

pub mod decoder;
pub mod encoder;
pub mod heads;
pub mod text;
pub mod verification;

pub use text::{Blueprint, TextModel};
