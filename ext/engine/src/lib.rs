//! The engine behind red-candle: models, generation and tasks, with no knowledge of Ruby.

pub mod generation;
pub mod models;
pub mod nn;
pub mod tasks;

pub use base::{CancelToken, Device, Error, Result, VERSION};
pub use formats::Tokenizer;
