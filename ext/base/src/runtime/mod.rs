//! What everything else stands on: errors, cancelling, logging, memory, threads and devices.

pub mod allocator;
pub mod autorelease;
mod awake;
pub mod bytes;
pub mod cancel;
pub mod detached;
pub mod device;
pub mod error;
pub mod huge_pages;
mod job;
pub mod log;
pub mod mapping;
pub mod memory;
pub mod per_process;
mod places;
pub mod prefetch;
pub mod shared_lock;
mod spin_pool;
pub mod stack;
pub mod stats;
pub mod switch;
pub mod threads;
