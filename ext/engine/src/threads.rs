//! The engine's own worker pool, rebuilt after `fork`.
//!
//! A forked child inherits the pool's memory but none of its threads, so work handed to an
//! inherited pool waits for ever. Every pool therefore remembers its process; rayon's global pool,
//! which can't be replaced, is never used.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{Error, Result};

struct Pool {
    process: u32,
    workers: Arc<ThreadPool>,
}

/// Replaced pools are never freed: another thread may be reading the pointer, and a forked child
/// must not drop a pool whose threads do not exist. There is one per fork or resize.
static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());
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

/// Runs `work` with rayon's parallel iterators bound to the engine's pool.
pub fn install<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    Ok(current()?.install(work))
}

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on this thread alone: the kernels in it hand nothing to the pool. For work of which
/// there is enough to keep every thread busy with a piece of its own.
pub fn alone<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _restore = Restore(ALONE.replace(true));
    work()
}

pub fn is_alone() -> bool {
    ALONE.get()
}

/// The process that keeps its threads awake; 0 for none. One call at a time has them, so that no two
/// wait for each other's threads.
static AWAKE: AtomicU32 = AtomicU32::new(0);
/// How long a thread waits for the next part of the work before it may sleep.
const PATIENCE: Duration = Duration::from_micros(200);

/// Runs `work`, many short parts of which go to the pool one after the other, while the pool's threads
/// stay awake: waking one takes longer than many a part.
pub fn awake<T>(work: impl FnOnce() -> T) -> T {
    struct Awake(Arc<AtomicBool>);
    impl Drop for Awake {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
            AWAKE.store(0, Ordering::Release);
        }
    }
    let Some(caller) = rayon::current_thread_index() else {
        return work();
    };
    if is_alone() || rayon::current_num_threads() == 1 || !take_awake() {
        return work();
    }
    let over = Arc::new(AtomicBool::new(false));
    let _awake = Awake(over.clone());
    rayon::spawn_broadcast(move |thread| {
        if thread.index() != caller {
            wait_for_work(&over);
        }
    });
    work()
}

fn take_awake() -> bool {
    let (process, before) = (std::process::id(), AWAKE.load(Ordering::Acquire));
    before != process
        && AWAKE
            .compare_exchange(before, process, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
}

/// Takes on what the pool has to do until it is `over`, or long in coming.
fn wait_for_work(over: &AtomicBool) {
    let mut idle_since = Instant::now();
    while !over.load(Ordering::Acquire) {
        match rayon::yield_now() {
            Some(rayon::Yield::Executed) => idle_since = Instant::now(),
            _ if idle_since.elapsed() > PATIENCE => return,
            _ => std::hint::spin_loop(),
        }
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

fn default_count() -> usize {
    std::env::var("RAYON_NUM_THREADS")
        .ok()
        .and_then(|value| value.parse().ok())
        .filter(|&count| (1..=1024).contains(&count))
        .or_else(|| std::thread::available_parallelism().map(usize::from).ok())
        .unwrap_or(1)
}

fn current() -> Result<Arc<ThreadPool>> {
    let wanted = count();
    loop {
        let seen = CURRENT.load(Ordering::Acquire);
        // SAFETY: a published pool is never freed.
        if let Some(pool) = unsafe { seen.as_ref() } {
            if pool.process == std::process::id() && pool.workers.current_num_threads() == wanted {
                return Ok(pool.workers.clone());
            }
        }
        let workers = ThreadPoolBuilder::new()
            .num_threads(wanted)
            .thread_name(|index| format!("red-candle-{index}"))
            .build()
            .map_err(|error| Error::Internal(format!("cannot start worker threads: {error}")))?;
        let fresh = Box::into_raw(Box::new(Pool {
            process: std::process::id(),
            workers: Arc::new(workers),
        }));
        if CURRENT
            .compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: `fresh` was not published, so this thread is its only owner.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

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
