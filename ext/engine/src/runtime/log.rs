//! What the engine wants to tell the user; the binding forwards it to the logger in force.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Debug,
    Info,
    Warn,
}

/// More than any single call says; a runaway loop cannot fill memory.
const CAPACITY: usize = 1000;

static PENDING: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());
static HAS_PENDING: AtomicBool = AtomicBool::new(false);

pub fn debug(message: impl Into<String>) {
    push(Level::Debug, message.into());
}

pub fn info(message: impl Into<String>) {
    push(Level::Info, message.into());
}

pub fn warn(message: impl Into<String>) {
    push(Level::Warn, message.into());
}

/// Takes all messages, oldest first.
pub fn drain() -> Vec<(Level, String)> {
    if !HAS_PENDING.swap(false, Ordering::AcqRel) {
        return Vec::new();
    }
    std::mem::take(&mut *PENDING.lock().unwrap_or_else(|e| e.into_inner()))
}

fn push(level: Level, message: String) {
    let mut pending = PENDING.lock().unwrap_or_else(|e| e.into_inner());
    if pending.len() < CAPACITY {
        pending.push((level, message));
        HAS_PENDING.store(true, Ordering::Release);
    }
}
