//! A smaller model that reads along and guesses what the larger one will say. It costs or saves time, and
//! changes no text; whatever goes wrong with it, the texts go on without guesses.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::step::{Planned, GUESSING};
use super::{Scheduler, Shared, Text, Work};
use crate::generation::drafting::Preview;
use crate::generation::Scores;
use crate::models::decoder::model::Reading;
use crate::models::decoder::{Decoder, KvPool, Recordings, Sequence};
use crate::{CancelToken, Error, Result};
use base::runtime::device::{Device, Home};
use base::runtime::log;
use kernels::paged::KvType;

/// What a scheduler needs to know of a smaller model. The model is its owner's, who may close it.
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
            pool: KvPool::new(decoder.config(), self.kind, decoder.device(), limit)?,
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

/// A text that the smaller model goes on with.
struct Line {
    /// Which of the planned pieces.
    at: usize,
    text: Arc<Text>,
    sequence: Sequence,
    /// What it reads next.
    tokens: Vec<u32>,
    /// How tokens are chosen once everything is read; `None` where that is not so.
    preview: Option<Preview>,
    guesses: Vec<u32>,
}

impl Drafter {
    pub fn pool(&self) -> &KvPool {
        &self.pool
    }

    pub fn forget_idle(&mut self) {
        self.pool.forget_idle();
    }

    /// Gives the pages of a text back.
    pub fn release(&mut self, work: &mut Work) {
        if let Some(sequence) = work.draft.take() {
            self.pool.release(sequence);
        }
    }

    /// Forgets guesses that turned out wrong.
    pub fn settle(&mut self, work: &mut Work) {
        let Some(sequence) = &mut work.draft else {
            return;
        };
        let pairs = sequence.tokens().iter().zip(&work.ids);
        let common = pairs.take_while(|(read, id)| read == id).count();
        if common < sequence.length() {
            self.pool.truncate(sequence, common);
        }
        self.pool.share(sequence);
        self.pool.pass_by(sequence);
    }

    /// What is to be read next of a text, at most `budget` tokens, with room for guesses.
    fn line(
        &mut self,
        decoder: &Decoder,
        (at, piece): (usize, &Planned),
        budget: usize,
        preview: Option<Preview>,
    ) -> Result<Option<Line>> {
        let mut work = piece.text.work();
        let end = piece.end();
        let guesses = preview.as_ref().map_or(0, Preview::left);
        let length = work.ids.len() + guesses;
        if length > self.model.context_length || decoder.check_tokens(&work.ids).is_err() {
            self.release(&mut work);
            return Ok(None);
        }
        let rope_variant = decoder.rope_variant(length);
        // The last token is always run, since its logits are needed.
        let known = &work.ids[..work.ids.len() - 1];
        let fits = |sequence: &Sequence| {
            sequence.rope_variant() == rope_variant && known.starts_with(sequence.tokens())
        };
        if !work.draft.as_ref().is_some_and(fits) {
            self.release(&mut work);
        }
        let mut sequence = match work.draft.take() {
            Some(sequence) => sequence,
            None => {
                let known = &work.ids[..work.ids.len() - 1];
                self.pool.begin(None, rope_variant, known)?
            }
        };
        let read = sequence.length();
        let count = end.saturating_sub(read).min(budget);
        let has_room = match self.pool.extend(&mut sequence, count + guesses) {
            Ok(has_room) => has_room,
            Err(error) => {
                self.pool.release(sequence);
                return Err(error);
            }
        };
        if count == 0 || !has_room {
            work.draft = Some(sequence);
            return Ok(None);
        }
        Ok(Some(Line {
            at,
            text: piece.text.clone(),
            tokens: work.ids[read..read + count].to_vec(),
            preview: preview.filter(|_| read + count == end),
            sequence,
            guesses: Vec::new(),
        }))
    }

    /// One pass of the smaller model; whoever has read everything guesses a token more.
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
                wanted: usize::from(line.preview.is_some()),
            })
            .collect();
        let (pool, recordings) = (&mut self.pool, &mut self.recordings);
        let logits = decoder.forward_step(&mut readings, pool, recordings, cancel)?;
        let rows = match logits {
            Some(logits) => {
                let known = logits.narrow(1, 0, vocabulary.min(logits.dim(1)?))?;
                let previews = lines.iter().filter_map(|line| line.preview.as_ref());
                Scores::read(&known, previews.map(Preview::needs))?
            }
            None => Vec::new(),
        };
        let mut rows = rows.iter();
        for line in lines {
            line.tokens.clear();
            let Some(preview) = &mut line.preview else {
                continue;
            };
            let Some(row) = rows.next() else { continue };
            if let Some(token) = preview.take(row) {
                line.guesses.push(token);
                if preview.left() > 0 {
                    line.tokens.push(token);
                }
            }
        }
        Ok(())
    }
}

impl Scheduler {
    /// Lets the smaller model read what the pass reads, and guess what follows where a pass has few rows.
    /// Only an interrupt is an error.
    pub(super) fn draft(
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
            self.guess(&decoder, &mut lines, shared, cancel)
        };
        let drafted = catch_unwind(AssertUnwindSafe(drafted)).unwrap_or_else(|_| {
            let message = "red-candle met a bug of its own while a draft model guessed";
            Err(Error::Internal(message.to_owned()))
        });
        for line in &mut lines {
            line.text.work().draft = Some(std::mem::take(&mut line.sequence));
        }
        match drafted {
            Ok(()) => {
                for line in lines {
                    self.check(line.guesses, &mut planned[line.at], &mut shared.pool);
                }
                Ok(())
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                log::warn(format!(
                    "the draft model is not used any more, and texts go on without it: {error}"
                ));
                shared.drafter = None;
                Ok(())
            }
        }
    }

    /// What the smaller model is to read.
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
            others => shared.pace.part(others, most),
        };
        let rows: usize = planned.iter().map(|piece| piece.tokens.len()).sum();
        let is_drafted = |piece: &Planned| piece.text.work().run.is_drafted();
        let ending = planned.iter().filter(|piece| piece.wanted > 0).count();
        let guessing = |piece: &Planned| piece.wanted == 1 && is_drafted(piece);
        let guessing = planned.iter().filter(|piece| guessing(piece)).count();
        let room = GUESSING.saturating_sub(rows) / guessing.max(1);
        for (at, piece) in planned.iter().enumerate() {
            // With guesses that a constraint makes, it catches up later.
            if piece.guesses > 0 {
                continue;
            }
            let reads = piece.wanted == 0 && is_drafted(piece);
            let mut preview = match (piece.wanted, room, shared.pace.guess_cost(ending, guessing)) {
                // All texts of a pass wait for the guesses of some.
                (1, 1.., Some(cost)) => {
                    let cost = cost * ending as f64 / guessing.max(1) as f64;
                    piece.text.work().run.preview(cost)
                }
                _ => None,
            };
            if let Some(preview) = &mut preview {
                preview.limit(room);
            }
            if !reads && preview.is_none() {
                continue;
            }
            lines.extend(drafter.line(decoder, (at, piece), budget, preview)?);
        }
        Ok(())
    }

    fn guess(
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
            // Whoever is behind by more has a prompt to read.
            if rows <= 2 * lines.len() {
                shared.pace.note_draft(started.elapsed());
            }
        }
        Ok(())
    }
}
