//! What every other crate stands on: errors, cancelling, logging, memory, threads, devices, and the formats of
//! quantized blocks.

pub mod quant;
pub mod runtime;

/// The version of the gem that this crate belongs to.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use runtime::cancel::CancelToken;
pub use runtime::device::Device;
pub use runtime::error::{Error, Result};
