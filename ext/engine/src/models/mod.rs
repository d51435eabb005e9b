//! Models: what a checkpoint is, and the forward pass of each shape.

pub mod config;
pub mod convolutional;
pub mod decoder;
pub mod depth;
pub mod detection;
pub mod encoder;
pub mod families;
pub mod heads;
pub mod htsat;
mod identity;
pub mod image_to_text;
pub mod masked;
pub mod modules;
pub mod parameters;
pub mod parts;
pub mod positions;
pub mod projections;
pub mod prompted;
pub mod rope;
pub mod segmentation;
pub mod seq2seq;
pub mod speech;
pub mod swin;
pub mod text;
pub mod towers;
pub mod verification;
pub mod vision;

pub use text::{Blueprint, TextModel};
