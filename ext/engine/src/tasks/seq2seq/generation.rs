//! A call under way.

use std::sync::Arc;

use super::Seq2SeqModel;
use crate::generation::Constraint;
use crate::serving::leader::{self, Leader};
use crate::serving::seq2seq::{RequestState, Seq2SeqOutput, Seq2SeqScheduler, Seq2SeqSettings};
use crate::{CancelToken, Result};

/// A call under way: its sequences are computed together with those of all others.
///
/// A call of [`Seq2SeqGeneration::step`] that is interrupted may be repeated; it goes on where it was.
pub struct Seq2SeqGeneration {
    scheduler: Arc<Seq2SeqScheduler>,
    request: Arc<leader::Request<RequestState>>,
    process: u32,
}

impl Seq2SeqGeneration {
    /// `sources` are the ids of the source texts; a constraint is for one sequence alone.
    pub fn new(
        model: Arc<Seq2SeqModel>,
        sources: Vec<Vec<u32>>,
        settings: Seq2SeqSettings,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Self> {
        let scheduler = model.scheduler()?;
        let request = RequestState::new(model.parts.clone(), sources, settings, constraint)?;
        let is_over = request.is_over();
        Ok(Self {
            request: scheduler.join(request, is_over),
            scheduler,
            process: std::process::id(),
        })
    }

    /// Waits for one more token of every sequence that is not over. Returns the new text of the first, `None`
    /// once all are over.
    pub fn step(&self, cancel: &CancelToken) -> Result<Option<String>> {
        self.check_process()?;
        self.scheduler.next(&self.request, cancel)
    }

    /// Waits for the end of all sequences.
    pub fn finish(&self, cancel: &CancelToken) -> Result<()> {
        self.check_process()?;
        self.scheduler.finish(&self.request, cancel)
    }

    /// What has become of the sequences, in their order.
    pub fn outputs(&self) -> Result<Vec<Seq2SeqOutput>> {
        self.check_process()?;
        self.request.state().outputs()
    }

    /// A run belongs to the process that began it.
    fn check_process(&self) -> Result<()> {
        leader::check_process(self.process)
    }
}

impl Drop for Seq2SeqGeneration {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.scheduler.leave(&self.request);
        }
    }
}
