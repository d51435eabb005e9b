//! Many texts at once: the threads that wait for texts take turns in computing them, all together in one
//! pass over the weights after the other. There is no thread beside theirs.

mod draft;
mod pace;
mod pass;
mod stats;
mod text;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use draft::{DraftModel, Drafter};
use pace::Pace;
pub use stats::Stats;
pub use text::{too_long, ContextOverflow, Text, Work};

use crate::models::decoder::{Decoder, KvPool};
use crate::runtime::device::Device;
use crate::{CancelToken, Error, Result};

/// How often a waiting thread looks for an interrupt.
const LOOK: Duration = Duration::from_millis(10);
/// How many pieces of text may wait for a thread that is busy elsewhere before its text pauses.
const AHEAD: usize = 4;

pub struct Scheduler {
    decoder: Arc<Decoder>,
    device: Device,
    stats: Arc<Stats>,
    numbers: AtomicU64,
    state: Mutex<State>,
    /// Whoever leads has it.
    pool: Mutex<Shared>,
}

/// What a pass needs beside the texts.
struct Shared {
    pool: KvPool,
    /// A smaller model, where there is one.
    drafter: Option<Drafter>,
    pace: Pace,
}

impl Shared {
    /// Takes all pages of a text.
    fn release(&mut self, work: &mut Work) {
        work.end(&mut self.pool);
        if let Some(drafter) = &mut self.drafter {
            drafter.release(work);
        }
    }

    fn forget_idle(&mut self) {
        self.pool.forget_idle();
        if let Some(drafter) = &mut self.drafter {
            drafter.forget_idle();
        }
    }
}

#[derive(Default)]
struct State {
    /// In the order of their arrival.
    slots: Vec<Slot>,
    /// Whether a thread computes.
    led: bool,
    /// Texts that nobody wants any more and whose pages are to be given back.
    gone: Vec<Arc<Text>>,
    /// Whether what was read for nobody in particular is to be given up.
    forgets: bool,
}

struct Slot {
    text: Arc<Text>,
    /// Whether pieces are wanted as they come, or the end alone.
    streams: bool,
    pieces: VecDeque<String>,
    ended: Option<Result<()>>,
    /// Whether its thread waits here.
    waits: bool,
}

impl Slot {
    fn is_ready(&self) -> bool {
        !self.pieces.is_empty() || self.ended.is_some()
    }

    /// Whether a pass may go on with it.
    fn goes_on(&self) -> bool {
        self.ended.is_none() && (!self.streams || self.pieces.len() < AHEAD)
    }
}

impl Scheduler {
    pub fn new(
        decoder: Arc<Decoder>,
        pool: KvPool,
        drafter: Option<Drafter>,
        stats: Arc<Stats>,
    ) -> Self {
        Stats::set(&stats.pages_limit, pool.book().limit());
        for number in [
            &stats.running,
            &stats.waiting,
            &stats.pages_used,
            &stats.pages_idle,
            &stats.draft_pages_used,
        ] {
            Stats::set(number, 0);
        }
        Self {
            device: Device::of(decoder.device()),
            decoder,
            stats,
            numbers: AtomicU64::new(0),
            state: Mutex::default(),
            pool: Mutex::new(Shared {
                pool,
                drafter,
                pace: Pace::default(),
            }),
        }
    }

    /// Nothing panics while it holds this lock half-changed, so poison tells nothing.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A text joins the others; from now on it is computed with them.
    pub fn join(&self, work: Work) -> Arc<Text> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let is_over = work.run.finish_reason().is_some();
        let text = Arc::new(Text::new(number, work));
        let mut state = self.state();
        state.slots.push(Slot {
            text: text.clone(),
            streams: true,
            pieces: VecDeque::new(),
            ended: is_over.then_some(Ok(())),
            waits: false,
        });
        self.count(&state, None);
        text
    }

    /// A text leaves, whether it is over or not.
    pub fn leave(&self, text: &Text) {
        let mut state = self.state();
        let Some(at) = state.position(text) else {
            return;
        };
        let slot = state.slots.remove(at);
        state.gone.push(slot.text);
        self.count(&state, None);
        if !state.led {
            // Nobody has the pool for long then.
            state.led = true;
            drop(state);
            drop(Leadership(self));
        }
    }

    /// The next piece of a text, `None` once it is over. Until it is there, this thread computes where no
    /// other does.
    pub fn next(&self, text: &Text, cancel: &CancelToken) -> Result<Option<String>> {
        self.wait(text, true, cancel)
    }

    /// Waits for the end of a text, of whose pieces none is wanted any more.
    pub fn finish(&self, text: &Text, cancel: &CancelToken) -> Result<()> {
        self.wait(text, false, cancel).map(|_| ())
    }

    /// Waits until one of several texts is over, and says which; `None` where there is none.
    pub fn finish_any(&self, texts: &[&Text], cancel: &CancelToken) -> Result<Option<usize>> {
        let Some(first) = texts.first() else {
            return Ok(None);
        };
        let mut state = self.state();
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
            let is_over = |state: &State, text: &Text| {
                let at = state.position(text);
                at.is_none_or(|at| state.slots[at].ended.is_some())
            };
            let any_over = |state: &State| texts.iter().any(|text| is_over(state, text));
            state = self.turn(state, first, cancel, any_over)?;
        }
    }

    fn wait(&self, text: &Text, streams: bool, cancel: &CancelToken) -> Result<Option<String>> {
        let mut state = self.state();
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
        mut state: MutexGuard<'a, State>,
        text: &Text,
        cancel: &CancelToken,
        is_ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>> {
        if !state.led {
            state.led = true;
            drop(state);
            let leadership = Leadership(self);
            let led = self.lead(cancel, text, is_ready);
            drop(leadership);
            if led? {
                return Ok(self.state());
            }
            state = self.state();
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
        own: &Text,
        is_ready: impl Fn(&State) -> bool,
    ) -> Result<bool> {
        let mut shared = self.shared();
        loop {
            cancel.check()?;
            self.give_back(&mut shared);
            let planned = self.plan(&mut shared);
            let computes = !planned.is_empty();
            let passed = self.pass(planned, &mut shared, own, cancel);
            self.count_pages(&shared);
            passed?;
            if is_ready(&self.state()) {
                return Ok(true);
            }
            if !computes {
                return Ok(false);
            }
        }
    }

    /// Takes the pages of texts that have left, and those that shall be forgotten.
    fn give_back(&self, shared: &mut Shared) {
        let (gone, forgets) = {
            let mut state = self.state();
            (
                std::mem::take(&mut state.gone),
                std::mem::take(&mut state.forgets),
            )
        };
        for text in gone {
            shared.release(&mut text.work());
        }
        if forgets {
            shared.forget_idle();
        }
    }

    /// Gives up what was read for nobody in particular: at once, or when the pass that is under way ends.
    pub fn forget_idle(&self) {
        let mut state = self.state();
        state.forgets = true;
        if !state.led {
            state.led = true;
            drop(state);
            drop(Leadership(self));
        }
    }

    fn count_pages(&self, shared: &Shared) {
        let book = shared.pool.book();
        Stats::set(&self.stats.pages_used, book.used());
        Stats::set(&self.stats.pages_idle, book.idle());
        let drafter = shared.drafter.as_ref();
        let drafts = drafter.map_or(0, |drafter| drafter.pool().book().used());
        Stats::set(&self.stats.draft_pages_used, drafts);
    }

    /// `running` is known after a plan was made.
    fn count(&self, state: &State, running: Option<usize>) {
        let live = state.slots.iter().filter(|slot| slot.ended.is_none());
        let live = live.count();
        let running = running.unwrap_or_else(|| Stats::now(&self.stats.running));
        let running = running.min(live);
        Stats::set(&self.stats.running, running);
        Stats::set(&self.stats.waiting, live - running);
    }
}

impl State {
    fn position(&self, text: &Text) -> Option<usize> {
        let same = |slot: &Slot| slot.text.number == text.number;
        self.slots.iter().position(same)
    }

    fn slot(&mut self, text: &Text) -> Result<&mut Slot> {
        match self.position(text) {
            Some(at) => Ok(&mut self.slots[at]),
            None => Err(Error::Generation("this run is over".to_owned())),
        }
    }
}

/// The right to compute, until it is dropped; then another thread that waits takes over.
struct Leadership<'a>(&'a Scheduler);

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let scheduler = self.0;
        loop {
            let mut shared = scheduler.shared();
            scheduler.give_back(&mut shared);
            scheduler.count_pages(&shared);
            drop(shared);
            let mut state = scheduler.state();
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
