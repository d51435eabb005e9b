//! Leader and followers: of the threads that wait for requests one computes, step by step, for all. There is no
//! thread beside theirs.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{CancelToken, Error, Result};
use base::runtime::threads;

/// How often a waiting thread looks for an interrupt.
const LOOK: Duration = Duration::from_millis(10);
/// How many pieces of text may wait for a thread that is busy elsewhere before its request pauses.
const AHEAD: usize = 4;

/// A request that threads share: the one that wants it, and those that compute it.
pub struct Request<W> {
    pub(crate) number: u64,
    /// Goes with the table's lock.
    changed: Condvar,
    state: Mutex<W>,
}

impl<W> Request<W> {
    /// Nothing panics while it holds this lock half-changed, so poison tells nothing.
    pub fn state(&self) -> MutexGuard<'_, W> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All requests to one model that are not over.
pub(crate) struct Table<W> {
    inner: Mutex<Inner<W>>,
}

pub(crate) struct Inner<W> {
    /// In the order of their arrival, which is that of their numbers.
    pub slots: Vec<Slot<W>>,
    next_number: u64,
    /// Whether a thread computes.
    led: bool,
    /// Requests that were left, whose memory is to be released.
    gone: Vec<Arc<Request<W>>>,
    /// Whether idle pages of the prefix cache are to be evicted.
    forgets: bool,
}

pub(crate) struct Slot<W> {
    pub request: Arc<Request<W>>,
    /// Whether pieces are wanted as they come, or the end alone.
    streams: bool,
    pieces: VecDeque<String>,
    ended: Option<Result<()>>,
    /// Whether its thread waits here.
    waits: bool,
    /// Whether others have taken its pages, and it has said nothing since.
    preempted: bool,
}

/// A request as a step finds it.
pub(crate) struct Active<W> {
    pub request: Arc<Request<W>>,
    /// Whether a step may go on with it.
    pub goes_on: bool,
    /// Whether somebody takes its pieces as they come.
    pub streams: bool,
}

impl<W> Slot<W> {
    fn is_ready(&self) -> bool {
        !self.pieces.is_empty() || self.ended.is_some()
    }

    /// Whether a step may go on with it. One that was preempted computes much of what it had again, and does
    /// so when its caller has read everything.
    fn goes_on(&self) -> bool {
        let ahead = if self.preempted { 1 } else { AHEAD };
        self.ended.is_none() && (!self.streams || self.pieces.len() < ahead)
    }

    /// Gives its thread pieces and, where it is over, the end.
    fn tell(&mut self, said: impl IntoIterator<Item = String>, ended: Option<Result<()>>) {
        let mut said = said.into_iter().peekable();
        self.preempted &= said.peek().is_none();
        if self.streams {
            self.pieces.extend(said);
        }
        if ended.is_some() {
            self.ended = ended;
        }
        if self.is_ready() {
            self.request.changed.notify_all();
        }
    }
}

impl<W> Inner<W> {
    pub fn position(&self, request: &Request<W>) -> Option<usize> {
        let number = |slot: &Slot<W>| slot.request.number;
        self.slots
            .binary_search_by_key(&request.number, number)
            .ok()
    }

    fn slot(&mut self, request: &Request<W>) -> Result<&mut Slot<W>> {
        match self.position(request) {
            Some(at) => Ok(&mut self.slots[at]),
            None => Err(Error::Generation("this generation has ended".to_owned())),
        }
    }

    /// How many are not over.
    fn live(&self) -> usize {
        let live = self.slots.iter().filter(|slot| slot.ended.is_none());
        live.count()
    }
}

#[cfg(test)]
thread_local! {
    /// How many tables this thread has made; every scheduler has one.
    pub(crate) static TABLES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl<W> Default for Table<W> {
    fn default() -> Self {
        #[cfg(test)]
        TABLES.set(TABLES.get() + 1);
        Self {
            inner: Mutex::new(Inner {
                next_number: 0,
                slots: Vec::new(),
                led: false,
                gone: Vec::new(),
                forgets: false,
            }),
        }
    }
}

impl<W> Table<W> {
    /// Nothing panics while it holds this lock half-changed, so poison tells nothing.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner<W>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every request in the order of arrival.
    pub(crate) fn requests(&self) -> Vec<Active<W>> {
        let inner = self.lock();
        let slots = inner.slots.iter();
        slots
            .map(|slot| Active {
                request: slot.request.clone(),
                goes_on: slot.goes_on(),
                streams: slot.streams,
            })
            .collect()
    }

    pub(crate) fn live(&self) -> usize {
        self.lock().live()
    }

    /// Whether somebody still wants a request.
    pub(crate) fn has(&self, request: &Request<W>) -> bool {
        self.lock().position(request).is_some()
    }

    /// Takes note that others have taken a request's pages.
    pub(crate) fn preempt(&self, request: &Request<W>) {
        if let Ok(slot) = self.lock().slot(request) {
            slot.preempted = true;
        }
    }

    /// Gives a request's thread what there is, and the end where it has come.
    pub(crate) fn tell(
        &self,
        request: &Request<W>,
        said: impl IntoIterator<Item = String>,
        ended: Option<Result<()>>,
    ) {
        if let Ok(slot) = self.lock().slot(request) {
            slot.tell(said, ended);
        }
    }
}

/// What computes requests, step by step.
pub(crate) trait Leader: Sized {
    /// What a scheduler knows of a request.
    type State: 'static;
    /// What a step needs beside the requests.
    type Shared: 'static;

    fn table(&self) -> &Table<Self::State>;

    /// The leader has it.
    fn shared(&self) -> MutexGuard<'_, Self::Shared>;

    /// Computes what can be computed now for all, in one step, and hands it on; whether there was
    /// anything. `own` is a request of the thread that computes. After an interrupt everything is as before.
    fn step(
        &self,
        shared: &mut Self::Shared,
        own: &Request<Self::State>,
        cancel: &CancelToken,
    ) -> Result<bool>;

    /// Takes back what a request has that leaves.
    fn release(&self, shared: &mut Self::Shared, state: &mut Self::State);

    /// Evicts idle pages of the prefix cache.
    fn forget(&self, shared: &mut Self::Shared);

    /// Takes note of how many requests are not over.
    fn note_live(&self, live: usize);

    /// A request joins the others; from now on it is computed with them, unless it is over before it begins.
    fn join(&self, state: Self::State, is_over: bool) -> Arc<Request<Self::State>> {
        let mut inner = self.table().lock();
        let request = Arc::new(Request {
            number: inner.next_number,
            changed: Condvar::new(),
            state: Mutex::new(state),
        });
        inner.next_number += 1;
        inner.slots.push(Slot {
            request: request.clone(),
            streams: true,
            pieces: VecDeque::new(),
            ended: is_over.then_some(Ok(())),
            waits: false,
            preempted: false,
        });
        self.note_live(inner.live());
        request
    }

    /// A request leaves, whether it is over or not.
    fn leave(&self, request: &Request<Self::State>) {
        let mut inner = self.table().lock();
        let Some(at) = inner.position(request) else {
            return;
        };
        let slot = inner.slots.remove(at);
        inner.gone.push(slot.request);
        self.note_live(inner.live());
        self.give_back_soon(inner);
    }

    /// Evicts idle pages of the prefix cache: at once, or after the current step.
    fn forget_idle(&self) {
        let mut inner = self.table().lock();
        inner.forgets = true;
        self.give_back_soon(inner);
    }

    /// The leader gives back what is to be given back; where nobody does, this thread, which then has
    /// what is shared for a moment only.
    fn give_back_soon(&self, mut inner: MutexGuard<'_, Inner<Self::State>>) {
        if !inner.led {
            inner.led = true;
            drop(inner);
            drop(Leadership(self));
        }
    }

    /// The next piece of a request, `None` once it is over. Until it is there, this thread computes where no
    /// other does.
    fn next(&self, request: &Request<Self::State>, cancel: &CancelToken) -> Result<Option<String>> {
        self.wait(request, true, cancel)
    }

    /// Waits for the end of a request, of whose pieces none is wanted any more.
    fn finish(&self, request: &Request<Self::State>, cancel: &CancelToken) -> Result<()> {
        self.wait(request, false, cancel).map(|_| ())
    }

    /// Waits until at least one of several requests is over, and says which are.
    fn finish_any(
        &self,
        requests: &[&Request<Self::State>],
        cancel: &CancelToken,
    ) -> Result<Vec<usize>> {
        let Some(first) = requests.first() else {
            return Ok(Vec::new());
        };
        let mut inner = self.table().lock();
        loop {
            let mut over = Vec::new();
            for (at, request) in requests.iter().enumerate() {
                let slot = inner.slot(request)?;
                slot.streams = false;
                slot.pieces.clear();
                if slot.ended.is_some() {
                    over.push(at);
                }
            }
            if !over.is_empty() {
                return Ok(over);
            }
            cancel.check()?;
            let is_over = |inner: &Inner<Self::State>, request: &Request<Self::State>| {
                let at = inner.position(request);
                at.is_none_or(|at| inner.slots[at].ended.is_some())
            };
            let any_over =
                |inner: &Inner<Self::State>| requests.iter().any(|request| is_over(inner, request));
            inner = self.turn(inner, first, cancel, any_over)?;
        }
    }

    fn wait(
        &self,
        request: &Request<Self::State>,
        streams: bool,
        cancel: &CancelToken,
    ) -> Result<Option<String>> {
        let mut inner = self.table().lock();
        loop {
            let slot = inner.slot(request)?;
            slot.streams = streams;
            if !streams {
                slot.pieces.clear();
            }
            if let Some(piece) = slot.pieces.pop_front() {
                return Ok(Some(piece));
            }
            match &mut slot.ended {
                Some(Ok(())) => return Ok(None),
                Some(failed) => return std::mem::replace(failed, Ok(())).map(|()| None),
                None => {}
            }
            cancel.check()?;
            inner = self.turn(inner, request, cancel, |inner| {
                let at = inner.position(request);
                at.is_none_or(|at| inner.slots[at].is_ready())
            })?;
        }
    }

    /// Computes until `is_ready`, or waits a while for the thread that does.
    fn turn<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner<Self::State>>,
        request: &Request<Self::State>,
        cancel: &CancelToken,
        is_ready: impl Fn(&Inner<Self::State>) -> bool,
    ) -> Result<MutexGuard<'a, Inner<Self::State>>> {
        // The thread that computes may wait for a part that this one has put aside for this call.
        if threads::is_worker() {
            return Err(Error::Internal(
                "a thread of the pool must not wait for texts that need the pool".to_owned(),
            ));
        }
        if !inner.led {
            inner.led = true;
            drop(inner);
            let leadership = Leadership(self);
            let led = self.lead(cancel, request, is_ready);
            drop(leadership);
            if led? {
                return Ok(self.table().lock());
            }
            inner = self.table().lock();
        }
        inner.slot(request)?.waits = true;
        let waited = request.changed.wait_timeout(inner, LOOK);
        inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        inner.slot(request)?.waits = false;
        Ok(inner)
    }

    /// One step after the other until `is_ready`; false where there is nothing that could be computed now.
    fn lead(
        &self,
        cancel: &CancelToken,
        own: &Request<Self::State>,
        is_ready: impl Fn(&Inner<Self::State>) -> bool,
    ) -> Result<bool> {
        let mut shared = self.shared();
        loop {
            cancel.check()?;
            self.give_back(&mut shared);
            let computes = self.step(&mut shared, own, cancel)?;
            if is_ready(&self.table().lock()) {
                return Ok(true);
            }
            if !computes {
                return Ok(false);
            }
        }
    }

    /// Takes what requests have that have left, and what shall be forgotten.
    fn give_back(&self, shared: &mut Self::Shared) {
        let (gone, forgets) = {
            let mut inner = self.table().lock();
            (
                std::mem::take(&mut inner.gone),
                std::mem::take(&mut inner.forgets),
            )
        };
        for request in gone {
            self.release(shared, &mut request.state());
        }
        if forgets {
            self.forget(shared);
        }
    }
}

/// The right to compute, until it is dropped; then another thread that waits takes over.
struct Leadership<'a, T: Leader>(&'a T);

impl<T: Leader> Drop for Leadership<'_, T> {
    fn drop(&mut self) {
        let Self(leader) = self;
        loop {
            leader.give_back(&mut leader.shared());
            let mut inner = leader.table().lock();
            if inner.gone.is_empty() && !inner.forgets {
                inner.led = false;
                let mut waiting = inner.slots.iter().filter(|slot| slot.waits);
                if let Some(next) = waiting.find(|slot| !slot.is_ready()) {
                    next.request.changed.notify_one();
                }
                return;
            }
        }
    }
}

/// The outcome of `work`, which becomes an error with this message where it panics: the thread that
/// computes does so for others, too.
pub(crate) fn caught<T>(message: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::Internal(message.to_owned())))
}

/// A run belongs to the process that began it.
pub(crate) fn check_process(process: u32) -> Result<()> {
    if process == std::process::id() {
        Ok(())
    } else {
        Err(Error::Generation(
            "this run was begun before the process was forked: begin a new one in the child"
                .to_owned(),
        ))
    }
}
