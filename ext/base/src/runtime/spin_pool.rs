//! Threads that spin while a call runs. The leader publishes work items in memory that the others poll, which
//! takes a fraction of the time that the thread pool's queues take. A decoder does it hundreds of times for a
//! token.
//!
//! Nobody waits for a thread that does not come: work is cut into items, each thread starts with its own share
//! of them and then takes what others have left.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::places::Places;
use super::prefetch::{Course, Prefetch};

/// The gate's lowest bits count the members at work.
const INSIDE: usize = (1 << 16) - 1;
/// Set while members may come in.
const OPEN: usize = 1 << 16;
/// The bits from here on change with every piece of work.
const NUMBER: usize = 1 << 17;
/// How often the leader looks for the last member before it lets others have its processor.
const LOOKS: usize = 2000;

/// Keeps what it holds on cache lines of its own: processors fetch them by twos.
#[repr(align(128))]
struct Apart<T>(T);

pub(super) struct SpinPool {
    /// What the leader and the members read.
    pub course: Course,
    gate: Apart<AtomicUsize>,
    over: Apart<AtomicBool>,
    /// How many members are there, and which.
    present: AtomicUsize,
    attends: Box<[AtomicBool]>,
    places: Places,
    /// For each thread, which part of its share comes next.
    next: Box<[Apart<AtomicUsize>]>,
    /// Written by the leader while the gate is closed and nobody inside; read by members who are.
    work: UnsafeCell<Option<Work>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Work {
    run: *const (dyn Fn(Range<usize>) + Sync),
    parts: usize,
}

// SAFETY: who may touch `work` is said there, and its function may be called by any thread.
unsafe impl Send for SpinPool {}
// SAFETY: as for `Send`; the other fields are atomic or have a lock.
unsafe impl Sync for SpinPool {}

impl SpinPool {
    /// For a leader, number 0, which calls this, and members from 1 on.
    pub fn new(threads: usize) -> Self {
        let places = Places::new(threads);
        places.settle(0);
        let next = (0..threads).map(|_| Apart(AtomicUsize::new(0)));
        Self {
            course: Course::begin(),
            gate: Apart(AtomicUsize::new(0)),
            over: Apart(AtomicBool::new(false)),
            present: AtomicUsize::new(0),
            attends: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            places,
            next: next.collect(),
            work: UnsafeCell::new(None),
            panic: Mutex::new(None),
        }
    }

    /// Sends the members away.
    pub fn dismiss(&self) {
        self.over.0.store(true, Ordering::Release);
    }

    pub fn is_over(&self) -> bool {
        self.over.0.load(Ordering::Acquire)
    }

    /// Whether anybody is there to take work; it may be doing something else.
    pub fn has_members(&self) -> bool {
        self.present.load(Ordering::Relaxed) > 0
    }

    /// Whether a member is somewhere else.
    pub fn lacks_members(&self) -> bool {
        self.present.load(Ordering::Relaxed) + 1 < self.next.len()
    }

    /// Counts the calling thread as a member while `work` runs, on a processor that no other one of them has, unless
    /// it is one already.
    pub fn attend(&self, member: usize, work: impl FnOnce()) {
        struct Leave<'a>(&'a AtomicUsize, &'a AtomicBool);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
                self.1.store(false, Ordering::Relaxed);
            }
        }
        let attends = &self.attends[member];
        if attends.swap(true, Ordering::Relaxed) {
            return;
        }
        self.present.fetch_add(1, Ordering::Relaxed);
        let _leave = Leave(&self.present, attends);
        self.places.settle(member);
        work();
    }

    /// Changes with every piece of work.
    pub fn number(&self) -> usize {
        self.gate.0.load(Ordering::Relaxed) / NUMBER
    }

    /// Has a member ask for what it will read once there is work; whether there is anything.
    pub fn prefetch(&self, member: usize, ahead: &mut Prefetch) -> bool {
        self.course.ask(ahead, member, self.next.len())
    }

    /// Runs `work` for ranges that cover 0..parts, on this thread and on members that come.
    ///
    /// # Safety
    /// No other thread calls it, and `work` does not.
    pub unsafe fn run(&self, parts: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
        let threads = self.next.len();
        for (thread, next) in self.next.iter().enumerate() {
            next.0.store(parts * thread / threads, Ordering::Relaxed);
        }
        // SAFETY: the lifetime is only hidden: nobody is inside once `close` is over.
        let run: *const (dyn Fn(Range<usize>) + Sync) = unsafe { std::mem::transmute(work) };
        // SAFETY: the gate is closed and nobody inside.
        unsafe { *self.work.get() = Some(Work { run, parts }) };
        let number = self.gate.0.load(Ordering::Relaxed).wrapping_add(NUMBER);
        self.gate.0.store(number | OPEN, Ordering::Release);
        let own = catch_unwind(AssertUnwindSafe(|| self.take(0, parts, work)));
        self.close();
        let others = self.panic().take();
        if let Some(payload) = own.err().or(others) {
            resume_unwind(payload);
        }
    }

    fn panic(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the gate and waits for those inside.
    fn close(&self) {
        let mut gate = self.gate.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while gate & INSIDE != 0 {
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                // The member may be waiting for this very processor.
                std::thread::yield_now();
            }
            gate = self.gate.0.load(Ordering::Acquire);
        }
    }

    /// Works on what the leader has handed out, unless this member has: `seen` is its number. Whether
    /// there was any.
    pub fn assist(&self, member: usize, seen: &mut usize) -> bool {
        let mut gate = self.gate.0.load(Ordering::Acquire);
        loop {
            if gate & OPEN == 0 || gate / NUMBER == *seen {
                return false;
            }
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            let entered = self
                .gate
                .0
                .compare_exchange_weak(gate, gate + 1, success, failure);
            match entered {
                Ok(_) => break,
                Err(now) => gate = now,
            }
        }
        *seen = gate / NUMBER;
        // SAFETY: the gate was open, and is not left before this member has left.
        if let Some(work) = unsafe { *self.work.get() } {
            // SAFETY: `run` points to the leader's closure, which lives until the leader has closed the gate and
            // all members have left it; this member is inside.
            let run = unsafe { &*work.run };
            let ended = catch_unwind(AssertUnwindSafe(|| self.take(member, work.parts, run)));
            if let Err(payload) = ended {
                self.panic().get_or_insert(payload);
            }
        }
        self.gate.0.fetch_sub(1, Ordering::Release);
        true
    }

    /// The parts of a thread's share, half of what is left at a time so that others find small ones in the
    /// end, then those that the others have left.
    fn take(&self, thread: usize, parts: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
        let threads = self.next.len();
        for owner in (thread..threads).chain(0..thread) {
            let (next, end) = (&self.next[owner].0, parts * (owner + 1) / threads);
            loop {
                let left = end.saturating_sub(next.load(Ordering::Relaxed));
                let count = if owner == thread {
                    left.div_ceil(2)
                } else {
                    left.min(1)
                };
                if count == 0 {
                    break;
                }
                let first = next.fetch_add(count, Ordering::Relaxed);
                if first < end {
                    work(first..(first + count).min(end));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `lead` with members beside it until it ends.
    fn beside_members(members: usize, lead: impl FnOnce(&SpinPool)) {
        let spin_pool = SpinPool::new(members + 1);
        std::thread::scope(|scope| {
            for member in 1..=members {
                let spin_pool = &spin_pool;
                scope.spawn(move || {
                    spin_pool.attend(member, || {
                        let mut seen = usize::MAX;
                        while !spin_pool.is_over() {
                            spin_pool.assist(member, &mut seen);
                            std::hint::spin_loop();
                        }
                    });
                });
            }
            let ended = catch_unwind(AssertUnwindSafe(|| lead(&spin_pool)));
            spin_pool.dismiss();
            if let Err(payload) = ended {
                resume_unwind(payload);
            }
        });
        assert!(!spin_pool.has_members());
    }

    #[test]
    fn every_part_is_done_once_whoever_comes() {
        let rounds = if cfg!(miri) { 5 } else { 2000 };
        for members in [0, 1, 3] {
            beside_members(members, |spin_pool| {
                for parts in [1, 2, 7, 64].into_iter().cycle().take(rounds) {
                    let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                    // SAFETY: this thread alone leads, and the work hands nothing out.
                    unsafe {
                        spin_pool.run(parts, &|range| {
                            for times in &done[range] {
                                times.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                    }
                    assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
                }
            });
        }
    }

    #[test]
    fn a_panic_of_any_part_reaches_the_leader_and_the_team_goes_on() {
        let rounds = if cfg!(miri) { 2 } else { 50 };
        beside_members(2, |spin_pool| {
            for part_at_fault in (0..6).cycle().take(6 * rounds) {
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    let work = |parts: Range<usize>| {
                        assert!(!parts.contains(&part_at_fault), "on purpose");
                    };
                    // SAFETY: this thread alone leads, and the work hands nothing out.
                    unsafe { spin_pool.run(6, &work) };
                }));
                assert!(ended.is_err());
            }
            let sum = AtomicUsize::new(0);
            // SAFETY: this thread alone leads, and the work hands nothing out.
            unsafe {
                spin_pool.run(10, &|parts| {
                    sum.fetch_add(parts.sum(), Ordering::Relaxed);
                });
            }
            assert_eq!(sum.into_inner(), 45);
        });
    }
}
