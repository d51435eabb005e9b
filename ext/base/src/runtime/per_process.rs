//! What every process needs for itself: a forked child inherits memory, but neither the threads that work
//! on it nor the promise that a lock is ever given back.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

use crate::Result;

/// A value that a process makes when it first asks for it.
pub struct PerProcess<T> {
    current: AtomicPtr<Made<T>>,
}

struct Made<T> {
    process: u32,
    value: Arc<T>,
}

impl<T> PerProcess<T> {
    pub fn new(value: T) -> Self {
        Self {
            current: AtomicPtr::new(Self::made(value)),
        }
    }

    fn made(value: T) -> *mut Made<T> {
        Box::into_raw(Box::new(Made {
            process: std::process::id(),
            value: Arc::new(value),
        }))
    }

    /// This process's, made by `make` where there is none yet. What a parent had is left as it is.
    pub fn get(&self, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let seen = self.current.load(Ordering::Acquire);
        // SAFETY: it is never null before the drop, and freed there alone.
        let made = unsafe { &*seen };
        if made.process == std::process::id() {
            return Ok(made.value.clone());
        }
        let fresh = Self::made(make()?);
        let swapped =
            self.current
                .compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_err() {
            // SAFETY: `fresh` was not published, so this thread is its only owner.
            drop(unsafe { Box::from_raw(fresh) });
        }
        // SAFETY: as above; the thread that published it did so in this process.
        Ok(unsafe { &*self.current.load(Ordering::Acquire) }
            .value
            .clone())
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let made = self.current.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: nothing else has the pointer any more.
        let made = unsafe { Box::from_raw(made) };
        if made.process != std::process::id() {
            std::mem::forget(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_its_value() {
        let value = PerProcess::new(7);
        assert_eq!(*value.get(|| Ok(8)).unwrap(), 7);
    }

    #[test]
    #[cfg(unix)]
    fn a_forked_child_makes_its_own() {
        let value = PerProcess::new(7);
        // SAFETY: the child only computes and leaves through _exit.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let own = value.get(|| Ok(8)).is_ok_and(|own| *own == 8);
                let again = value.get(|| Ok(9)).is_ok_and(|own| *own == 8);
                libc::_exit(i32::from(!(own && again)));
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            assert_eq!(status, 0);
        }
        assert_eq!(*value.get(|| Ok(8)).unwrap(), 7);
    }
}
