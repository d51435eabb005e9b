//! The serving layer: it computes the requests of many threads together. Decoders and encoder-decoders have
//! continuous batching, encoders dynamic batching. All three take turns by [`leader`].

pub(crate) mod batching;
pub(crate) mod dynamic_batcher;
pub(crate) mod leader;
pub mod scheduler;
pub(crate) mod seq2seq;
pub mod speculation;
mod stats;
pub(crate) mod tokenize_ahead;

pub use batching::Slice;
pub use scheduler::ContextOverflow;
pub use stats::{Served, Stats};
