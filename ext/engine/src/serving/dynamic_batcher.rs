//! Calls of several threads that meet are computed together.
//!
//! While a forward runs, the calls that come wait, and go next as one batch. There is no thread for it and
//! no timer: whoever finds nobody computing does so at once, for itself and for all that wait, and then
//! makes the first of those that came meanwhile the next. A row does not depend on its batch mates, so that
//! nobody's result tells whom it was computed with.
//!
//! Who is interrupted leaves: from the line, from a batch that another computes, or, where it computes
//! itself, by ending the forward, which the next in line begins anew without it. A forward that fails is
//! repeated call by call, so that a failure is its own call's alone.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::call_stats::CallStats;
use crate::models::TextModel;
use crate::nn::PackedSequences;
use crate::{CancelToken, Device, Error, Result};
use base::runtime::threads;

/// Batches of more tokens have a line of their own, so that a short text does not wait for a long one.
const SHORT: usize = 512;
/// How often one that waits looks for an interrupt.
const LOOK: Duration = Duration::from_millis(10);

/// The lines before one model.
pub struct DynamicBatcher {
    short: Line,
    long: Line,
    pub stats: Arc<CallStats>,
}

/// The line of this process. That of a parent is never touched: a fork may leave its lock taken, and its
/// threads do not exist.
struct Line(AtomicPtr<Waiting>);

struct Waiting {
    process: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether someone computes, or was told to.
    busy: bool,
    line: VecDeque<Arc<Ticket>>,
}

/// One call's batch.
struct Ticket {
    sequences: PackedSequences,
    budget: usize,
    since: Instant,
    phase: Mutex<Phase>,
    changed: Condvar,
}

enum Phase {
    Waiting,
    /// It is this call's turn to compute.
    Leads,
    /// Another call computes it.
    Computed,
    Over(Outcome),
    /// The call was interrupted.
    Left,
}

/// A result, or what the computation panicked with.
type Outcome = std::result::Result<Result<Tensor>, Box<dyn Any + Send>>;

/// Another call's, and what has become of it.
type Done = (Arc<Ticket>, Outcome);

/// What a call asks to be computed.
pub struct Request<'a> {
    pub body: &'a TextModel,
    pub device: Device,
    pub sequences: &'a PackedSequences,
    /// The most tokens of a batch that it is part of, unless it has more itself.
    pub budget: usize,
    pub cancel: &'a CancelToken,
}

impl Default for DynamicBatcher {
    fn default() -> Self {
        Self {
            short: Line::new(),
            long: Line::new(),
            stats: Arc::default(),
        }
    }
}

impl DynamicBatcher {
    /// What `finish` makes of the hidden states of the request's tokens, [tokens, hidden]. Unless that is
    /// light, it runs in the pool as the forward does: a thread of Ruby's has little room for what it calls.
    pub fn forward<R: Send>(
        &self,
        request: &Request<'_>,
        finish: impl FnOnce(&Tensor) -> Result<R> + Send,
    ) -> Result<R> {
        // A thread of the pool must not wait for a call that needs the pool.
        if threads::is_worker() {
            return finish(&unpacked(self.compute(request, 1, request.sequences))?);
        }
        let line = if request.sequences.tokens() <= SHORT {
            &self.short
        } else {
            &self.long
        };
        match line.of_this_process().enter(request, &self.stats)? {
            Entered::Over(outcome) => {
                let hidden = unpacked(outcome)?;
                if hidden.elem_count() <= request.device.light() {
                    finish(&hidden)
                } else {
                    threads::install(|| finish(&hidden))?
                }
            }
            Entered::Leads(mut turn) => threads::install(|| {
                request.device.keeping_awake(|| {
                    turn.gather(request, &self.stats);
                    let (own, others) = self.lead(request, &mut turn);
                    // The next begins to compute while the others go their ways.
                    let waiting = turn.waiting;
                    drop(turn);
                    for (ticket, outcome) in others {
                        ticket.end(waiting, outcome);
                    }
                    finish(&unpacked(own)?)
                })
            })?,
        }
    }

    /// Computes for all of a turn: the outcome of the call that leads, and those of others, who leave the
    /// turn.
    fn lead(&self, request: &Request<'_>, turn: &mut Turn<'_>) -> (Outcome, Vec<Done>) {
        if turn.others.is_empty() {
            return (self.compute(request, 1, request.sequences), Vec::new());
        }
        let together = || -> Result<(Tensor, Vec<Tensor>)> {
            let others = &turn.others;
            let mut all = request.sequences.clone();
            for ticket in others {
                all.append(&ticket.sequences)?;
            }
            let hidden = unpacked(self.compute(request, 1 + others.len(), &all))?;
            let mut start = request.sequences.tokens();
            let own = hidden.narrow(0, 0, start)?;
            let parts = others.iter().map(|ticket| {
                let count = ticket.sequences.tokens();
                start += count;
                Ok(hidden.narrow(0, start - count, count)?)
            });
            Ok((own, parts.collect::<Result<_>>()?))
        };
        match catch_unwind(AssertUnwindSafe(together)) {
            Ok(Ok((own, parts))) => {
                let parts = parts.into_iter().map(|part| Ok(Ok(part)));
                (Ok(Ok(own)), turn.others.drain(..).zip(parts).collect())
            }
            Ok(Err(Error::Interrupted)) if request.cancel.is_cancelled() => {
                (Ok(Err(Error::Interrupted)), Vec::new())
            }
            _ => self.one_by_one(request, turn),
        }
    }

    /// After a failure: each for itself, so that only whose it is has it.
    fn one_by_one(&self, request: &Request<'_>, turn: &mut Turn<'_>) -> (Outcome, Vec<Done>) {
        let own = self.compute(request, 1, request.sequences);
        let mut done = Vec::new();
        while !request.cancel.is_cancelled() && !turn.others.is_empty() {
            match self.compute(request, 1, &turn.others[0].sequences) {
                // By this call's token: the ticket is for the next to compute.
                Ok(Err(Error::Interrupted)) if request.cancel.is_cancelled() => break,
                outcome => done.push((turn.others.remove(0), outcome)),
            }
        }
        (own, done)
    }

    fn compute(&self, request: &Request<'_>, calls: usize, sequences: &PackedSequences) -> Outcome {
        let size = || (sequences.count(), sequences.tokens());
        let forward = || request.body.forward(sequences, request.cancel);
        let measured = || self.stats.measured(calls, size, forward);
        catch_unwind(AssertUnwindSafe(measured))
    }
}

fn unpacked(outcome: Outcome) -> Result<Tensor> {
    outcome.unwrap_or_else(|payload| resume_unwind(payload))
}

impl Line {
    fn new() -> Self {
        Self(AtomicPtr::new(Waiting::here()))
    }

    fn of_this_process(&self) -> &Waiting {
        loop {
            let seen = self.0.load(Ordering::Acquire);
            // SAFETY: what was published lives until the line is dropped, or for ever.
            let waiting = unsafe { &*seen };
            if waiting.process == std::process::id() {
                return waiting;
            }
            let fresh = Waiting::here();
            let order = (Ordering::AcqRel, Ordering::Acquire);
            if self
                .0
                .compare_exchange(seen, fresh, order.0, order.1)
                .is_err()
            {
                // SAFETY: it was not published, so this thread is its only owner.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let waiting = *self.0.get_mut();
        // SAFETY: nobody else has the line any more. That of a parent stays where it is.
        unsafe {
            if (*waiting).process == std::process::id() {
                drop(Box::from_raw(waiting));
            }
        }
    }
}

/// How waiting ended.
enum Entered<'a> {
    /// It is this call's turn to compute.
    Leads(Turn<'a>),
    /// Another has computed it.
    Over(Outcome),
}

impl Waiting {
    fn here() -> *mut Self {
        Box::into_raw(Box::new(Self {
            process: std::process::id(),
            state: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is the request's turn, or another has computed it.
    fn enter(&self, request: &Request<'_>, stats: &CallStats) -> Result<Entered<'_>> {
        let mut state = self.lock();
        if !state.busy {
            state.busy = true;
            return Ok(Entered::Leads(self.turn(Instant::now())));
        }
        let ticket = Arc::new(Ticket {
            sequences: request.sequences.clone(),
            budget: request.budget,
            since: Instant::now(),
            phase: Mutex::new(Phase::Waiting),
            changed: Condvar::new(),
        });
        state.line.push_back(ticket.clone());
        let _waits = stats.waiting.enter();
        loop {
            match ticket.take() {
                Phase::Leads => return Ok(Entered::Leads(self.turn(ticket.since))),
                Phase::Over(outcome) => return Ok(Entered::Over(outcome)),
                Phase::Waiting | Phase::Computed if request.cancel.is_cancelled() => {
                    state.line.retain(|other| !Arc::ptr_eq(other, &ticket));
                    return Err(Error::Interrupted);
                }
                phase => ticket.set(phase),
            }
            let waited = ticket.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn turn(&self, since: Instant) -> Turn<'_> {
        Turn {
            waiting: self,
            since,
            others: Vec::new(),
        }
    }
}

impl Ticket {
    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Phase {
        std::mem::replace(&mut self.lock(), Phase::Left)
    }

    fn set(&self, phase: Phase) {
        *self.lock() = phase;
    }

    fn end(&self, waiting: &Waiting, outcome: Outcome) {
        let _state = waiting.lock();
        self.set(Phase::Over(outcome));
        self.changed.notify_one();
    }
}

/// The turn of one call. When it ends, however that is, what it left undone goes back to the head of the
/// line, and the first there has the next turn.
struct Turn<'a> {
    waiting: &'a Waiting,
    /// When the call came whose turn it is.
    since: Instant,
    others: Vec<Arc<Ticket>>,
}

impl Turn<'_> {
    /// Takes on all that wait and fit, in the order they came.
    fn gather(&mut self, request: &Request<'_>, stats: &CallStats) {
        let mut state = self.waiting.lock();
        let (mut total, mut budget) = (request.sequences.tokens(), request.budget);
        while let Some(next) = state.line.front() {
            total += next.sequences.tokens();
            budget = budget.min(next.budget);
            if total > budget {
                break;
            }
            next.set(Phase::Computed);
            self.others.extend(state.line.pop_front());
        }
        drop(state);
        let came = self.others.iter().map(|ticket| ticket.since);
        for since in came.chain([self.since]) {
            stats.queue_ms.observe_time(since.elapsed());
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.waiting.lock();
        for ticket in self.others.drain(..).rev() {
            let is_undone = matches!(*ticket.lock(), Phase::Computed);
            if is_undone {
                ticket.set(Phase::Waiting);
                state.line.push_front(ticket);
            }
        }
        match state.line.pop_front() {
            Some(next) => {
                next.set(Phase::Leads);
                next.changed.notify_one();
            }
            None => state.busy = false,
        }
    }
}
