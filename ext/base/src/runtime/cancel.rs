//! A flag that tells long work to stop; every loop of the engine looks at it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::{Error, Result};

#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    flag: Arc<AtomicBool>,
    parent: Option<Arc<AtomicBool>>,
}

impl CancelToken {
    pub fn new() -> Self {
        Self::default()
    }

    /// One for a part of the work, which can be stopped alone, and stops with the whole.
    pub fn part(&self) -> Self {
        Self {
            flag: Arc::default(),
            parent: Some(self.flag.clone()),
        }
    }

    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }

    pub fn reset(&self) {
        self.flag.store(false, Ordering::Release);
    }

    pub fn is_cancelled(&self) -> bool {
        let parent = self.parent.as_ref();
        self.flag.load(Ordering::Acquire) || parent.is_some_and(|flag| flag.load(Ordering::Acquire))
    }

    /// `Err(Interrupted)` once cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_stops_alone_or_with_the_whole() {
        let whole = CancelToken::new();
        let (one, other) = (whole.part(), whole.part());
        one.cancel();
        assert!(one.is_cancelled() && !other.is_cancelled() && !whole.is_cancelled());
        whole.cancel();
        assert!(other.check().is_err());
    }
}
