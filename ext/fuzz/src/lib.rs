//! Fuzz targets of the readers of strangers' files, for libFuzzer.

pub mod readers;

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, Once, PoisonError};

/// One run of a target. libFuzzer's crate ends the process where anything panics; what the engine catches, as it does
/// around the crates that it reads tokenizers and grammars with, is not a finding.
pub fn fuzz(reader: &str, bytes: &[u8]) {
    static HOOK: Once = Once::new();
    static LAST: Mutex<String> = Mutex::new(String::new());
    HOOK.call_once(|| {
        panic::set_hook(Box::new(|panic| {
            *LAST.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
        }));
    });
    let reader = readers::Reader::named(reader);
    if panic::catch_unwind(AssertUnwindSafe(|| reader.survives(bytes))).is_err() {
        eprintln!("{}", LAST.lock().unwrap_or_else(PoisonError::into_inner));
        std::process::abort();
    }
}
