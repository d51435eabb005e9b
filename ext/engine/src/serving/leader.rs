//! Who computes: the threads that wait for texts take turns, and whoever has one computes for all. There
//! is no thread beside theirs.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{CancelToken, Error, Result};
use base::runtime::threads;

/// How often a waiting thread looks for an interrupt.
const LOOK: Duration = Duration::from_millis(10);
/// How many pieces of text may wait for a thread that is busy elsewhere before its text pauses.
const AHEAD: usize = 4;

/// A text that threads share: the one that wants it, and those that compute it.
pub struct Text<W> {
    pub(crate) number: u64,
    /// Goes with the table's lock.
    changed: Condvar,
    work: Mutex<W>,
}

impl<W> Text<W> {
    /// Nothing panics while it holds this lock half-changed, so poison tells nothing.
    pub fn work(&self) -> MutexGuard<'_, W> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All texts that are under way on one model.
pub(crate) struct Table<W> {
    numbers: AtomicU64,
    state: Mutex<State<W>>,
}

pub(crate) struct State<W> {
    /// In the order of their arrival.
    pub slots: Vec<Slot<W>>,
    /// Whether a thread computes.
    led: bool,
    /// Texts that nobody wants any more and of which something is to be given back.
    gone: Vec<Arc<Text<W>>>,
    /// Whether what was read for nobody in particular is to be given up.
    forgets: bool,
}

pub(crate) struct Slot<W> {
    pub text: Arc<Text<W>>,
    /// Whether pieces are wanted as they come, or the end alone.
    streams: bool,
    pieces: VecDeque<String>,
    ended: Option<Result<()>>,
    /// Whether its thread waits here.
    waits: bool,
    /// Whether others have taken its pages, and it has said nothing since.
    preempted: bool,
}

/// A text as a pass finds it.
pub(crate) struct UnderWay<W> {
    pub text: Arc<Text<W>>,
    /// Whether a pass may go on with it.
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
            self.text.changed.notify_all();
        }
    }
}

impl<W> State<W> {
    pub fn position(&self, text: &Text<W>) -> Option<usize> {
        let same = |slot: &Slot<W>| slot.text.number == text.number;
        self.slots.iter().position(same)
    }

    fn slot(&mut self, text: &Text<W>) -> Result<&mut Slot<W>> {
        match self.position(text) {
            Some(at) => Ok(&mut self.slots[at]),
            None => Err(Error::Generation("this run is over".to_owned())),
        }
    }

    /// How many are not over.
    fn live(&self) -> usize {
        let live = self.slots.iter().filter(|slot| slot.ended.is_none());
        live.count()
    }
}

impl<W> Default for Table<W> {
    fn default() -> Self {
        Self {
            numbers: AtomicU64::new(0),
            state: Mutex::new(State {
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
    pub(crate) fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every text in the order of arrival.
    pub(crate) fn texts(&self) -> Vec<UnderWay<W>> {
        let state = self.state();
        let slots = state.slots.iter();
        slots
            .map(|slot| UnderWay {
                text: slot.text.clone(),
                goes_on: slot.goes_on(),
                streams: slot.streams,
            })
            .collect()
    }

    pub(crate) fn live(&self) -> usize {
        self.state().live()
    }

    /// Whether somebody still wants a text.
    pub(crate) fn has(&self, text: &Text<W>) -> bool {
        self.state().position(text).is_some()
    }

    /// Takes note that others have taken a text's pages.
    pub(crate) fn preempt(&self, text: &Text<W>) {
        if let Ok(slot) = self.state().slot(text) {
            slot.preempted = true;
        }
    }

    /// Gives a text's thread what there is, and the end where it has come.
    pub(crate) fn tell(
        &self,
        text: &Text<W>,
        said: impl IntoIterator<Item = String>,
        ended: Option<Result<()>>,
    ) {
        if let Ok(slot) = self.state().slot(text) {
            slot.tell(said, ended);
        }
    }
}

/// What computes texts, pass by pass.
pub(crate) trait Leader: Sized {
    /// What there is of a text.
    type Work: 'static;
    /// What a pass needs beside the texts.
    type Shared: 'static;

    fn table(&self) -> &Table<Self::Work>;

    /// Whoever leads has it.
    fn shared(&self) -> MutexGuard<'_, Self::Shared>;

    /// Computes what can be computed now for all, in one pass, and hands it on; whether there was
    /// anything. `own` is a text of the thread that computes. After an interrupt everything is as before.
    fn pass(
        &self,
        shared: &mut Self::Shared,
        own: &Text<Self::Work>,
        cancel: &CancelToken,
    ) -> Result<bool>;

    /// Takes back what a text has that leaves.
    fn release(&self, shared: &mut Self::Shared, work: &mut Self::Work);

    /// Gives up what was read for nobody in particular.
    fn forget(&self, shared: &mut Self::Shared);

    /// Takes note of how many texts are not over.
    fn note_live(&self, live: usize);

    /// A text joins the others; from now on it is computed with them, unless it is over before it begins.
    fn join(&self, work: Self::Work, is_over: bool) -> Arc<Text<Self::Work>> {
        let table = self.table();
        let text = Arc::new(Text {
            number: table.numbers.fetch_add(1, Ordering::Relaxed),
            changed: Condvar::new(),
            work: Mutex::new(work),
        });
        let mut state = table.state();
        state.slots.push(Slot {
            text: text.clone(),
            streams: true,
            pieces: VecDeque::new(),
            ended: is_over.then_some(Ok(())),
            waits: false,
            preempted: false,
        });
        self.note_live(state.live());
        text
    }

    /// A text leaves, whether it is over or not.
    fn leave(&self, text: &Text<Self::Work>) {
        let mut state = self.table().state();
        let Some(at) = state.position(text) else {
            return;
        };
        let slot = state.slots.remove(at);
        state.gone.push(slot.text);
        self.note_live(state.live());
        self.give_back_soon(state);
    }

    /// Gives up what was read for nobody in particular: at once, or when the pass that is under way ends.
    fn forget_idle(&self) {
        let mut state = self.table().state();
        state.forgets = true;
        self.give_back_soon(state);
    }

    /// Whoever leads gives back what is to be given back; where nobody does, this thread, which then has
    /// what is shared for a moment only.
    fn give_back_soon(&self, mut state: MutexGuard<'_, State<Self::Work>>) {
        if !state.led {
            state.led = true;
            drop(state);
            drop(Leadership(self));
        }
    }

    /// The next piece of a text, `None` once it is over. Until it is there, this thread computes where no
    /// other does.
    fn next(&self, text: &Text<Self::Work>, cancel: &CancelToken) -> Result<Option<String>> {
        self.wait(text, true, cancel)
    }

    /// Waits for the end of a text, of whose pieces none is wanted any more.
    fn finish(&self, text: &Text<Self::Work>, cancel: &CancelToken) -> Result<()> {
        self.wait(text, false, cancel).map(|_| ())
    }

    /// Waits until one of several texts is over, and says which; `None` where there is none.
    fn finish_any(
        &self,
        texts: &[&Text<Self::Work>],
        cancel: &CancelToken,
    ) -> Result<Option<usize>> {
        let Some(first) = texts.first() else {
            return Ok(None);
        };
        let mut state = self.table().state();
        loop {
            for (at, text) in texts.iter().enumerate() {
                let slot = state.slot(text)?;
                slot.streams = false;
                slot.pieces.clear();
                if slot.ended.is_some() {
                    return Ok(Some(at));
                }
            }
            cancel.check()?;
            let is_over = |state: &State<Self::Work>, text: &Text<Self::Work>| {
                let at = state.position(text);
                at.is_none_or(|at| state.slots[at].ended.is_some())
            };
            let any_over =
                |state: &State<Self::Work>| texts.iter().any(|text| is_over(state, text));
            state = self.turn(state, first, cancel, any_over)?;
        }
    }

    fn wait(
        &self,
        text: &Text<Self::Work>,
        streams: bool,
        cancel: &CancelToken,
    ) -> Result<Option<String>> {
        let mut state = self.table().state();
        loop {
            let slot = state.slot(text)?;
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
            state = self.turn(state, text, cancel, |state| {
                let at = state.position(text);
                at.is_none_or(|at| state.slots[at].is_ready())
            })?;
        }
    }

    /// Computes until `is_ready`, or waits a while for the thread that does.
    fn turn<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<Self::Work>>,
        text: &Text<Self::Work>,
        cancel: &CancelToken,
        is_ready: impl Fn(&State<Self::Work>) -> bool,
    ) -> Result<MutexGuard<'a, State<Self::Work>>> {
        // The thread that computes may wait for a part that this one has put aside for this call.
        if threads::is_worker() {
            return Err(Error::Internal(
                "a thread of the pool must not wait for texts that need the pool".to_owned(),
            ));
        }
        if !state.led {
            state.led = true;
            drop(state);
            let leadership = Leadership(self);
            let led = self.lead(cancel, text, is_ready);
            drop(leadership);
            if led? {
                return Ok(self.table().state());
            }
            state = self.table().state();
        }
        state.slot(text)?.waits = true;
        let waited = text.changed.wait_timeout(state, LOOK);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.slot(text)?.waits = false;
        Ok(state)
    }

    /// One pass after the other until `is_ready`; false where there is nothing that could be computed now.
    fn lead(
        &self,
        cancel: &CancelToken,
        own: &Text<Self::Work>,
        is_ready: impl Fn(&State<Self::Work>) -> bool,
    ) -> Result<bool> {
        let mut shared = self.shared();
        loop {
            cancel.check()?;
            self.give_back(&mut shared);
            let computes = self.pass(&mut shared, own, cancel)?;
            if is_ready(&self.table().state()) {
                return Ok(true);
            }
            if !computes {
                return Ok(false);
            }
        }
    }

    /// Takes what texts have that have left, and what shall be forgotten.
    fn give_back(&self, shared: &mut Self::Shared) {
        let (gone, forgets) = {
            let mut state = self.table().state();
            (
                std::mem::take(&mut state.gone),
                std::mem::take(&mut state.forgets),
            )
        };
        for text in gone {
            self.release(shared, &mut text.work());
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
            let mut state = leader.table().state();
            if state.gone.is_empty() && !state.forgets {
                state.led = false;
                let mut waiting = state.slots.iter().filter(|slot| slot.waits);
                if let Some(next) = waiting.find(|slot| !slot.is_ready()) {
                    next.text.changed.notify_one();
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
