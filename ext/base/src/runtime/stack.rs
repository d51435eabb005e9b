//! Work whose depth a stranger's file decides, on a stack of known size.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::cancel::CancelToken;
use super::detached::detached;
use crate::{Error, Result};

/// Reserved, and taken only as far as it is used.
pub const ROOMY: usize = 16 << 20;
/// The stack of work that no limit of ours makes shallow; reserved like `ROOMY`.
pub const DEEP: usize = 256 << 20;
/// How often an interrupt is looked for while the work runs.
const LOOK: Duration = Duration::from_millis(10);
/// While so many abandoned runs have not ended, no other begins.
const MOST_ABANDONED: u32 = 2;

/// How many abandoned runs have not ended, in the lower half; the upper is the process, as a forked
/// child has none of its parent's threads.
static ABANDONED: AtomicU64 = AtomicU64::new(0);

fn abandoned() -> u32 {
    counted(ABANDONED.load(Ordering::Acquire))
}

fn counted(state: u64) -> u32 {
    if state >> 32 == u64::from(std::process::id()) {
        state as u32
    } else {
        0
    }
}

fn count_abandoned(change: impl Fn(u32) -> u32) {
    let process = u64::from(std::process::id()) << 32;
    let next = |state: u64| Some(process | u64::from(change(counted(state))));
    // It always gives a next state.
    let _ = ABANDONED.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
}

const RUNNING: u8 = 0;
const OVER: u8 = 1;
const LEFT: u8 = 2;

/// Ends the account of a work on the thread that ran it.
struct Ends(Arc<AtomicU8>);

impl Drop for Ends {
    fn drop(&mut self) {
        if self.0.swap(OVER, Ordering::AcqRel) == LEFT {
            count_abandoned(|count| count.saturating_sub(1));
        }
    }
}

/// Counts a work that nobody waits for any more, if it still runs.
struct Leaves(Arc<AtomicU8>);

impl Drop for Leaves {
    fn drop(&mut self) {
        let left = self
            .0
            .compare_exchange(RUNNING, LEFT, Ordering::AcqRel, Ordering::Acquire);
        if left.is_ok() {
            count_abandoned(|count| count.saturating_add(1));
        }
    }
}

/// Runs `work`, which checks no token itself, on a thread with this stack. `None` when it takes longer
/// than `limit`. After a timeout or an interrupt the work is abandoned: its thread runs to the end, unobserved.
pub fn apart<T: Send + 'static>(
    stack: usize,
    limit: Option<Duration>,
    cancel: &CancelToken,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    let started = Instant::now();
    let is_late = || limit.is_some_and(|limit| started.elapsed() > limit);
    while abandoned() >= MOST_ABANDONED {
        cancel.check()?;
        if is_late() {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
    let state = Arc::new(AtomicU8::new(RUNNING));
    let (ends, (sender, receiver)) = (Ends(state.clone()), mpsc::channel());
    let run = move || {
        let ends = ends;
        let result = work();
        drop(ends);
        // The receiver is gone when nobody waits any more.
        let _ = sender.send(result);
    };
    let builder = Builder::new().name("red-candle-stack".to_owned());
    detached(builder.stack_size(stack), run)
        .map_err(|error| Error::OutOfMemory(format!("cannot start a thread: {error}")))?;
    let _leaves = Leaves(state);
    loop {
        cancel.check()?;
        match receiver.recv_timeout(LOOK) {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Disconnected) => {
                let lost = "a thread ended without a result".to_owned();
                return Err(Error::Internal(lost));
            }
            Err(RecvTimeoutError::Timeout) if is_late() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Runs `work` on a thread of its own, and waits for it. A panic goes on in the caller.
pub fn roomy<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = Builder::new()
            .name("red-candle-stack".to_owned())
            .stack_size(ROOMY)
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
    fn endless_work_is_abandoned_and_an_interrupt_ends_the_waiting() {
        let cancel = CancelToken::new();
        let sleep = |millis| move || std::thread::sleep(Duration::from_millis(millis));
        let soon = Some(Duration::from_millis(30));
        let later = Some(Duration::from_secs(20));
        assert_eq!(apart(ROOMY, soon, &cancel, sleep(1500)).unwrap(), None);
        assert_eq!(apart(ROOMY, soon, &cancel, sleep(1500)).unwrap(), None);
        assert_eq!(abandoned(), 2);
        assert_eq!(apart(ROOMY, later, &cancel, || 7).unwrap(), Some(7));
        assert!(abandoned() < 2);
        let deep = apart(DEEP, None, &cancel, || depth(20_000));
        assert_eq!(deep.unwrap(), Some(20_000));
        cancel.cancel();
        let started = Instant::now();
        let interrupted = apart(ROOMY, later, &cancel, sleep(3000));
        assert!(matches!(interrupted, Err(Error::Interrupted)));
        assert!(started.elapsed() < Duration::from_millis(2000));
    }

    #[test]
    fn deep_work_has_room_and_panics_are_passed_on() {
        assert_eq!(roomy(|| depth(1500)).unwrap(), 1500);
        let panicked = std::panic::catch_unwind(|| roomy(|| panic!("on purpose")));
        assert!(panicked.is_err());
    }
}
