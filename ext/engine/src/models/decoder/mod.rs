//! Causal language models: one forward for every family.

pub mod adapter;
pub mod batch;
pub mod cache;
pub mod config;
pub mod experts;
mod heads;
pub mod layer;
mod loading;
pub mod model;
pub mod peft;
mod verify;

pub use adapter::Adapter;
pub use cache::KvCache;
pub use config::DecoderConfig;
pub use model::Decoder;

/// What a checkpoint of a decoder is.
pub type Blueprint = crate::models::families::Blueprint<DecoderConfig>;
