//! Work that waits in a pool's queue, and can be taken back until it begins.

use std::any::Any;
use std::marker::PhantomData;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rayon::ThreadPool;

use super::cancel::CancelToken;

/// How often an interrupt is looked for while the work waits for its turn.
const LOOK: Duration = Duration::from_millis(10);

type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    /// A thread that may not begin it had its turn.
    Refused,
    Running,
    Over,
}

/// How waiting for a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Over,
    /// Nothing ran; the job may be queued again.
    Refused,
    /// Nothing ran, and nothing will.
    TakenBack,
}

/// A job that borrows from the thread that owns it.
pub struct Job<'a> {
    shared: Arc<Shared>,
    borrowed: PhantomData<&'a mut &'a ()>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    phase: Phase,
    work: Option<Work<'static>>,
    panic: Option<Box<dyn Any + Send>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn of a thread of the pool.
    fn run(&self, may_begin: bool) {
        let mut state = self.lock();
        if !may_begin {
            state.phase = Phase::Refused;
            self.changed.notify_all();
            return;
        }
        let Some(work) = state.work.take() else {
            return;
        };
        state.phase = Phase::Running;
        drop(state);
        let result = catch_unwind(AssertUnwindSafe(work));
        let mut state = self.lock();
        state.panic = result.err();
        state.phase = Phase::Over;
        self.changed.notify_all();
    }
}

impl<'a> Job<'a> {
    pub fn new(work: impl FnOnce() + Send + 'a) -> Self {
        let work: Work<'a> = Box::new(work);
        // SAFETY: only the lifetime changes. The work is over or dropped when this job is dropped, and
        // the job does not outlive 'a, so nothing that the work borrows is used later.
        let work = unsafe { std::mem::transmute::<Work<'a>, Work<'static>>(work) };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    phase: Phase::Waiting,
                    work: Some(work),
                    panic: None,
                }),
                changed: Condvar::new(),
            }),
            borrowed: PhantomData,
        }
    }

    /// Queues the job; `may_begin` is asked on the thread whose turn it is.
    pub fn queue(&self, pool: &ThreadPool, may_begin: fn() -> bool) {
        self.shared.lock().phase = Phase::Waiting;
        let shared = self.shared.clone();
        pool.spawn(move || shared.run(may_begin()));
    }

    /// Waits until the job is over, or was refused, or is interrupted before it began.
    pub fn wait(&self, cancel: &CancelToken) -> Ending {
        let mut state = self.shared.lock();
        loop {
            match state.phase {
                Phase::Over => return Ending::Over,
                Phase::Refused => return Ending::Refused,
                Phase::Waiting if cancel.is_cancelled() => {
                    state.work = None;
                    state.phase = Phase::Over;
                    return Ending::TakenBack;
                }
                Phase::Waiting | Phase::Running => {}
            }
            let waited = self.shared.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What the work panicked with.
    pub fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.shared.lock().panic.take()
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.work = None;
        while state.phase == Phase::Running {
            let waited = self.shared.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::ThreadPoolBuilder;

    #[test]
    fn a_job_is_run_refused_or_taken_back() {
        let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let cancel = CancelToken::new();
        let mut count = 0;
        let job = Job::new(|| count += 1);
        job.queue(&pool, || false);
        assert_eq!(job.wait(&cancel), Ending::Refused);
        job.queue(&pool, || true);
        assert_eq!(job.wait(&cancel), Ending::Over);
        drop(job);
        let job = Job::new(|| count += 1);
        cancel.cancel();
        assert_eq!(job.wait(&cancel), Ending::TakenBack);
        job.queue(&pool, || true);
        drop(job);
        assert_eq!(count, 1);
        let job = Job::new(|| panic!("on purpose"));
        job.queue(&pool, || true);
        assert_eq!(job.wait(&CancelToken::new()), Ending::Over);
        assert!(job.take_panic().is_some());
    }
}
