//! Attention in the caches of the CPU, a head of a sequence at a time.

pub(crate) mod few_queries;
pub(crate) mod scores;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;
