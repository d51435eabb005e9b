//! The engine's own worker pool, rebuilt after `fork`.
//!
//! A forked child inherits the pool's memory but none of its threads, so work handed to an
//! inherited pool waits for ever. Every pool therefore remembers its process; rayon's global pool,
//! which can't be replaced, is never used.

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::LocalKey;
use std::time::Duration;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::autorelease::pooled;
pub use super::awake::{awake, hand_out, reads};
use super::cancel::CancelToken;
use super::job::{Ending, Job};
use super::places::Places;
use crate::{Error, Result};

struct Pool {
    process: u32,
    threads: usize,
    /// Empty once the pool is replaced: its threads end with the last call that has them. Only the
    /// process that made the pool looks here, since a fork may leave the lock taken.
    workers: Mutex<Option<Arc<ThreadPool>>>,
}

impl Pool {
    fn workers(&self) -> MutexGuard<'_, Option<Arc<ThreadPool>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a pool is for. A thread that waits for a part of its work runs other work of its pool
/// meanwhile. Long work has a pool of its own, else a short call would end only after another's long one.
#[derive(Clone, Copy)]
enum Use {
    /// Whole calls, and the parts of their operations.
    Calls,
    /// Batches of calls that have many.
    Batches,
}

/// The pools by their use. Where a replaced one was noted is never freed: another thread may be reading
/// the pointer, and a forked child must not drop a pool whose threads do not exist.
static CURRENT: [AtomicPtr<Pool>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
/// Calls that have the batches' pool at work.
pub(super) static BATCHING: AtomicUsize = AtomicUsize::new(0);
/// 0 stands for "as many as the machine has".
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// Makes candle's own pool, which can't be rebuilt after `fork` either, while it may still be made
/// without threads: its element-wise operations then run where they are called. To be called once,
/// while no other thread can look at the environment, which is candle's only setting for it.
pub fn init() {
    const SETTING: &str = "CANDLE_NUM_THREADS";
    let before = std::env::var_os(SETTING);
    std::env::set_var(SETTING, "1");
    candle_core::utils::barrier_pool();
    match before {
        Some(value) => std::env::set_var(SETTING, value),
        None => std::env::remove_var(SETTING),
    }
}

/// Reserved for a thread, and taken only as far as it is used.
const STACK: usize = 8 << 20;

/// How long a call waits where it found every thread in the midst of another.
const NEXT_TRY: Duration = Duration::from_micros(50);

/// Runs `work` with rayon's parallel iterators bound to the engine's pool.
///
/// A thread that waits for parts of its own call may run those of another, which are short, but
/// not another call: its own would end only after it. While every thread is busy, the call can be
/// interrupted where the thread is [`interruptible`].
pub fn install<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let (mut work, mut result) = (Some(work), None);
    run_in_pool(&mut || result = work.take().map(|work| work()))?;
    result.ok_or_else(|| Error::Internal("a call ended without a result".to_owned()))
}

/// Runs `work` once in the pool. Compiled once for all calls.
fn run_in_pool(work: &mut (dyn FnMut() + Send)) -> Result<()> {
    let pool = current(Use::Calls)?;
    if is_worker() {
        pool.install(work);
        return Ok(());
    }
    let cancel = interrupt();
    let job = Job::new(|| holding(&IN_CALL, || pooled(work)));
    loop {
        job.queue(&pool, || !IN_CALL.get());
        match job.wait(&cancel) {
            Ending::Over => break,
            Ending::Refused => {
                cancel.check()?;
                std::thread::sleep(NEXT_TRY);
            }
            Ending::TakenBack => return Err(Error::Interrupted),
        }
    }
    match job.take_panic() {
        Some(payload) => resume_unwind(payload),
        None => Ok(()),
    }
}

/// Whether this thread is one of a pool's.
pub fn is_worker() -> bool {
    rayon::current_thread_index().is_some()
}

/// Runs `work` while `cancel` also ends the waiting of this thread for the pool.
pub fn interruptible<T>(cancel: &CancelToken, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<CancelToken>);
    impl Drop for Restore {
        fn drop(&mut self) {
            INTERRUPT.replace(self.0.take());
        }
    }
    let _restore = Restore(INTERRUPT.replace(Some(cancel.clone())));
    work()
}

fn interrupt() -> CancelToken {
    INTERRUPT.with_borrow(|cancel| cancel.clone().unwrap_or_default())
}

thread_local! {
    static INTERRUPT: RefCell<Option<CancelToken>> = const { RefCell::new(None) };
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on this thread alone: the kernels in it hand nothing to the pool. For work of which
/// there is enough to keep every thread busy with a piece of its own.
pub fn alone<T>(work: impl FnOnce() -> T) -> T {
    holding(&ALONE, work)
}

/// Runs `work` while the flag is set, and restores it, whatever happens.
fn holding<T>(flag: &'static LocalKey<Cell<bool>>, work: impl FnOnce() -> T) -> T {
    struct Restore(&'static LocalKey<Cell<bool>>, bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _restore = Restore(flag, flag.replace(true));
    work()
}

pub fn is_alone() -> bool {
    ALONE.get()
}

/// Runs `work` for 0..count, side by side on as many threads, each of them `alone`. The first error
/// ends it.
pub fn side_by_side(count: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    struct Batching;
    impl Drop for Batching {
        fn drop(&mut self) {
            BATCHING.fetch_sub(1, Ordering::AcqRel);
        }
    }
    let pool = current(Use::Batches)?;
    BATCHING.fetch_add(1, Ordering::AcqRel);
    let _batching = Batching;
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let take_turns = || loop {
        let turn = next.fetch_add(1, Ordering::Relaxed);
        if turn >= count {
            return;
        }
        if let Err(error) = pooled(|| work(turn)) {
            next.store(count, Ordering::Relaxed);
            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(error);
        }
    };
    let cancel = interrupt();
    let places = Places::new(pool.current_num_threads());
    let take_part = || {
        if let Some(thread) = rayon::current_thread_index() {
            places.settle(thread);
        }
        alone(take_turns);
    };
    let jobs: Vec<Job<'_>> = (0..pool.current_num_threads().min(count))
        .map(|_| Job::new(take_part))
        .collect();
    jobs.iter().for_each(|job| job.queue(&pool, || true));
    // One that was taken back leaves its turns to those that run; they see the interrupt themselves.
    let endings: Vec<Ending> = jobs.iter().map(|job| job.wait(&cancel)).collect();
    if let Some(payload) = jobs.iter().find_map(Job::take_panic) {
        resume_unwind(payload);
    }
    drop(jobs);
    if !endings.contains(&Ending::Over) && count > 0 {
        return Err(Error::Interrupted);
    }
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), Err)
}

/// `work` of every item with its index, in parallel; the results in the items' order.
pub fn map<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(usize, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    match items {
        [item] => Ok(vec![work(0, item)?]),
        _ => install(|| {
            let items = items.par_iter().enumerate();
            let worked = items.map(|(index, item)| pooled(|| work(index, item)));
            worked.collect()
        })?,
    }
}

/// How many threads work on one call.
pub fn count() -> usize {
    match WANTED.load(Ordering::Acquire) {
        0 => default_count(),
        wanted => wanted,
    }
}

/// Sets the number of threads for the calls that start from now on.
pub fn set_count(count: usize) -> Result<()> {
    if count == 0 || count > 1024 {
        return Err(Error::InvalidInput(format!(
            "the number of threads must be between 1 and 1024, not {count}"
        )));
    }
    WANTED.store(count, Ordering::Release);
    Ok(())
}

/// What the environment or the machine says, asked once: the answer takes files of the control group to
/// be read, and every kernel wants to know it. No lock, which a fork could leave held.
fn default_count() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            let count = asked_count();
            KNOWN.store(count, Ordering::Relaxed);
            count
        }
        known => known,
    }
}

fn asked_count() -> usize {
    let set = |name: &str| {
        let count = std::env::var(name).ok()?.parse().ok()?;
        (1..=1024).contains(&count).then_some(count)
    };
    set("CANDLE_NUM_THREADS")
        .or_else(|| set("RAYON_NUM_THREADS"))
        .or_else(|| std::thread::available_parallelism().map(usize::from).ok())
        .unwrap_or(1)
}

fn current(purpose: Use) -> Result<Arc<ThreadPool>> {
    let (wanted, current) = (count(), &CURRENT[purpose as usize]);
    loop {
        let seen = current.load(Ordering::Acquire);
        // SAFETY: the pointer is null or a pool that `Box::into_raw` made; a published pool is never freed.
        if let Some(pool) = unsafe { seen.as_ref() } {
            if pool.process == std::process::id() && pool.threads == wanted {
                if let Some(workers) = pool.workers().clone() {
                    return Ok(workers);
                }
            }
        }
        let workers = ThreadPoolBuilder::new()
            .num_threads(wanted)
            .stack_size(STACK)
            .thread_name(|index| format!("red-candle-{index}"))
            .build()
            .map_err(|error| Error::Internal(format!("cannot start worker threads: {error}")))?;
        let fresh = Box::into_raw(Box::new(Pool {
            process: std::process::id(),
            threads: wanted,
            workers: Mutex::new(Some(Arc::new(workers))),
        }));
        match current.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the pointer is null or a pool that `Box::into_raw` made; a published pool is never freed.
            Ok(replaced) => match unsafe { replaced.as_ref() } {
                Some(pool) if pool.process == std::process::id() => drop(pool.workers().take()),
                _ => {}
            },
            // SAFETY: `fresh` was not published, so this thread is its only owner.
            Err(_) => drop(unsafe { Box::from_raw(fresh) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_runs_in_the_engines_pool() {
        let name = install(|| std::thread::current().name().map(str::to_owned)).unwrap();
        assert!(name.unwrap().starts_with("red-candle-"));
    }

    #[test]
    fn alone_holds_for_the_work_and_ends_with_a_panic() {
        assert!(!is_alone());
        assert!(alone(|| alone(is_alone) && is_alone()));
        let panicked = std::panic::catch_unwind(|| alone(|| panic!("on purpose")));
        assert!(panicked.is_err() && !is_alone());
    }

    #[test]
    fn batches_run_once_each_and_the_first_error_ends_them() {
        let seen: Vec<_> = (0..500).map(|_| AtomicUsize::new(0)).collect();
        let count = |turn: usize| {
            assert!(is_alone());
            seen[turn].fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        install(|| side_by_side(seen.len(), count))
            .unwrap()
            .unwrap();
        assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 1));
        let fail = |turn: usize| match turn {
            7 => Err(Error::Interrupted),
            _ => Ok(()),
        };
        let failed = side_by_side(1_000_000_000, fail);
        assert!(matches!(failed, Err(Error::Interrupted)));
        let panicked = std::panic::catch_unwind(|| side_by_side(3, |_| panic!("on purpose")));
        assert!(panicked.is_err());
        side_by_side(0, fail).unwrap();
    }

    #[test]
    fn a_short_call_does_not_wait_for_long_batches() {
        let over = Arc::new(AtomicBool::new(false));
        let (long, waited) = (over.clone(), over.clone());
        let bulk = std::thread::spawn(move || {
            let batch = |_| {
                let started = Instant::now();
                while !long.load(Ordering::Acquire) && started.elapsed() < Duration::from_secs(20) {
                    std::thread::yield_now();
                }
                Ok(())
            };
            install(|| side_by_side(count(), batch))
        });
        while BATCHING.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let sum = install(|| awake(|| (0..10_000u64).into_par_iter().sum::<u64>()));
        assert_eq!(sum.unwrap(), 49_995_000);
        assert!(!waited.swap(true, Ordering::AcqRel));
        bulk.join().unwrap().unwrap().unwrap();
    }

    #[test]
    fn a_call_that_waits_for_its_parts_does_not_begin_another() {
        let (stolen, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let wait_for = |flag: &AtomicBool, limit: Duration| {
            let started = Instant::now();
            while !flag.load(Ordering::Acquire) && started.elapsed() < limit {
                std::thread::yield_now();
            }
            flag.load(Ordering::Acquire)
        };
        let part = || {
            stolen.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(200));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let limit = Duration::from_secs(10);
                install(|| rayon::join(|| wait_for(&stolen, limit), part)).unwrap();
                over.store(true, Ordering::Release);
            });
            wait_for(&stolen, Duration::from_secs(10));
            let seen = install(|| wait_for(&over, Duration::from_secs(5)));
            assert!(count() == 1 || seen.unwrap());
        });
    }

    #[test]
    fn waiting_for_the_pool_is_interruptible() {
        let over = AtomicBool::new(false);
        let wait = || {
            let started = Instant::now();
            while !over.load(Ordering::Acquire) && started.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let cancel = CancelToken::new();
        std::thread::scope(|scope| {
            for _ in 0..count() {
                scope.spawn(|| install(wait));
            }
            std::thread::sleep(Duration::from_millis(100));
            let waiting = scope.spawn(|| {
                let started = Instant::now();
                let result = interruptible(&cancel, || install(|| ()));
                (result, started.elapsed())
            });
            std::thread::sleep(Duration::from_millis(50));
            cancel.cancel();
            let (result, elapsed) = waiting.join().unwrap();
            over.store(true, Ordering::Release);
            assert!(matches!(result, Err(Error::Interrupted)));
            assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
        });
        assert_eq!(install(|| 7).unwrap(), 7);
    }

    #[test]
    fn calls_that_keep_threads_awake_do_not_wait_for_each_other() {
        let sum = || {
            awake(|| {
                (0..200).fold(0, |total, _| {
                    total + (0..64u32).into_par_iter().with_max_len(1).sum::<u32>()
                })
            })
        };
        let calls: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(move || install(|| (0..20).map(|_| sum()).sum::<u32>())))
            .collect();
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap(), 20 * 200 * 2016);
        }
        let panicked = install(|| std::panic::catch_unwind(|| awake(|| panic!("on purpose"))));
        assert!(panicked.unwrap().is_err());
        assert_eq!(install(sum).unwrap(), 200 * 2016);
    }

    #[test]
    #[cfg(unix)]
    fn a_forked_child_gets_a_pool_that_works() {
        let sum = || install(|| (0..10_000u64).into_par_iter().sum::<u64>());
        assert_eq!(sum().unwrap(), 49_995_000);
        // SAFETY: the child only computes and leaves through _exit.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                libc::_exit(i32::from(sum().ok() != Some(49_995_000)));
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            assert_eq!(status, 0);
        }
    }
}
