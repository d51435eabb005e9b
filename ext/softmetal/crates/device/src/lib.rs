//! Metal's compute side in software: buffers are plain memory between forbidden pages, a library is Metal source
//! translated to C++ and compiled by clang++, kernel by kernel, and a dispatch runs its grid on the thread that waits.
//! `settings` lists what the environment may ask for.

mod commands;
mod encoders;
mod execution;
mod interface;
mod library;
mod machine;
mod memory;
mod msl;
mod objects;
mod report;
mod settings;
mod shadow;

pub use interface::softmetal_interface;

/// Data behind a lock stays usable after a panic: what was found must still be reported.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
