//! The draft model: a smaller model that computes the same sequences and drafts their next tokens. Whatever goes
//! wrong with it, requests go on without draft tokens.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::DraftSampler;
use crate::generation::Scores;
use crate::models::decoder::model::Reading;
use crate::models::decoder::{Decoder, KvPool, Recordings, Sequence};
use crate::serving::scheduler::step::{Planned, DRAFT_ROWS};
use crate::serving::scheduler::{Request, RequestState, Scheduler, Shared};
use crate::{CancelToken, Error, Result};
use base::runtime::device::{Device, Home};
use base::runtime::log;
use kernels::paged::KvType;

/// What a scheduler needs to know of a draft model. The model is its owner's, who may close it.
#[derive(Clone)]
pub struct DraftModel {
    decoder: Weak<Decoder>,
    home: Home,
    kind: KvType,
    context_length: usize,
}

impl DraftModel {
    pub fn new(decoder: &Arc<Decoder>, kind: KvType, context_length: usize) -> Self {
        Self {
            home: Home::here(Device::of(decoder.device())),
            decoder: Arc::downgrade(decoder),
            kind,
            context_length,
        }
    }

    /// What a token takes.
    pub fn token_bytes(&self) -> usize {
        let decoder = self.decoder.upgrade();
        decoder.map_or(0, |decoder| {
            KvPool::spread_bytes(decoder.config(), self.kind)
        })
    }

    /// With keys and values of at most `limit` bytes; none where the model is closed, or lost by a fork.
    pub fn drafter(&self, limit: usize) -> Result<Option<Drafter>> {
        let Some(decoder) = self.decoder.upgrade() else {
            return Ok(None);
        };
        if self.home.check().is_err() {
            return Ok(None);
        }
        Ok(Some(Drafter {
            pool: KvPool::new(decoder.config(), self.kind, decoder.stages(), limit)?,
            recordings: Recordings::default(),
            model: self.clone(),
        }))
    }
}

pub struct Drafter {
    model: DraftModel,
    pool: KvPool,
    recordings: Recordings,
}

/// A sequence that the draft model goes on with.
struct Line {
    /// Which of the planned pieces.
    at: usize,
    request: Arc<Request>,
    sequence: Sequence,
    /// What it reads next.
    tokens: Vec<u32>,
    /// How tokens are chosen once everything is read; `None` where that is not so.
    sampler: Option<DraftSampler>,
    draft: Vec<u32>,
}

impl Drafter {
    pub fn pool(&self) -> &KvPool {
        &self.pool
    }

    pub fn forget_idle(&mut self) {
        self.pool.forget_idle();
    }

    /// Gives the pages of a request back.
    pub fn release(&mut self, state: &mut RequestState) {
        if let Some(sequence) = state.draft.take() {
            self.pool.release(sequence);
        }
    }

    /// Drops draft tokens that were not accepted.
    pub fn settle(&mut self, state: &mut RequestState) {
        let Some(sequence) = &mut state.draft else {
            return;
        };
        let pairs = sequence.tokens().iter().zip(&state.ids);
        let common = pairs.take_while(|(read, id)| read == id).count();
        if common < sequence.length() {
            self.pool.truncate(sequence, common);
        }
        self.pool.share(sequence);
        self.pool.pass_by(sequence);
    }

    /// What is to be read next of a request, at most `budget` tokens, with room for draft tokens.
    fn line(
        &mut self,
        decoder: &Decoder,
        (at, piece): (usize, &Planned),
        budget: usize,
        sampler: Option<DraftSampler>,
    ) -> Result<Option<Line>> {
        let mut state = piece.request.state();
        let end = piece.end();
        let room = sampler.as_ref().map_or(0, DraftSampler::left);
        let length = state.ids.len() + room;
        if length > self.model.context_length || decoder.check_tokens(&state.ids).is_err() {
            self.release(&mut state);
            return Ok(None);
        }
        let rope_variant = decoder.rope_variant(length);
        // The last token is always run, since its logits are needed.
        let known = &state.ids[..state.ids.len() - 1];
        let fits = |sequence: &Sequence| {
            sequence.rope_variant() == rope_variant && known.starts_with(sequence.tokens())
        };
        if !state.draft.as_ref().is_some_and(fits) {
            self.release(&mut state);
        }
        let mut sequence = match state.draft.take() {
            Some(sequence) => sequence,
            None => {
                let known = &state.ids[..state.ids.len() - 1];
                self.pool.begin(None, rope_variant, known)?
            }
        };
        let read = sequence.length();
        let count = end.saturating_sub(read).min(budget);
        let has_room = match self.pool.extend(&mut sequence, count + room) {
            Ok(has_room) => has_room,
            Err(error) => {
                self.pool.release(sequence);
                return Err(error);
            }
        };
        if count == 0 || !has_room {
            state.draft = Some(sequence);
            return Ok(None);
        }
        Ok(Some(Line {
            at,
            request: piece.request.clone(),
            tokens: state.ids[read..read + count].to_vec(),
            sampler: sampler.filter(|_| read + count == end),
            sequence,
            draft: Vec::new(),
        }))
    }

    /// One step of the draft model; a sequence that has read everything drafts a token more.
    fn step(
        &mut self,
        decoder: &Decoder,
        lines: &mut [Line],
        vocabulary: usize,
        cancel: &CancelToken,
    ) -> Result<()> {
        let mut lines: Vec<&mut Line> = lines
            .iter_mut()
            .filter(|line| !line.tokens.is_empty())
            .collect();
        let mut readings: Vec<Reading<'_>> = lines
            .iter_mut()
            .map(|line| Reading {
                tokens: &line.tokens,
                sequence: &mut line.sequence,
                wanted: usize::from(line.sampler.is_some()),
            })
            .collect();
        let (pool, recordings) = (&mut self.pool, &mut self.recordings);
        let logits = decoder.forward_step(&mut readings, pool, recordings, cancel)?;
        let rows = match logits {
            Some(logits) => {
                let known = logits.narrow(1, 0, vocabulary.min(logits.dim(1)?))?;
                let samplers = lines.iter().filter_map(|line| line.sampler.as_ref());
                let needs: Vec<_> = samplers.map(DraftSampler::needs).collect();
                Scores::read(&known, &needs)?
            }
            None => Vec::new(),
        };
        let mut rows = rows.iter();
        for line in lines {
            line.tokens.clear();
            let Some(sampler) = &mut line.sampler else {
                continue;
            };
            let Some(row) = rows.next() else { continue };
            if let Some(token) = sampler.take(row) {
                line.draft.push(token);
                if sampler.left() > 0 {
                    line.tokens.push(token);
                }
            }
        }
        Ok(())
    }
}

impl Scheduler {
    /// Lets the draft model read what the step reads, and draft what follows where a step has few rows.
    /// Only an interrupt is an error.
    pub(in crate::serving) fn draft(
        &self,
        planned: &mut [Planned],
        shared: &mut Shared,
        cancel: &CancelToken,
    ) -> Result<()> {
        let Some(drafter) = &mut shared.drafter else {
            return Ok(());
        };
        let Some(decoder) = drafter.model.decoder.upgrade() else {
            shared.drafter = None;
            return Ok(());
        };
        let mut lines = Vec::new();
        let drafted = || {
            self.lines(&decoder, planned, shared, &mut lines)?;
            self.draft_lines(&decoder, &mut lines, shared, cancel)
        };
        let drafted = catch_unwind(AssertUnwindSafe(drafted)).unwrap_or_else(|_| {
            let message = "internal error in red-candle while a draft model drafted";
            Err(Error::Internal(message.to_owned()))
        });
        for line in &mut lines {
            line.request.state().draft = Some(std::mem::take(&mut line.sequence));
        }
        match drafted {
            Ok(()) => {
                for line in lines {
                    self.verify(line.draft, &mut planned[line.at], &mut shared.pool);
                }
                Ok(())
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                log::warn(format!(
                    "the draft model is not used any more, and requests go on without it: {error}"
                ));
                shared.drafter = None;
                Ok(())
            }
        }
    }

    /// What the draft model is to read.
    fn lines(
        &self,
        decoder: &Decoder,
        planned: &[Planned],
        shared: &mut Shared,
        lines: &mut Vec<Line>,
    ) -> Result<()> {
        let Some(drafter) = &mut shared.drafter else {
            return Ok(());
        };
        let most = self.device.prompt_tokens();
        let budget = match planned.len() {
            1 => most,
            others => shared.prefill.part(others, most),
        };
        let rows: usize = planned.iter().map(|piece| piece.tokens.len()).sum();
        let follows = |piece: &Planned| piece.request.state().speculation.follows();
        let ending = planned.iter().filter(|piece| piece.wanted > 0).count();
        let drafts = |piece: &&Planned| piece.wanted == 1 && follows(piece);
        let drafting = planned.iter().filter(drafts).count();
        let room = DRAFT_ROWS.saturating_sub(rows) / drafting.max(1);
        for (at, piece) in planned.iter().enumerate() {
            // With draft tokens of a constraint, it catches up later.
            if piece.drafted > 0 {
                continue;
            }
            let reads = piece.wanted == 0 && follows(piece);
            let mut sampler = match (
                piece.wanted,
                room,
                shared.prefill.draft_cost(ending, drafting),
            ) {
                // All sequences of a step wait for the draft tokens of some.
                (1, 1.., Some(cost)) => {
                    let cost = cost * ending as f64 / drafting.max(1) as f64;
                    let mut state = piece.request.state();
                    let RequestState {
                        run, speculation, ..
                    } = &mut *state;
                    speculation.sampler(run, cost)
                }
                _ => None,
            };
            if let Some(sampler) = &mut sampler {
                sampler.limit(room);
            }
            if !reads && sampler.is_none() {
                continue;
            }
            lines.extend(drafter.line(decoder, (at, piece), budget, sampler)?);
        }
        Ok(())
    }

    fn draft_lines(
        &self,
        decoder: &Decoder,
        lines: &mut [Line],
        shared: &mut Shared,
        cancel: &CancelToken,
    ) -> Result<()> {
        let Some(drafter) = &mut shared.drafter else {
            return Ok(());
        };
        let vocabulary = self.decoder.config().vocab_size;
        while lines.iter().any(|line| !line.tokens.is_empty()) {
            let rows: usize = lines.iter().map(|line| line.tokens.len()).sum();
            let started = Instant::now();
            drafter.step(decoder, lines, vocabulary, cancel)?;
            // A sequence that is behind by more has a prompt to read.
            if rows <= 2 * lines.len() {
                shared.prefill.note_draft(started.elapsed());
            }
        }
        Ok(())
    }
}
