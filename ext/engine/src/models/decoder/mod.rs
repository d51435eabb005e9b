//! Causal language models: one forward for every family.

mod adaptable;
pub mod adapter;
mod adapter_rows;
pub mod attention;
pub mod batch;
pub mod blocks;
pub mod cache;
pub mod config;
mod device_experts;
mod differential;
mod expert_loading;
pub mod experts;
mod factors;
mod forward;
mod heads;
pub mod image_embeddings;
mod indexer;
pub mod lanes;
mod latent;
pub mod layer;
pub mod layer_inputs;
mod loading;
pub mod mixers;
pub mod model;
mod norm_gate;
pub mod observer;
pub mod pages;
pub mod peft;
pub mod plain;
pub mod pool;
mod query_experts;
mod replay;
mod router;
mod scanning;
pub mod shapes;
pub mod sparsity;
mod stacks;
pub mod stages;
pub mod state_memory;
pub mod states;
mod temperature;
mod verify;

pub use adapter::Adapter;
pub use cache::KvCache;
pub use config::DecoderConfig;
pub use model::Decoder;
pub use pool::{KvPool, Sequence};
pub use replay::Recordings;
pub use stages::Stages;

/// What a checkpoint of a decoder is.
pub type Blueprint = crate::models::families::Blueprint<DecoderConfig>;
