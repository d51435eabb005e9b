//! The engine behind red-candle: models, generation, tasks and the vector index, with no knowledge of Ruby.

pub mod generation;
pub mod models;
pub mod nn;
pub mod tasks;
pub mod vector_index;

pub use base::{CancelToken, Device, Error, Result, VERSION};
pub use formats::Tokenizer;
