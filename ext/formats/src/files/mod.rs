//! The files of a model: where they come from, which there are, and the small ones among them.

pub mod digest;
pub mod gguf_choice;
pub mod hub;
pub mod json;
pub mod model_files;
pub mod models_lock;
pub mod raw_config;
pub mod replace;
pub mod shard_index;
pub mod weight_files;
