//! Work whose depth a stranger's file decides, on a stack of known size.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::cancel::CancelToken;
use crate::{Error, Result};

/// Reserved, and taken only as far as it is used.
const BYTES: usize = 16 << 20;
/// The same for work that no limit of ours makes shallow.
const MANY_BYTES: usize = 256 << 20;
/// How often an interrupt is looked for while the work runs.
const LOOK: Duration = Duration::from_millis(10);
/// How many works that were given up may still run.
const MOST_GIVEN_UP: u32 = 2;

/// Works that run and can't be stopped: the process in the upper half, as a forked child has none of
/// its parent's threads, and their number in the lower.
static RUNNING: AtomicU64 = AtomicU64::new(0);

struct Running;

impl Running {
    /// Counts one more, unless there are too many.
    fn begin() -> Option<Self> {
        let count = |state: u64| {
            let mine = state >> 32 == u64::from(std::process::id());
            if mine {
                state as u32
            } else {
                0
            }
        };
        let next = |state: u64| {
            let count = count(state);
            let process = u64::from(std::process::id()) << 32;
            (count <= MOST_GIVEN_UP).then(|| process | u64::from(count + 1))
        };
        RUNNING
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .ok()
            .map(|_| Self)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Runs `work`, which looks at no token itself, on a thread of its own. `None` when it takes longer than
/// `limit`. Work that is given up, for that or for an interrupt, goes on without anybody to wait for it.
pub fn limited<T: Send + 'static>(
    limit: Duration,
    cancel: &CancelToken,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    let started = Instant::now();
    let running = loop {
        cancel.check()?;
        match Running::begin() {
            Some(running) => break running,
            None if started.elapsed() > limit => return Ok(None),
            None => std::thread::sleep(LOOK),
        }
    };
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        let _running = running;
        // The receiver is gone when nobody waits any more.
        let _ = sender.send(work());
    };
    let builder = Builder::new().name("red-candle-stack".to_owned());
    let thread = builder.stack_size(MANY_BYTES).spawn(run);
    thread.map_err(|error| Error::OutOfMemory(format!("cannot start a thread: {error}")))?;
    loop {
        match receiver.recv_timeout(LOOK) {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Internal(
                    "a thread ended without a result".to_owned(),
                ))
            }
            Err(RecvTimeoutError::Timeout) => cancel.check()?,
        }
        if started.elapsed() > limit {
            return Ok(None);
        }
    }
}

/// Runs `work` on a thread of its own, and waits for it. A panic goes on in the caller.
pub fn roomy<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = Builder::new()
            .name("red-candle-stack".to_owned())
            .stack_size(BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| Error::OutOfMemory(format!("cannot start a thread: {error}")))?;
        match thread.join() {
            Ok(result) => Ok(result),
            Err(payload) => std::panic::resume_unwind(payload),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(levels: usize) -> usize {
        let frame = std::hint::black_box([0u8; 4096]);
        match levels {
            0 => frame[0].into(),
            levels => 1 + depth(levels - 1),
        }
    }

    #[test]
    fn endless_work_is_given_up_and_an_interrupt_ends_the_waiting() {
        let cancel = CancelToken::new();
        let sleep = |millis| move || std::thread::sleep(Duration::from_millis(millis));
        let soon = Duration::from_millis(30);
        assert_eq!(limited(soon, &cancel, sleep(300)).unwrap(), None);
        assert_eq!(limited(soon * 100, &cancel, || 7).unwrap(), Some(7));
        assert_eq!(
            limited(soon * 100, &cancel, || depth(20_000)).unwrap(),
            Some(20_000)
        );
        cancel.cancel();
        let started = Instant::now();
        let interrupted = limited(soon * 100, &cancel, sleep(300));
        assert!(matches!(interrupted, Err(Error::Interrupted)));
        assert!(started.elapsed() < Duration::from_millis(200));
    }

    #[test]
    fn deep_work_has_room_and_panics_are_passed_on() {
        assert_eq!(roomy(|| depth(1500)).unwrap(), 1500);
        let panicked = std::panic::catch_unwind(|| roomy(|| panic!("on purpose")));
        assert!(panicked.is_err());
    }
}
