//! Causal language models: one forward for every family.

pub mod adapter;
pub mod batch;
pub mod cache;
pub mod config;
pub mod experts;
pub mod families;
pub mod gguf;
pub mod layer;
pub mod model;
pub mod names;
pub mod parameters;
pub mod peft;
pub mod rope;
mod verify;

pub use adapter::Adapter;
pub use cache::KvCache;
pub use config::DecoderConfig;
pub use model::Decoder;
