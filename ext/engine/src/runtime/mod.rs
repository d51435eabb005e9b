//! What everything else stands on: errors, cancelling, logging, memory, threads and devices.

pub(crate) mod ahead;
pub mod allocator;
pub mod bytes;
pub mod cancel;
pub mod cuda_graphs;
pub mod device;
pub mod error;
pub mod f32_tiles;
pub mod huge_pages;
mod job;
pub mod log;
pub(crate) mod mapping;
pub mod memory;
pub mod per_process;
pub mod stack;
pub mod stats;
pub(crate) mod switch;
mod team;
pub mod threads;
