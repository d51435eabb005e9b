//! Many texts at once: the threads that wait for texts take turns in computing them, all together in one
//! pass over the weights after the other. There is no thread beside theirs.

mod chunked_prefill;
mod draft;
#[cfg(test)]
mod faults;
mod sequence;
mod step;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chunked_prefill::ChunkedPrefill;
pub use draft::{DraftModel, Drafter};
pub use sequence::{too_long, ContextOverflow, Text, Work};

use crate::models::decoder::{Decoder, KvPool, Recordings};
use crate::serving::leader::{Leader, Table};
use crate::serving::Stats;
use crate::{CancelToken, Result};
use base::runtime::device::Device;

pub struct Scheduler {
    decoder: Arc<Decoder>,
    device: Device,
    stats: Arc<Stats>,
    table: Table<Work>,
    pool: Mutex<Shared>,
    /// What a test lets fail.
    #[cfg(test)]
    pub(crate) faults: faults::Faults,
}

/// What a pass needs beside the texts.
pub(crate) struct Shared {
    pool: KvPool,
    /// Recorded steps of the model on this pool.
    recordings: Recordings,
    /// A smaller model, where there is one.
    drafter: Option<Drafter>,
    pace: ChunkedPrefill,
    /// Whether parts of prompts in the pass that is planned are as long as the pace allows.
    paced: bool,
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
            device: Device::of(decoder.device()),
            decoder,
            stats,
            table: Table::default(),
            pool: Mutex::new(Shared {
                pool,
                recordings: Recordings::default(),
                drafter,
                pace: ChunkedPrefill::default(),
                paced: false,
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
    type Work = Work;
    type Shared = Shared;

    fn table(&self) -> &Table<Work> {
        &self.table
    }

    /// Nothing panics while it holds this lock half-changed, so poison tells nothing.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, shared: &mut Shared, own: &Text, cancel: &CancelToken) -> Result<bool> {
        let planned = self.plan(shared);
        let computes = !planned.is_empty();
        let computed = self.compute_pass(planned, shared, own, cancel);
        self.count_pages(shared);
        computed.map(|()| computes)
    }

    fn release(&self, shared: &mut Shared, work: &mut Work) {
        shared.release(work);
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
