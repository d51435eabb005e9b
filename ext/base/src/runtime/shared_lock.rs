//! A reader-writer lock whose waiting can be cancelled, and which a forked child can still take.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::cancel::CancelToken;
use crate::{Error, Result};

/// How often a waiting thread looks at its cancel token, which has no way to wake it.
const POLL: Duration = Duration::from_millis(10);

pub struct SharedLock<T> {
    state: Mutex<State>,
    changed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: `state` lets many readers or one writer reach `value`, so sharing the lock hands out what
// sharing a `RwLock` does.
unsafe impl<T: Send + Sync> Sync for SharedLock<T> {}

#[derive(Default)]
struct State {
    /// The process whose threads are counted here.
    process: u32,
    readers: usize,
    /// Those of the readers that take long.
    long_readers: usize,
    writing: bool,
    /// Who waits, in the order of their coming.
    waiting: VecDeque<(u64, Access)>,
    next_ticket: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    ReadLong,
    Write,
}

impl State {
    /// Whether one that came before all but `ahead` may go in. Nobody overtakes, so that nobody starves; but while a
    /// long reader is in, short ones pass the writers that wait for it.
    fn admits<'a>(
        &self,
        access: Access,
        mut ahead: impl Iterator<Item = &'a (u64, Access)>,
    ) -> bool {
        match access {
            _ if self.writing => false,
            Access::Read if self.long_readers > 0 => true,
            Access::Read | Access::ReadLong => ahead.all(|(_, access)| *access != Access::Write),
            Access::Write => self.readers == 0 && ahead.next().is_none(),
        }
    }

    fn enter(&mut self, access: Access) {
        match access {
            Access::Write => self.writing = true,
            Access::Read | Access::ReadLong => {
                self.readers += 1;
                self.long_readers += usize::from(access == Access::ReadLong);
            }
        }
    }
}

pub struct ReadGuard<'a, T> {
    lock: &'a SharedLock<T>,
    long: bool,
}

pub struct WriteGuard<'a, T> {
    lock: &'a SharedLock<T>,
}

impl<T> SharedLock<T> {
    pub fn new(value: T) -> Self {
        Self {
            state: Mutex::new(State {
                process: std::process::id(),
                ..State::default()
            }),
            changed: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// For short work.
    pub fn read(&self, cancel: &CancelToken) -> Result<ReadGuard<'_, T>> {
        self.enter(Access::Read, cancel)?;
        Ok(ReadGuard {
            lock: self,
            long: false,
        })
    }

    /// For work that takes long. Writers wait for it to end, and short readers don't wait for those writers.
    pub fn read_long(&self, cancel: &CancelToken) -> Result<ReadGuard<'_, T>> {
        self.enter(Access::ReadLong, cancel)?;
        Ok(ReadGuard {
            lock: self,
            long: true,
        })
    }

    pub fn write(&self, cancel: &CancelToken) -> Result<WriteGuard<'_, T>> {
        self.enter(Access::Write, cancel)?;
        Ok(WriteGuard { lock: self })
    }

    fn enter(&self, access: Access, cancel: &CancelToken) -> Result<()> {
        let mut state = self.state()?;
        if state.admits(access, state.waiting.iter()) {
            state.enter(access);
            return Ok(());
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push_back((ticket, access));
        let entered = loop {
            let waited = self.changed.wait_timeout(state, POLL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let ahead = state
                .waiting
                .iter()
                .take_while(|(other, _)| *other != ticket);
            if state.admits(access, ahead) {
                state.enter(access);
                break Ok(());
            }
            if let Err(error) = cancel.check() {
                break Err(error);
            }
        };
        state.waiting.retain(|(other, _)| *other != ticket);
        drop(state);
        // The next waiter may enter now.
        self.changed.notify_all();
        entered
    }

    /// The counts of this process: a fork leaves those of threads that the child does not have.
    fn state(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if state.process != process {
            if state.writing {
                return Err(Error::InvalidInput(
                    "another thread was changing this index when the process forked, so that this process has half \
                     of the change: open or build the index again"
                        .to_owned(),
                ));
            }
            *state = State {
                process,
                ..State::default()
            };
        }
        Ok(state)
    }

    fn leave(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A guard that was made before a fork is not counted in the child.
        if state.process == std::process::id() {
            change(&mut state);
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: while a read guard lives, no write guard is handed out.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    fn drop(&mut self) {
        let long = usize::from(self.long);
        self.lock.leave(|state| {
            state.readers -= 1;
            state.long_readers -= long;
        });
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: while a write guard lives, no other guard is handed out.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: while a write guard lives, no other guard is handed out, and this one is borrowed.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.leave(|state| state.writing = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    #[test]
    fn a_writer_that_waits_can_be_cancelled() {
        let lock = SharedLock::new(0);
        let (free, cancel) = (CancelToken::new(), CancelToken::new());
        let reading = lock.read_long(&free).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| lock.write(&cancel).map(|_| ()));
            std::thread::sleep(Duration::from_millis(50));
            let started = Instant::now();
            cancel.cancel();
            assert!(matches!(writer.join().unwrap(), Err(Error::Interrupted)));
            assert!(started.elapsed() < Duration::from_secs(1));
        });
        drop(reading);
        *lock.write(&free).unwrap() = 5;
        assert_eq!(*lock.read(&free).unwrap(), 5);
    }

    #[test]
    fn readers_pass_a_writer_that_waits_for_a_long_reader() {
        let lock = SharedLock::new(0);
        let free = CancelToken::new();
        let reading = lock.read_long(&free).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| *lock.write(&free).unwrap() = 1);
            while lock.state.lock().unwrap().waiting.is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(*lock.read(&free).unwrap(), 0);
            drop(reading);
            writer.join().unwrap();
        });
        assert_eq!(*lock.read(&free).unwrap(), 1);
    }

    /// Writers that come one after the other don't keep readers out, nor the other way round.
    #[test]
    fn nobody_starves() {
        let lock = SharedLock::new(0);
        let free = CancelToken::new();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (lock, free, over) = (&lock, &free, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        match thread % 2 {
                            0 => *lock.write(free).unwrap() += 1,
                            _ => assert!(*lock.read(free).unwrap() >= 0),
                        }
                    }
                });
            }
            let started = Instant::now();
            for _ in 0..100 {
                drop(lock.read(&free).unwrap());
                drop(lock.read_long(&free).unwrap());
                drop(lock.write(&free).unwrap());
            }
            over.store(true, Ordering::Relaxed);
            assert!(started.elapsed() < Duration::from_secs(20));
        });
    }

    #[test]
    fn writers_are_alone() {
        let lock = SharedLock::new((0, 0));
        let free = CancelToken::new();
        let seen = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (lock, free, seen) = (&lock, &free, &seen);
                scope.spawn(move || {
                    for turn in 0..200 {
                        if (turn + thread) % 3 == 0 {
                            let mut pair = lock.write(free).unwrap();
                            pair.0 += 1;
                            pair.1 += 1;
                        } else {
                            let pair = lock.read(free).unwrap();
                            assert_eq!(pair.0, pair.1);
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let pair = lock.read(&free).unwrap();
        assert_eq!(pair.0 + seen.load(Ordering::Relaxed), 800);
    }
}
