//! Attention in the caches of the CPU, a head of a sequence at a time.

mod few_queries;
mod few_sequences;
pub mod halves;
pub mod paged;
mod scores;
pub mod sequences;
#[cfg(target_arch = "x86_64")]
mod tiles;
