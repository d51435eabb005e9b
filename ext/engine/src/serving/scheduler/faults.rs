//! Steps that fail after their forward pass, as on a device: for tests.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Error, Result};

/// Which results of forward passes get lost.
#[derive(Default)]
pub(crate) struct Faults {
    /// How many come through before the first that is lost, plus one; 0 where none is lost.
    before: AtomicUsize,
    /// How many are lost after it.
    lost: AtomicUsize,
}

impl Faults {
    pub fn plan(&self, before: usize, lost: usize) {
        self.lost.store(lost, Ordering::Relaxed);
        self.before.store(before + 1, Ordering::Relaxed);
    }

    pub fn check(&self) -> Result<()> {
        let step = |count: usize| count.checked_sub(1);
        let count =
            |number: &AtomicUsize| number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        let lost = match self.before.load(Ordering::Relaxed) {
            0 => return Ok(()),
            1 => count(&self.lost).is_ok(),
            _ => count(&self.before).is_err(),
        };
        if lost {
            Err(Error::Device("a read that a test lets fail".to_owned()))
        } else {
            Ok(())
        }
    }
}
