//! Continuous batching of decoders: each step is one forward pass with a token of every sequence that decodes
//! and chunks of prompts.

mod chunked_prefill;
#[cfg(test)]
mod faults;
mod sequence;
pub(super) mod step;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chunked_prefill::ChunkedPrefill;
pub use sequence::{too_long, ContextOverflow, Request, RequestState};

use crate::models::decoder::{Decoder, KvPool, Recordings};
use crate::serving::leader::{Leader, Table};
use crate::serving::speculation::Drafter;
use crate::serving::Stats;
use crate::{CancelToken, Result};
use base::runtime::device::Device;

pub struct Scheduler {
    pub(super) decoder: Arc<Decoder>,
    pub(super) device: Device,
    stats: Arc<Stats>,
    table: Table<RequestState>,
    pool: Mutex<Shared>,
    /// What a test lets fail.
    #[cfg(test)]
    pub(crate) faults: faults::Faults,
}

/// What a step needs beside the requests.
pub(crate) struct Shared {
    pub(super) pool: KvPool,
    /// Recorded steps of the model on this pool.
    recordings: Recordings,
    /// The draft model, where there is one.
    pub(super) drafter: Option<Drafter>,
    pub(super) prefill: ChunkedPrefill,
    /// Whether somebody streams one of the sequences that decode in this step.
    streams: bool,
}

impl Shared {
    /// Takes all pages of a request.
    fn release(&mut self, state: &mut RequestState) {
        state.end(&mut self.pool);
        if let Some(drafter) = &mut self.drafter {
            drafter.release(state);
        }
    }

    fn forget_idle(&mut self) {
        self.pool.forget_idle();
        if let Some(drafter) = &mut self.drafter {
            drafter.forget_idle();
        }
    }
}

impl Scheduler {
    pub fn new(
        decoder: Arc<Decoder>,
        pool: KvPool,
        drafter: Option<Drafter>,
        stats: Arc<Stats>,
    ) -> Self {
        stats.running.set(0);
        stats.waiting.set(0);
        stats.pages.set_limit(pool.book().limit());
        stats.pages.set(0, 0, 0);
        Self {
            device: Device::of(decoder.stages().slowest()),
            decoder,
            stats,
            table: Table::default(),
            pool: Mutex::new(Shared {
                pool,
                recordings: Recordings::default(),
                drafter,
                prefill: ChunkedPrefill::default(),
                streams: false,
            }),
            #[cfg(test)]
            faults: faults::Faults::default(),
        }
    }

    fn count_pages(&self, shared: &Shared) {
        let book = shared.pool.book();
        let drafter = shared.drafter.as_ref();
        let draft = drafter.map_or(0, |drafter| drafter.pool().book().used());
        self.stats.pages.set(book.used(), book.idle(), draft);
    }

    fn note_running(&self, running: usize, live: usize) {
        let running = running.min(live);
        self.stats.running.set(running);
        self.stats.waiting.set(live - running);
    }
}

impl Leader for Scheduler {
    type State = RequestState;
    type Shared = Shared;

    fn table(&self) -> &Table<RequestState> {
        &self.table
    }

    /// Nothing panics while it holds this lock half-changed, so poison tells nothing.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, shared: &mut Shared, own: &Request, cancel: &CancelToken) -> Result<bool> {
        let planned = self.plan(shared);
        let computes = !planned.is_empty();
        let computed = self.compute_step(planned, shared, own, cancel);
        self.count_pages(shared);
        computed.map(|()| computes)
    }

    fn release(&self, shared: &mut Shared, state: &mut RequestState) {
        shared.release(state);
        self.count_pages(shared);
    }

    fn forget(&self, shared: &mut Shared) {
        shared.forget_idle();
        self.count_pages(shared);
    }

    fn note_live(&self, live: usize) {
        self.note_running(self.stats.running.value() as usize, live);
    }
}
