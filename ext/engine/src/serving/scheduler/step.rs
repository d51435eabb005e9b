//! One forward pass: which requests go into it, and what becomes of its logits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Request, RequestState, Scheduler, Shared};
use crate::generation::Scores;
use crate::models::decoder::model::Reading;
use crate::models::decoder::{KvPool, Sequence};
use crate::serving::leader::{caught, Active, Leader};
use crate::{CancelToken, Error, Result};
use base::runtime::threads;

/// A step of more rows than this, or of one request alone, ends at once when its thread is interrupted; a
/// short one for others too is brought to its end.
const SHORT: usize = 64;

/// A stream of fewer tokens than this bears a step with whole prompts: requests that came at the
/// same time then decode together from nearly the same step on.
const YOUNG: usize = 4;

/// Draft tokens are added to a step up to this many rows: beyond, they cost more than they may save.
pub(in crate::serving) const DRAFT_ROWS: usize = 16;

/// The tokens of a request that a step computes.
pub(in crate::serving) struct Planned {
    pub request: Arc<Request>,
    pub tokens: Vec<u32>,
    sequence: Sequence,
    /// How many of its last tokens' logits are wanted.
    pub wanted: usize,
    /// How many of its last tokens are draft tokens.
    pub drafted: usize,
    outcome: Option<Result<Vec<Scores>>>,
}

impl Planned {
    /// How much of the request will have been read.
    pub fn end(&self) -> usize {
        self.sequence.length() + self.tokens.len()
    }

    /// Whether its next token is the likeliest, after which one more is read.
    fn goes_on_plainly(&self) -> bool {
        let state = self.request.state();
        let decodes = self.wanted == 1 && self.drafted == 0 && state.speculation.is_off();
        decodes && state.has_room() && state.run.goes_on_plainly()
    }

    /// The number of its adapter; the base model comes first.
    fn adapter(&self) -> usize {
        let adapter = self.sequence.adapter();
        adapter.map_or(0, |adapter| adapter.id())
    }
}

impl Scheduler {
    /// What the next step computes, first come, first served: one token of every sequence that decodes, and
    /// parts of prompts.
    pub(super) fn plan(&self, shared: &mut Shared) -> Vec<Planned> {
        let requests = self.table.requests();
        self.begin(&requests, shared);
        let budget = self.prompt_budget(&requests, shared);
        let mut planned = self.fill(&requests, budget, shared);
        if planned.is_empty() && budget == 0 {
            // The prompt that came first has the pages that those who decode wait for.
            planned = self.fill(&requests, self.device.prompt_tokens(), shared);
        }
        self.add_draft_tokens(&mut planned, &mut shared.pool);
        planned
    }

    /// Gives a sequence to every request that may go on and has none.
    fn begin(&self, requests: &[Active<RequestState>], shared: &mut Shared) {
        let mut running = 0;
        for Active {
            request, goes_on, ..
        } in requests
        {
            let mut state = request.state();
            if *goes_on {
                let begins = state.cached.is_none();
                if let Err(error) = state.begin(&self.decoder, &mut shared.pool) {
                    drop(state);
                    self.fail(request, error, shared);
                    continue;
                }
                if begins {
                    self.note_prefill(&state);
                }
            }
            running += usize::from(state.sequence.is_some());
        }
        self.note_running(running, self.table.live());
    }

    /// How many tokens of prompts the next step computes beside those that decode.
    fn prompt_budget(&self, requests: &[Active<RequestState>], shared: &mut Shared) -> usize {
        let Shared {
            prefill, streams, ..
        } = shared;
        let most = self.device.prompt_tokens();
        let decodes =
            |one: &&Active<RequestState>| one.goes_on && one.request.state().pending().len() == 1;
        let decoding: Vec<_> = requests.iter().filter(decodes).collect();
        *streams = decoding.iter().any(|one| one.streams) && !came_together(requests, most);
        match (decoding.len(), *streams) {
            (0, _) => most,
            (decoding, true) => match prefill.part(decoding, most) {
                0 => 0,
                part => {
                    let waiting = requests.iter().filter(|one| one.goes_on);
                    let pending = waiting.map(|one| one.request.state().pending().len());
                    let steps = self.device.backlog_steps();
                    let backlog = prefill.backlog(decoding, pending, steps);
                    part.max(self.device.least_part()).max(backlog).min(most)
                }
            },
            (_, false) if decoding.iter().any(|one| one.streams) => most,
            (decoding, false) => prefill
                .part(decoding, most)
                .max(self.device.unwatched_part()),
        }
    }

    /// Takes what fits into the next step, in the order of arrival.
    fn fill(
        &self,
        requests: &[Active<RequestState>],
        mut budget: usize,
        shared: &mut Shared,
    ) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::new();
        for (
            at,
            Active {
                request, goes_on, ..
            },
        ) in requests.iter().enumerate()
        {
            let pending = request.state().pending().len();
            if !goes_on || pending == 0 || request.state().sequence.is_none() {
                continue;
            }
            let count = match pending {
                1 => 1,
                _ if budget == 0 => 0,
                _ => self.decoder.piece_length(request.state().pending(), budget),
            };
            if count == 0 {
                continue;
            }
            match self.reserve_pages(requests, at, count, shared, planned.is_empty()) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    self.fail(request, error, shared);
                    continue;
                }
            }
            let mut state = request.state();
            let tokens = state.pending()[..count].to_vec();
            if let Some(sequence) = state.sequence.take() {
                budget = budget.saturating_sub(if pending == 1 { 0 } else { count });
                planned.push(Planned {
                    request: request.clone(),
                    tokens,
                    sequence,
                    wanted: usize::from(count == pending),
                    drafted: 0,
                    outcome: None,
                });
            }
        }
        planned
    }

    /// Ends a request that can't go on; others may have its pages.
    fn fail(&self, request: &Request, error: Error, shared: &mut Shared) {
        shared.release(&mut request.state());
        self.table.tell(request, [], Some(Err(error)));
    }

    /// Adds draft tokens where a step has few rows.
    fn add_draft_tokens(&self, planned: &mut [Planned], pool: &mut KvPool) {
        let rows: usize = planned.iter().map(|piece| piece.tokens.len()).sum();
        let mut room = DRAFT_ROWS.saturating_sub(rows);
        for piece in planned.iter_mut().filter(|piece| piece.wanted == 1) {
            let mut state = piece.request.state();
            let RequestState {
                run,
                ids,
                speculation,
                ..
            } = &mut *state;
            let mut draft = match room {
                0 => continue,
                _ => speculation.draft(run, ids),
            };
            drop(state);
            draft.truncate(room);
            self.verify(draft, piece, pool);
            room -= piece.drafted;
        }
    }

    /// Adds draft tokens to a step, which verifies them, as far as there is room.
    pub(in crate::serving) fn verify(
        &self,
        mut draft: Vec<u32>,
        piece: &mut Planned,
        pool: &mut KvPool,
    ) {
        let (length, most) = {
            let state = piece.request.state();
            (state.ids.len(), state.context_length)
        };
        draft.truncate(most.saturating_sub(length + 1));
        let variant = self.decoder.rope_variant(length + draft.len());
        let known = self.decoder.check_tokens(&draft).is_ok();
        let count = piece.tokens.len() + draft.len();
        let fits = known && variant == piece.sequence.rope_variant();
        if draft.is_empty() || !fits || !pool.extend(&mut piece.sequence, count).unwrap_or(false) {
            return;
        }
        piece.drafted = draft.len();
        piece.wanted += draft.len();
        piece.tokens.append(&mut draft);
    }

    fn note_prefill(&self, state: &RequestState) {
        let cached = state.cached.unwrap_or(0);
        self.stats.queue_ms.observe_time(state.came.elapsed());
        self.stats.tokens_in.add((state.ids.len() - cached) as u64);
        if cached > 0 {
            self.stats.prefix_hits.add(1);
            self.stats.prefix_tokens.add(cached as u64);
        }
    }

    /// Pages for `count` more tokens of a request; where there are none left, others are preempted. False where
    /// it has to wait for one that came before it.
    fn reserve_pages(
        &self,
        requests: &[Active<RequestState>],
        at: usize,
        count: usize,
        shared: &mut Shared,
        is_first: bool,
    ) -> Result<bool> {
        let mut state = requests[at].request.state();
        let Some(sequence) = &mut state.sequence else {
            return Ok(false);
        };
        let mut victims = victims(requests, at);
        loop {
            if shared.pool.extend(sequence, count)? {
                return Ok(true);
            }
            match victims.next() {
                Some(other) => self.preempt(&requests[other].request, shared),
                None if is_first && shared.pool.book().used() == sequence.held() => {
                    // It has all pages that there are.
                    shared.pool.check_fits(sequence.room() + count)?;
                    return Ok(false);
                }
                None => return Ok(false),
            }
        }
    }

    /// Takes a request's pages. It computes them again when it goes on, as far as the prefix cache has lost them.
    fn preempt(&self, request: &Request, shared: &mut Shared) {
        let mut state = request.state();
        if state.sequence.is_some() {
            shared.release(&mut state);
            self.stats.preempted.add(1);
            self.table.preempt(request);
        }
    }

    /// Computes what was planned and hands it on. After an interrupt everything is as before.
    pub(super) fn compute_step(
        &self,
        mut planned: Vec<Planned>,
        shared: &mut Shared,
        own: &Request,
        cancel: &CancelToken,
    ) -> Result<()> {
        if planned.is_empty() {
            return Ok(());
        }
        let rows: usize = planned.iter().map(|piece| piece.tokens.len()).sum();
        let alone = planned
            .iter()
            .all(|piece| piece.request.number == own.number);
        let unhurried = CancelToken::new();
        let cancel = if alone || rows > SHORT {
            cancel
        } else {
            &unhurried
        };
        let started = Instant::now();
        let mut drafting = Duration::ZERO;
        let computed = self.device.compute(|| {
            self.draft(&mut planned, shared, cancel)?;
            drafting = started.elapsed();
            self.compute(&mut planned, shared, cancel)
        });
        let took = started.elapsed();
        let interrupted = computed.and_then(|result| result);
        if interrupted.is_ok() {
            let decodes = |piece: &&Planned| piece.tokens.len() == 1 + piece.drafted;
            let decoding = planned.iter().filter(decodes).count();
            let rows: usize = planned.iter().map(|piece| piece.tokens.len()).sum();
            let draft: usize = planned.iter().map(|piece| piece.drafted).sum();
            let reading = rows - decoding - draft;
            if shared.streams || reading == 0 {
                let took = took.saturating_sub(drafting);
                shared.prefill.note(decoding, reading, draft, took);
            }
        }
        let choose = |piece: Planned| self.choose(piece, took);
        let chosen: Vec<Chosen> = match planned.len() {
            1 => planned.into_iter().map(choose).collect(),
            _ => {
                let mut planned = Some(planned);
                let parallel = || -> Vec<Chosen> {
                    let planned = planned.take().unwrap_or_default();
                    planned.into_par_iter().map(choose).collect()
                };
                match threads::install(parallel) {
                    Ok(chosen) => chosen,
                    Err(_) => planned
                        .unwrap_or_default()
                        .into_iter()
                        .map(choose)
                        .collect(),
                }
            }
        };
        for chosen in chosen {
            self.hand_on(chosen, shared);
        }
        interrupted
    }

    /// The logits of every piece that ends, of all adapters in one forward pass. Only an interrupt is an error of the
    /// whole.
    fn compute(
        &self,
        planned: &mut [Planned],
        shared: &mut Shared,
        cancel: &CancelToken,
    ) -> Result<()> {
        // Neighbours of one adapter share its products, and those that get one token more a kernel for attention.
        planned.sort_by_key(|piece| (piece.adapter(), piece.tokens.len() > 1 + piece.drafted));
        match self.compute_group(planned, shared, cancel) {
            Ok(()) => {}
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) if planned.len() == 1 => planned[0].outcome = Some(Err(error)),
            // One of them is at fault, and the others need not suffer.
            Err(_) => {
                for piece in planned.chunks_mut(1) {
                    match self.compute_group(piece, shared, cancel) {
                        Ok(()) => {}
                        Err(Error::Interrupted) => return Err(Error::Interrupted),
                        Err(error) => piece[0].outcome = Some(Err(error)),
                    }
                }
            }
        }
        Ok(())
    }

    /// The logits of some pieces, in one forward pass. After an error the sequences are as before, so that the same
    /// tokens can be computed again.
    fn compute_group(
        &self,
        group: &mut [Planned],
        shared: &mut Shared,
        cancel: &CancelToken,
    ) -> Result<()> {
        let lengths: Vec<usize> = group.iter().map(|piece| piece.sequence.length()).collect();
        let computed = self.rows_of(group, shared, cancel);
        if computed.is_err() {
            for (piece, length) in group.iter_mut().zip(lengths) {
                piece.sequence.rewind(length);
            }
        }
        let mut rows = computed?.into_iter();
        for piece in group.iter_mut().filter(|piece| piece.wanted > 0) {
            piece.outcome = Some(Ok(rows.by_ref().take(piece.wanted).collect()));
        }
        let rows: usize = group.iter().map(|piece| piece.tokens.len()).sum();
        self.stats.batches.add(1);
        self.stats.batch_size.observe(group.len() as f64);
        self.stats.batch_tokens.observe(rows as f64);
        Ok(())
    }

    fn rows_of(
        &self,
        group: &mut [Planned],
        shared: &mut Shared,
        cancel: &CancelToken,
    ) -> Result<Vec<Scores>> {
        let plainly = group.iter().all(Planned::goes_on_plainly);
        let mut readings: Vec<Reading<'_>> = group
            .iter_mut()
            .map(|piece| Reading {
                tokens: &piece.tokens,
                sequence: &mut piece.sequence,
                wanted: piece.wanted,
            })
            .collect();
        let Shared {
            pool, recordings, ..
        } = shared;
        let forward = || {
            let decoder = &self.decoder;
            let logits = decoder.forward_step(&mut readings, pool, recordings, cancel)?;
            let chosen = if plainly {
                decoder.step_ahead(&mut readings, pool, recordings)?
            } else {
                None
            };
            Ok((logits, chosen))
        };
        let bug = "internal error in red-candle while it generated. Please report it";
        let computed = caught(bug, forward)?;
        #[cfg(test)]
        self.faults.check()?;
        match computed {
            (_, Some(chosen)) => Ok(chosen.into_iter().map(Scores::Largest).collect()),
            (Some(logits), None) => scores(&logits, group),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Chooses a request's next token, on whatever thread is free; and those after it as long as draft tokens
    /// are accepted.
    fn choose(&self, piece: Planned, took: Duration) -> Chosen {
        let Planned {
            request,
            tokens,
            sequence,
            drafted,
            outcome,
            ..
        } = piece;
        let mut state = request.state();
        state.sequence = Some(sequence);
        state.run.computed(took);
        let draft = &tokens[tokens.len() - drafted..];
        let mut said = Vec::new();
        let mut failure = None;
        match outcome {
            None => {}
            Some(Err(error)) => failure = Some(error),
            Some(Ok(rows)) => {
                for (at, scores) in rows.iter().enumerate() {
                    match self.take(&mut state, scores) {
                        Ok((token, piece)) => {
                            said.push(piece);
                            let over = state.run.finish_reason().is_some();
                            if over || draft.get(at) != Some(&token) {
                                break;
                            }
                        }
                        Err(error) => {
                            failure = Some(error);
                            break;
                        }
                    }
                }
            }
        }
        if !draft.is_empty() && !said.is_empty() {
            let accepted = said.len() - 1;
            state.speculation.note(draft.len(), accepted);
            self.stats.drafted.add(draft.len() as u64);
            self.stats.accepted.add(accepted as u64);
        }
        let over = state.run.finish_reason().is_some();
        drop(state);
        Chosen {
            request,
            said,
            failure,
            over,
        }
    }

    fn take(&self, state: &mut RequestState, scores: &Scores) -> Result<(u32, String)> {
        let started = Instant::now();
        let room = state.has_room();
        let bug = "internal error in red-candle while it chose a token. Please report it";
        let taken = caught(bug, || state.run.take(scores, room));
        state.run.chose(started.elapsed());
        let (token, piece) = taken?;
        state.ids.push(token);
        self.note_token(state);
        Ok((token, piece))
    }

    fn note_token(&self, state: &mut RequestState) {
        let now = Instant::now();
        self.stats.tokens_out.add(1);
        match state.latest.replace(now) {
            Some(before) => self.stats.token_ms.observe_time(now - before),
            None => self.stats.first_token_ms.observe_time(now - state.came),
        }
    }

    /// Gives a request's owner what there is, and its pages to others where it is over.
    fn hand_on(&self, chosen: Chosen, shared: &mut Shared) {
        let Chosen {
            request,
            said,
            failure,
            over,
        } = chosen;
        let ends = over || failure.is_some();
        {
            let mut state = request.state();
            let known = state.ids.len() - usize::from(!said.is_empty());
            if let Some(sequence) = &mut state.sequence {
                // Draft tokens that were not accepted were computed too.
                if sequence.length() > known {
                    shared.pool.truncate(sequence, known);
                }
                shared.pool.share(sequence);
                shared.pool.pass_by(sequence);
            }
            if let Some(drafter) = &mut shared.drafter {
                drafter.settle(&mut state);
            }
            if ends || !self.table.has(&request) {
                shared.release(&mut state);
            }
        }
        let ended = match failure {
            Some(error) => Some(Err(error)),
            None => over.then_some(Ok(())),
        };
        self.table.tell(&request, said, ended);
        if ends {
            self.note_live(self.table.live());
        }
    }
}

/// Whose pages a request may take, in this order: paused streams, whose callers read nothing at the moment, and
/// those that came later, the latest first.
fn victims(requests: &[Active<RequestState>], at: usize) -> impl Iterator<Item = usize> + '_ {
    let others = move || (0..requests.len()).rev().filter(move |&other| other != at);
    let paused = others().filter(|&other| !requests[other].goes_on);
    let later = others().filter(move |&other| other > at && requests[other].goes_on);
    paused.chain(later)
}

/// Whether requests have come at the same time: all that decode have few tokens yet, and each of the other prompts is
/// a matter of one step.
fn came_together(requests: &[Active<RequestState>], most: usize) -> bool {
    let mut going_on = requests.iter().filter(|one| one.goes_on);
    going_on.all(|one| {
        let state = one.request.state();
        match state.pending().len() {
            1 => state.run.choices().len() < YOUNG,
            pending => pending <= most,
        }
    })
}

/// What the requests need of the logits.
fn scores(logits: &Tensor, group: &[Planned]) -> Result<Vec<Scores>> {
    let needs = group.iter().flat_map(|piece| {
        let state = piece.request.state();
        (0..piece.wanted)
            .map(|row| state.run.needs(row))
            .collect::<Vec<_>>()
    });
    Scores::read(logits, &needs.collect::<Vec<_>>())
}

/// What came of a piece.
struct Chosen {
    request: Arc<Request>,
    /// What became certain of the request with each token; none while its prompt is being read.
    said: Vec<String>,
    failure: Option<Error>,
    over: bool,
}
