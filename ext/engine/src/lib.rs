//! The engine behind red-candle: loading, numerics and tasks, with no knowledge of Ruby.

pub mod files;
pub mod generation;
pub mod image;
pub mod kernels;
pub mod models;
pub mod nn;
pub mod quant;
pub mod runtime;
pub mod tasks;
pub mod tensor;
pub mod text;
pub mod weights;

/// The version of the gem that this engine belongs to.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use runtime::cancel::CancelToken;
pub use runtime::device::Device;
pub use runtime::error::{Error, Result};
pub use text::tokenizer::Tokenizer;
