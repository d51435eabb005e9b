//! The engine behind red-candle: models, generation, serving, tasks and the vector index, with no knowledge of Ruby.

pub mod generation;
pub mod models;
pub mod nn;
pub mod serving;
pub mod tasks;
pub mod vector_index;

pub use base::{CancelToken, Device, Error, Result, VERSION};
pub use formats::Tokenizer;
