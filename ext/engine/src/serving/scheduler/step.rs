//! One pass over the weights: which texts go into it, and what becomes of its logits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Scheduler, Shared, Text, Work};
use crate::generation::Scores;
use crate::models::decoder::model::Reading;
use crate::models::decoder::{KvPool, Sequence};
use crate::serving::leader::{caught, Leader, UnderWay};
use crate::{CancelToken, Error, Result};
use base::runtime::threads;

/// A pass of more rows than this, or of one text alone, ends at once when its thread is interrupted; a
/// short one for others too is brought to its end.
const SHORT: usize = 64;

/// A part of a prompt is at least this long where nobody watches the others' tokens come: then it matters
/// when texts end, not how long a pass takes.
const UNWATCHED: usize = 64;

/// Guesses are added to a pass up to this many rows: beyond, they cost more than they may save.
pub(super) const GUESSING: usize = 16;

/// A piece of a text that a pass reads.
pub(super) struct Planned {
    pub text: Arc<Text>,
    pub tokens: Vec<u32>,
    sequence: Sequence,
    /// How many of its last tokens' logits are wanted.
    pub wanted: usize,
    /// The last of the tokens that are guesses.
    pub guesses: usize,
    outcome: Option<Result<Vec<Scores>>>,
}

impl Planned {
    /// How much of the text will have been read.
    pub fn end(&self) -> usize {
        self.sequence.length() + self.tokens.len()
    }

    /// Whether its next token is the likeliest, after which one more is read.
    fn goes_on_plainly(&self) -> bool {
        let work = self.text.work();
        self.wanted == 1 && self.guesses == 0 && work.has_room() && work.run.goes_on_plainly()
    }

    fn adapter(&self) -> usize {
        let adapter = self.sequence.adapter();
        adapter.map_or(0, |adapter| Arc::as_ptr(adapter) as usize)
    }
}

impl Scheduler {
    /// What the next step computes, first come, first served: one token of every sequence that decodes, and
    /// parts of prompts.
    pub(super) fn plan(&self, shared: &mut Shared) -> Vec<Planned> {
        let texts = self.table.texts();
        self.begin(&texts, shared);
        let budget = self.prompt_budget(&texts, shared);
        let mut planned = self.fill(&texts, budget, shared);
        if planned.is_empty() && budget == 0 {
            // The prompt that came first has the pages that those who decode wait for.
            planned = self.fill(&texts, self.device.prompt_tokens(), shared);
        }
        self.add_guesses(&mut planned, &mut shared.pool);
        planned
    }

    /// Gives a sequence to every text that may go on and has none.
    fn begin(&self, texts: &[UnderWay<Work>], shared: &mut Shared) {
        let mut running = 0;
        for UnderWay { text, goes_on, .. } in texts {
            let mut work = text.work();
            if *goes_on {
                let begins = work.cached.is_none();
                if let Err(error) = work.begin(&self.decoder, &mut shared.pool) {
                    drop(work);
                    self.fail(text, error, shared);
                    continue;
                }
                if begins {
                    self.note_beginning(&work);
                }
            }
            running += usize::from(work.sequence.is_some());
        }
        self.note_running(running, self.table.live());
    }

    /// How many tokens of prompts the next step computes beside those that decode.
    fn prompt_budget(&self, texts: &[UnderWay<Work>], shared: &mut Shared) -> usize {
        let Shared { pace, paced, .. } = shared;
        let most = self.device.prompt_tokens();
        let decodes = |one: &&UnderWay<Work>| one.goes_on && one.text.work().pending().len() == 1;
        let decoding: Vec<_> = texts.iter().filter(decodes).collect();
        *paced = decoding.iter().any(|one| one.streams);
        match (decoding.len(), *paced) {
            (0, _) => most,
            (decoding, true) => match pace.part(decoding, most) {
                0 => 0,
                part => part.max(self.device.least_part()),
            },
            (decoding, false) => pace.part(decoding, most).max(UNWATCHED.min(most)),
        }
    }

    /// Takes what fits into the next step, in the order of arrival.
    fn fill(
        &self,
        texts: &[UnderWay<Work>],
        mut budget: usize,
        shared: &mut Shared,
    ) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::new();
        for (at, UnderWay { text, goes_on, .. }) in texts.iter().enumerate() {
            let pending = text.work().pending().len();
            if !goes_on || pending == 0 || text.work().sequence.is_none() {
                continue;
            }
            let count = match pending {
                1 => 1,
                _ if budget == 0 => 0,
                _ => self.decoder.piece_length(text.work().pending(), budget),
            };
            if count == 0 {
                continue;
            }
            match self.make_room(texts, at, count, shared, planned.is_empty()) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    self.fail(text, error, shared);
                    continue;
                }
            }
            let mut work = text.work();
            let tokens = work.pending()[..count].to_vec();
            if let Some(sequence) = work.sequence.take() {
                budget = budget.saturating_sub(if pending == 1 { 0 } else { count });
                planned.push(Planned {
                    text: text.clone(),
                    tokens,
                    sequence,
                    wanted: usize::from(count == pending),
                    guesses: 0,
                    outcome: None,
                });
            }
        }
        planned
    }

    /// Ends a text that can't go on; others may have its pages.
    fn fail(&self, text: &Text, error: Error, shared: &mut Shared) {
        shared.release(&mut text.work());
        self.table.tell(text, [], Some(Err(error)));
    }

    /// Lets texts guess ahead where a pass has few rows.
    fn add_guesses(&self, planned: &mut [Planned], pool: &mut KvPool) {
        let rows: usize = planned.iter().map(|piece| piece.tokens.len()).sum();
        let mut room = GUESSING.saturating_sub(rows);
        for piece in planned.iter_mut().filter(|piece| piece.wanted == 1) {
            let mut work = piece.text.work();
            let Work { run, ids, .. } = &mut *work;
            let mut guesses = match room {
                0 => continue,
                _ => run.guess(ids),
            };
            drop(work);
            guesses.truncate(room);
            self.check(guesses, piece, pool);
            room -= piece.guesses;
        }
    }

    /// Lets a pass check guesses of what follows a text, as far as there is room.
    pub(super) fn check(&self, mut guesses: Vec<u32>, piece: &mut Planned, pool: &mut KvPool) {
        let (length, most) = {
            let work = piece.text.work();
            (work.ids.len(), work.context_length)
        };
        guesses.truncate(most.saturating_sub(length + 1));
        let variant = self.decoder.rope_variant(length + guesses.len());
        let known = self.decoder.check_tokens(&guesses).is_ok();
        let count = piece.tokens.len() + guesses.len();
        let fits = known && variant == piece.sequence.rope_variant();
        if guesses.is_empty() || !fits || !pool.extend(&mut piece.sequence, count).unwrap_or(false)
        {
            return;
        }
        piece.guesses = guesses.len();
        piece.wanted += guesses.len();
        piece.tokens.append(&mut guesses);
    }

    fn note_beginning(&self, work: &Work) {
        let cached = work.cached.unwrap_or(0);
        self.stats.queue_ms.observe_time(work.came.elapsed());
        self.stats.tokens_in.add((work.ids.len() - cached) as u64);
        if cached > 0 {
            self.stats.prefix_hits.add(1);
            self.stats.prefix_tokens.add(cached as u64);
        }
    }

    /// Pages for `count` more tokens of a text; where there are none left, others are preempted. False where
    /// it has to wait for one that came before it.
    fn make_room(
        &self,
        texts: &[UnderWay<Work>],
        at: usize,
        count: usize,
        shared: &mut Shared,
        is_first: bool,
    ) -> Result<bool> {
        let mut work = texts[at].text.work();
        let Some(sequence) = &mut work.sequence else {
            return Ok(false);
        };
        let mut victims = victims(texts, at);
        loop {
            if shared.pool.extend(sequence, count)? {
                return Ok(true);
            }
            match victims.next() {
                Some(other) => self.preempt(&texts[other].text, shared),
                None if is_first && shared.pool.book().used() == sequence.held() => {
                    // It has all pages that there are.
                    shared.pool.check_fits(sequence.room() + count)?;
                    return Ok(false);
                }
                None => return Ok(false),
            }
        }
    }

    /// Takes a text's pages. It computes them again when it goes on, as far as the prefix cache has lost them.
    fn preempt(&self, text: &Text, shared: &mut Shared) {
        let mut work = text.work();
        if work.sequence.is_some() {
            shared.release(&mut work);
            self.stats.preempted.add(1);
            self.table.preempt(text);
        }
    }

    /// Computes what was planned and hands it on. After an interrupt everything is as before.
    pub(super) fn compute_pass(
        &self,
        mut planned: Vec<Planned>,
        shared: &mut Shared,
        own: &Text,
        cancel: &CancelToken,
    ) -> Result<()> {
        if planned.is_empty() {
            return Ok(());
        }
        let rows: usize = planned.iter().map(|piece| piece.tokens.len()).sum();
        let alone = planned.iter().all(|piece| piece.text.number == own.number);
        let unhurried = CancelToken::new();
        let cancel = if alone || rows > SHORT {
            cancel
        } else {
            &unhurried
        };
        let started = Instant::now();
        let mut drafted = Duration::ZERO;
        let computed = threads::install(|| {
            self.device.keeping_awake(|| {
                self.draft(&mut planned, shared, cancel)?;
                drafted = started.elapsed();
                self.compute(&mut planned, shared, cancel)
            })
        });
        let took = started.elapsed();
        let interrupted = computed.and_then(|result| result);
        if interrupted.is_ok() {
            let decodes = |piece: &&Planned| piece.tokens.len() == 1 + piece.guesses;
            let decoding = planned.iter().filter(decodes).count();
            let rows: usize = planned.iter().map(|piece| piece.tokens.len()).sum();
            let guesses: usize = planned.iter().map(|piece| piece.guesses).sum();
            let reading = rows - decoding - guesses;
            if shared.paced || reading == 0 {
                let took = took.saturating_sub(drafted);
                shared.pace.note(decoding, reading, guesses, took);
            }
            self.stats.batches.add(1);
            self.stats.batch_size.observe(planned.len() as f64);
            self.stats.batch_tokens.observe(rows as f64);
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

    /// The logits of every piece that ends. Only an interrupt is an error of the whole.
    fn compute(
        &self,
        planned: &mut [Planned],
        shared: &mut Shared,
        cancel: &CancelToken,
    ) -> Result<()> {
        planned.sort_by_key(Planned::adapter);
        for group in planned.chunk_by_mut(|a, b| a.adapter() == b.adapter()) {
            let computed = self.compute_group(group, shared, cancel);
            match computed {
                Ok(()) => {}
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) if group.len() == 1 => group[0].outcome = Some(Err(error)),
                // One of them is at fault, and the others need not suffer.
                Err(_) => {
                    for piece in group.chunks_mut(1) {
                        match self.compute_group(piece, shared, cancel) {
                            Ok(()) => {}
                            Err(Error::Interrupted) => return Err(Error::Interrupted),
                            Err(error) => piece[0].outcome = Some(Err(error)),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The logits of pieces of one adapter. After an error the sequences are as before, so that the same
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
        let bug = "red-candle met a bug of its own while it generated. Please report it";
        let computed = caught(bug, forward)?;
        #[cfg(test)]
        self.faults.check()?;
        match computed {
            (_, Some(chosen)) => Ok(chosen.into_iter().map(Scores::Largest).collect()),
            (Some(logits), None) => scores(&logits, group),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Lets a text choose its next token, on whatever thread is free; and those after it as long as the
    /// guesses were right.
    fn choose(&self, piece: Planned, took: Duration) -> Chosen {
        let Planned {
            text,
            tokens,
            sequence,
            guesses,
            outcome,
            ..
        } = piece;
        let mut work = text.work();
        work.sequence = Some(sequence);
        work.run.computed(took);
        let guesses = &tokens[tokens.len() - guesses..];
        let mut said = Vec::new();
        let mut failure = None;
        match outcome {
            None => {}
            Some(Err(error)) => failure = Some(error),
            Some(Ok(rows)) => {
                for (at, scores) in rows.iter().enumerate() {
                    match self.take(&mut work, scores) {
                        Ok((token, piece)) => {
                            said.push(piece);
                            let over = work.run.finish_reason().is_some();
                            if over || guesses.get(at) != Some(&token) {
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
        if !guesses.is_empty() && !said.is_empty() {
            let right = said.len() - 1;
            work.run.guessed(guesses.len(), right);
            self.stats.drafted.add(guesses.len() as u64);
            self.stats.accepted.add(right as u64);
        }
        let over = work.run.finish_reason().is_some();
        drop(work);
        Chosen {
            text,
            said,
            failure,
            over,
        }
    }

    fn take(&self, work: &mut Work, scores: &Scores) -> Result<(u32, String)> {
        let started = Instant::now();
        let room = work.has_room();
        let bug = "red-candle met a bug of its own while it chose a token. Please report it";
        let taken = caught(bug, || work.run.take(scores, room));
        work.run.chose(started.elapsed());
        let (token, piece) = taken?;
        work.ids.push(token);
        self.note_token(work);
        Ok((token, piece))
    }

    fn note_token(&self, work: &mut Work) {
        let now = Instant::now();
        self.stats.tokens_out.add(1);
        match work.latest.replace(now) {
            Some(before) => self.stats.token_ms.observe_time(now - before),
            None => self.stats.first_token_ms.observe_time(now - work.came),
        }
    }

    /// Gives a text's owner what there is, and its pages to others where it is over.
    fn hand_on(&self, chosen: Chosen, shared: &mut Shared) {
        let Chosen {
            text,
            said,
            failure,
            over,
        } = chosen;
        let ends = over || failure.is_some();
        {
            let mut work = text.work();
            let known = work.ids.len() - usize::from(!said.is_empty());
            if let Some(sequence) = &mut work.sequence {
                // Wrong guesses were read too.
                if sequence.length() > known {
                    shared.pool.truncate(sequence, known);
                }
                shared.pool.share(sequence);
                shared.pool.pass_by(sequence);
            }
            if let Some(drafter) = &mut shared.drafter {
                drafter.settle(&mut work);
            }
            if ends || !self.table.has(&text) {
                shared.release(&mut work);
            }
        }
        let ended = match failure {
            Some(error) => Some(Err(error)),
            None => over.then_some(Ok(())),
        };
        self.table.tell(&text, said, ended);
        if ends {
            self.note_live(self.table.live());
        }
    }
}

/// Whose pages a text may take, in this order: paused streams, whose callers read nothing at the moment, and
/// those that came later, the latest first.
fn victims(texts: &[UnderWay<Work>], at: usize) -> impl Iterator<Item = usize> + '_ {
    let others = move || (0..texts.len()).rev().filter(move |&other| other != at);
    let paused = others().filter(|&other| !texts[other].goes_on);
    let later = others().filter(move |&other| other > at && texts[other].goes_on);
    paused.chain(later)
}

/// What the texts need of the logits.
fn scores(logits: &Tensor, group: &[Planned]) -> Result<Vec<Scores>> {
    let choosing = group.iter().filter(|piece| piece.wanted > 0);
    Scores::read(logits, choosing.map(|piece| piece.text.work().run.needs()))
}

/// What came of a piece.
struct Chosen {
    text: Arc<Text>,
    /// What became certain of the text with each token; none while its prompt is being read.
    said: Vec<String>,
    failure: Option<Error>,
    over: bool,
}
