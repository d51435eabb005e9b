//! The engine behind red-candle: loading, numerics and tasks, with no knowledge of Ruby.

pub mod allocator;
pub mod cancel;
pub mod device;
pub mod error;
pub mod huge_pages;
pub mod kernels;
pub mod log;
pub mod memory;
pub mod nn;
pub mod tensor;
pub mod threads;
pub mod verification;

pub mod encoder;
pub mod tasks;

pub mod chat_template;
pub mod decoder;
pub mod generation;
pub mod hub;
pub mod model_files;
pub mod raw_config;
pub mod tokenizer;
pub mod weights;

/// The version of the gem that this engine belongs to.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use cancel::CancelToken;
pub use device::Device;
pub use error::{Error, Result};
pub use tokenizer::Tokenizer;
