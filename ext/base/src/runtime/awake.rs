//! Threads that stay awake while a call hands out many short parts of its work.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::prefetch::{Prefetch, Span};
use super::spin_pool::SpinPool;
use super::threads::{is_alone, BATCHING};

thread_local! {
    /// The spinning threads that this thread leads, unless it has just handed it something.
    static SPIN_POOL: Cell<Option<Arc<SpinPool>>> = const { Cell::new(None) };
    /// When this thread last called the threads that it leads, and whether it has made room for them since.
    static CALLED: Cell<Option<(Instant, bool)>> = const { Cell::new(None) };
}

/// The process that keeps its threads awake; 0 for none. One call at a time has them, so that no two
/// wait for each other's threads.
static AWAKE: AtomicU32 = AtomicU32::new(0);
/// How long a thread waits for the next part of the work before it may sleep.
const PATIENCE: Duration = Duration::from_micros(200);
/// How long a thread takes to wake on a processor that is free.
const ARRIVAL: Duration = Duration::from_micros(50);

/// How often a thread looks for work of its spin pool before it looks for that of others.
const LOOKS: usize = 32;

/// Runs `work`, many short parts of which are handed out one after the other, while the pool's threads
/// stay awake: waking one takes longer than many a part.
pub fn awake<T>(work: impl FnOnce() -> T) -> T {
    struct Awake(Arc<SpinPool>);
    impl Drop for Awake {
        fn drop(&mut self) {
            SPIN_POOL.set(None);
            self.0.dismiss();
            // SAFETY: this guard is dropped on the leading thread, which alone calls `take` and `end`.
            unsafe { self.0.course.end() };
            AWAKE.store(0, Ordering::Release);
        }
    }
    let (Some(caller), threads) = (rayon::current_thread_index(), rayon::current_num_threads())
    else {
        return work();
    };
    let crowded = BATCHING.load(Ordering::Acquire) > 0;
    if is_alone() || crowded || threads == 1 || !take_awake() {
        return work();
    }
    let spin_pool = Arc::new(SpinPool::new(threads));
    let _awake = Awake(spin_pool.clone());
    SPIN_POOL.set(Some(spin_pool.clone()));
    call_members(&spin_pool, (caller, threads));
    work()
}

/// Has the pool's threads take work of a spin pool, those that don't yet.
fn call_members(spin_pool: &Arc<SpinPool>, (caller, threads): (usize, usize)) {
    let spin_pool = spin_pool.clone();
    rayon::spawn_broadcast(move |thread| {
        let member = (thread.index() + threads - caller) % threads;
        if member > 0 && !spin_pool.is_over() {
            spin_pool.attend(member, || wait_for_work(&spin_pool, member));
        }
    });
    CALLED.set(Some((Instant::now(), false)));
}

/// Members leave when work is long in coming, and are called again when there is some. One that was woken on the
/// leader's processor can only move away once it runs: the leader lets it, once.
fn recall_members(spin_pool: &Arc<SpinPool>) {
    let (Some(caller), threads) = (rayon::current_thread_index(), rayon::current_num_threads())
    else {
        return;
    };
    match CALLED.get() {
        Some((called, _)) if called.elapsed() < ARRIVAL => {}
        Some((called, false)) => {
            CALLED.set(Some((called, true)));
            std::thread::yield_now();
        }
        Some((called, true)) if called.elapsed() < PATIENCE => {}
        _ => call_members(spin_pool, (caller, threads)),
    }
}

/// Says what this thread and those that it keeps awake read next, each its share.
pub fn reads(span: Span) {
    let spin_pool = SPIN_POOL.take();
    if let Some(spin_pool) = &spin_pool {
        // SAFETY: `SPIN_POOL` is set on the leading thread alone, which is the only one that takes spans.
        unsafe { spin_pool.course.take(span) };
    }
    SPIN_POOL.set(spin_pool);
}

/// Runs `work` for ranges that cover 0..parts on this thread and those that it keeps awake; `false`, and
/// nothing done, where there are none.
pub fn hand_out(parts: usize, work: &(dyn Fn(Range<usize>) + Sync)) -> bool {
    struct Restore(Option<Arc<SpinPool>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SPIN_POOL.set(self.0.take());
        }
    }
    let spin_pool = Restore(SPIN_POOL.take());
    if let Some(spin_pool) = spin_pool.0.as_ref().filter(|pool| pool.lacks_members()) {
        recall_members(spin_pool);
    }
    match &spin_pool.0 {
        Some(spin_pool) if spin_pool.has_members() => {
            // SAFETY: this thread leads the spin pool, which `work` does not find here.
            unsafe { spin_pool.run(parts, work) };
            true
        }
        _ => false,
    }
}

fn take_awake() -> bool {
    let (process, before) = (std::process::id(), AWAKE.load(Ordering::Acquire));
    before != process
        && AWAKE
            .compare_exchange(before, process, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
}

/// Takes on what the spin pool or the thread pool has to do until it is over, or long in coming.
fn wait_for_work(spin_pool: &SpinPool, member: usize) {
    let (mut seen, mut number) = (usize::MAX, spin_pool.number());
    let (mut idle_since, mut looks) = (Instant::now(), 0);
    let mut ahead = Prefetch::default();
    while !spin_pool.is_over() {
        if spin_pool.assist(member, &mut seen) {
            continue;
        }
        looks += 1;
        if looks % LOOKS > 0 {
            if !spin_pool.prefetch(member, &mut ahead) {
                std::hint::spin_loop();
            }
            continue;
        }
        let executed = matches!(rayon::yield_now(), Some(rayon::Yield::Executed));
        // Work that others did while this thread was kept from it counts too.
        if executed || spin_pool.number() != number {
            (number, idle_since) = (spin_pool.number(), Instant::now());
        } else if idle_since.elapsed() > PATIENCE {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::threads::{count, install};

    #[test]
    fn threads_that_left_for_lack_of_work_are_called_again() {
        if count() == 1 {
            return;
        }
        let tried = || {
            install(|| {
                awake(|| {
                    // Another test may have the threads.
                    let spin_pool = SPIN_POOL.take()?;
                    SPIN_POOL.set(Some(spin_pool.clone()));
                    let wait_until = |there: bool, hand: bool| {
                        let start = Instant::now();
                        while spin_pool.has_members() != there {
                            assert!(start.elapsed() < Duration::from_secs(10), "{there}");
                            if hand {
                                hand_out(4, &|_| {});
                            }
                            std::thread::yield_now();
                        }
                    };
                    wait_until(true, true);
                    wait_until(false, false);
                    wait_until(true, true);
                    Some(())
                })
            })
        };
        let start = Instant::now();
        while tried().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
    }
}
