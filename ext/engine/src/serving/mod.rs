//! The serving layer: it computes the requests of many threads together. Decoders and encoder-decoders have
//! continuous batching, encoders dynamic batching.

pub(crate) mod batching;
pub(crate) mod call_stats;
pub(crate) mod dynamic_batcher;
pub(crate) mod leader;
pub mod scheduler;
pub(crate) mod seq2seq_stats;
mod stats;

pub use scheduler::ContextOverflow;
pub use stats::Stats;
