//! Dynamic batching: encoder calls of several threads become one batch.
//!
//! While a forward pass runs, the calls that arrive wait, and go next as one batch. There is no thread for it
//! and no timer: a call that finds nobody computing does so at once, for itself and for all that wait. A row
//! does not depend on its batch mates, so that nobody's result tells with whom it was computed.
//!
//! An interrupted call leaves: the queue, a batch that another call computes, or, where it computes itself,
//! by ending the forward pass, which the next leader repeats without it. A batch that fails is repeated
//! call by call, so that only the call at fault fails.

use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use candle_core::Tensor;

use super::batching::SHORT_CALL;
use super::leader::{Leader, Request, Table};
use super::stats::{Served, Stats};
use crate::models::TextModel;
use crate::nn::PackedSequences;
use crate::{CancelToken, Device, Error, Result};
use base::runtime::per_process::PerProcess;
use base::runtime::stats::Entered;
use base::runtime::threads;

/// The queues before one model.
pub struct DynamicBatcher {
    short: PerProcess<Queue>,
    long: PerProcess<Queue>,
    pub stats: Arc<Stats>,
}

#[derive(Default)]
struct Queue {
    table: Table<CallState>,
    leads: Mutex<()>,
}

/// One call's sequences.
struct CallState {
    sequences: PackedSequences,
    budget: usize,
    since: Instant,
    outcome: Option<Outcome>,
}

/// A result, or what the computation panicked with.
type Outcome = std::result::Result<Result<Tensor>, Box<dyn Any + Send>>;

/// What a call wants computed.
pub struct Inputs<'a> {
    pub body: &'a TextModel,
    pub device: Device,
    pub sequences: &'a PackedSequences,
    /// The most tokens that a batch with this call may have, unless it has more itself.
    pub budget: usize,
    pub cancel: &'a CancelToken,
}

impl Default for DynamicBatcher {
    fn default() -> Self {
        Self {
            short: PerProcess::new(Queue::default()),
            long: PerProcess::new(Queue::default()),
            stats: Arc::new(Stats::new(Served::Encoder)),
        }
    }
}

impl DynamicBatcher {
    /// What `finish` makes of the hidden states of the inputs's tokens, [tokens, hidden]. Unless that is
    /// light, it runs in the pool as the forward pass does: a thread of Ruby's has a small stack.
    pub fn forward<R: Send>(
        &self,
        inputs: &Inputs<'_>,
        finish: impl FnOnce(&Tensor) -> Result<R> + Send,
    ) -> Result<R> {
        // A thread of the pool must not wait for a call that needs the pool.
        if threads::is_worker() {
            return finish(&unpacked(compute(
                inputs,
                &self.stats,
                1,
                inputs.sequences,
            ))?);
        }
        let queue = if inputs.sequences.tokens() <= SHORT_CALL {
            &self.short
        } else {
            &self.long
        };
        let queue = queue.get(|| Ok(Queue::default()))?;
        let call = Call {
            queue: &queue,
            inputs,
            stats: &self.stats,
            waits: Mutex::new(Some(self.stats.waiting.enter())),
            led: AtomicBool::new(false),
            finish: Mutex::new(Some(finish)),
            result: Mutex::new(None),
        };
        call.run()
    }
}

/// A call as its own thread sees it: its queue, and the model to compute batches with when it leads.
struct Call<'a, R, F> {
    queue: &'a Queue,
    inputs: &'a Inputs<'a>,
    stats: &'a Stats,
    /// Until it is its turn to compute, or another has computed it.
    waits: Mutex<Option<Entered<'a>>>,
    /// Whether it has computed a batch.
    led: AtomicBool,
    finish: Mutex<Option<F>>,
    result: Mutex<Option<Result<R>>>,
}

/// Nothing panics while it holds these locks half-changed, so poison tells nothing.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a call from its queue, however it ends.
struct Leaves<'a, L: Leader>(&'a L, Arc<Request<L::State>>);

impl<L: Leader> Drop for Leaves<'_, L> {
    fn drop(&mut self) {
        self.0.leave(&self.1);
    }
}

impl<R: Send, F: FnOnce(&Tensor) -> Result<R> + Send> Call<'_, R, F> {
    fn run(&self) -> Result<R> {
        let ticket = CallState {
            sequences: self.inputs.sequences.clone(),
            budget: self.inputs.budget,
            since: Instant::now(),
            outcome: None,
        };
        let own = Leaves(self, self.join(ticket, false));
        Leader::finish(self, &own.1, self.inputs.cancel)?;
        if let Some(result) = locked(&self.result).take() {
            return result;
        }
        let outcome = own.1.state().outcome.take();
        drop(own);
        let hidden = unpacked(outcome.ok_or_else(lost)?)?;
        let light = hidden.elem_count() <= self.inputs.device.light();
        if light && !self.led.load(Ordering::Relaxed) {
            self.finished(&hidden)
        } else {
            threads::install(|| self.finished(&hidden))?
        }
    }

    fn finished(&self, hidden: &Tensor) -> Result<R> {
        let finish = locked(&self.finish).take();
        finish.ok_or_else(lost)?(hidden)
    }

    /// The calls that wait and fit into one batch, in the order of their arrival.
    fn gather(&self) -> Vec<Arc<Request<CallState>>> {
        let (mut total, mut budget) = (0, usize::MAX);
        let mut batch: Vec<Arc<Request<CallState>>> = Vec::new();
        for waiting in self.queue.table.requests() {
            if !waiting.goes_on {
                continue;
            }
            {
                let ticket = waiting.request.state();
                total += ticket.sequences.tokens();
                budget = budget.min(ticket.budget);
                if total > budget && !batch.is_empty() {
                    break;
                }
                self.stats.queue_ms.observe_time(ticket.since.elapsed());
            }
            batch.push(waiting.request);
        }
        batch
    }

    /// Computes one batch and hands the results on. Where this thread is interrupted, all that were not
    /// computed stay in the queue.
    fn compute_batch(&self, own: &Request<CallState>) -> Result<()> {
        let batch = self.gather();
        let outcomes = if batch.len() == 1 {
            None
        } else {
            match catch_unwind(AssertUnwindSafe(|| self.together(&batch))) {
                Ok(Ok(parts)) => Some(parts),
                Ok(Err(Error::Interrupted)) if self.inputs.cancel.is_cancelled() => {
                    return Err(Error::Interrupted)
                }
                // Each for itself, so that only the call at fault fails.
                _ => None,
            }
        };
        match outcomes {
            Some(parts) => {
                for (ticket, part) in batch.iter().zip(parts) {
                    self.hand_on(ticket, own, Ok(Ok(part)));
                }
            }
            None => {
                for ticket in &batch {
                    let sequences = ticket.state().sequences.clone();
                    let outcome = compute(self.inputs, self.stats, 1, &sequences);
                    let interrupted = matches!(outcome, Ok(Err(Error::Interrupted)));
                    if interrupted && self.inputs.cancel.is_cancelled() {
                        return Err(Error::Interrupted);
                    }
                    self.hand_on(ticket, own, outcome);
                }
            }
        }
        Ok(())
    }

    fn together(&self, batch: &[Arc<Request<CallState>>]) -> Result<Vec<Tensor>> {
        let mut all = PackedSequences::new();
        let mut counts = Vec::with_capacity(batch.len());
        for ticket in batch {
            let ticket = ticket.state();
            all.append(&ticket.sequences)?;
            counts.push(ticket.sequences.tokens());
        }
        let hidden = unpacked(compute(self.inputs, self.stats, batch.len(), &all))?;
        let mut start = 0;
        let parts = counts.into_iter().map(|count| {
            start += count;
            Ok(hidden.narrow(0, start - count, count)?)
        });
        parts.collect()
    }

    fn hand_on(&self, ticket: &Request<CallState>, own: &Request<CallState>, outcome: Outcome) {
        // Nobody waits for what this call leads, so it may finish where it is.
        if ticket.number == own.number && self.queue.table.live() == 1 {
            *locked(&self.result) =
                Some(unpacked(outcome).and_then(|hidden| self.finished(&hidden)));
        } else {
            ticket.state().outcome = Some(outcome);
        }
        self.queue.table.tell(ticket, [], Some(Ok(())));
    }
}

impl<R: Send, F: FnOnce(&Tensor) -> Result<R> + Send> Leader for Call<'_, R, F> {
    type State = CallState;
    type Shared = ();

    fn table(&self) -> &Table<CallState> {
        &self.queue.table
    }

    fn shared(&self) -> MutexGuard<'_, ()> {
        locked(&self.queue.leads)
    }

    fn step(&self, (): &mut (), own: &Request<CallState>, _: &CancelToken) -> Result<bool> {
        drop(locked(&self.waits).take());
        if self.queue.table.live() == 0 {
            return Ok(false);
        }
        self.led.store(true, Ordering::Relaxed);
        let device = self.inputs.device;
        device.compute(|| self.compute_batch(own))??;
        Ok(true)
    }

    fn release(&self, (): &mut (), _: &mut CallState) {}

    fn forget(&self, (): &mut ()) {}

    fn note_live(&self, _: usize) {}
}

fn compute(
    inputs: &Inputs<'_>,
    stats: &Stats,
    calls: usize,
    sequences: &PackedSequences,
) -> Outcome {
    let size = || (sequences.count(), sequences.tokens());
    let forward = || inputs.body.forward(sequences, inputs.cancel);
    let measured = || stats.measured(calls, size, forward);
    catch_unwind(AssertUnwindSafe(measured))
}

fn unpacked(outcome: Outcome) -> Result<Tensor> {
    outcome.unwrap_or_else(|payload| resume_unwind(payload))
}

fn lost() -> Error {
    Error::Internal("a batch ended without a result".to_owned())
}
