//! One request: the sequences of a call, each generated token by token or by beam search.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Seq2SeqParts;
use crate::generation::{
    Choice, Constraint, FinishReason, Search, SearchSettings, StopMatcher, StopOutcome, Timings,
    TokenRules,
};
use crate::models::seq2seq::{Cache, Memory};
use crate::{CancelToken, Error, Result};

/// What has become of a sequence.
pub struct Seq2SeqOutput {
    pub text: String,
    pub choices: Vec<Choice>,
    pub finish_reason: Option<FinishReason>,
    pub timings: Timings,
    /// How many tokens the source has.
    pub source_tokens: usize,
}

struct Sequence {
    source: Vec<u32>,
    search: Search,
}

/// The sequences of a call.
pub(crate) struct RequestState {
    parts: Arc<Seq2SeqParts>,
    settings: SearchSettings,
    sequences: Vec<Sequence>,
    /// Those that are not over, in the order of the memory.
    active: Vec<usize>,
    /// `None` before the sources are encoded.
    state: Option<(Memory, Cache)>,
    /// What a sequence that follows a constraint begins with, which is no part of its text.
    begin: Option<u32>,
    encoding: Duration,
    decoding: Duration,
}

impl RequestState {
    pub fn new(
        parts: Arc<Seq2SeqParts>,
        sources: Vec<Vec<u32>>,
        mut settings: SearchSettings,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Self> {
        settings.check(constraint.is_some())?;
        settings.config.logit_bias.check(parts.model.vocabulary())?;
        if sources.iter().any(Vec::is_empty) {
            return Err(Error::InvalidInput(
                "a text has no tokens; pass some text".to_owned(),
            ));
        }
        if constraint.is_some() && sources.len() != 1 {
            return Err(Error::Internal(
                "a constraint is one text's, and several were given".to_owned(),
            ));
        }
        let begin = match constraint {
            Some(_) => settings.rules.forced_begin,
            None => None,
        };
        if constraint.is_some() {
            // The constraint alone says which tokens may come, and where the sequence ends.
            settings.rules = TokenRules {
                end_ids: settings.rules.end_ids,
                ..TokenRules::default()
            };
        }
        let most = parts.model.max_target().unwrap_or(usize::MAX);
        settings.config.max_new_tokens = settings.config.max_new_tokens.min(most);
        settings.rules.max_new_tokens = settings.config.max_new_tokens;
        let mut constraint = constraint;
        let sequences = sources
            .into_iter()
            .map(|source| {
                let (start, tokenizer) = (parts.start, &parts.tokenizer);
                let search = Search::new(&settings, &[start], tokenizer, constraint.take())?;
                Ok(Sequence { source, search })
            })
            .collect::<Result<Vec<_>>>()?;
        let active = (0..sequences.len())
            .filter(|&at| !sequences[at].search.is_over())
            .collect();
        Ok(Self {
            parts,
            settings,
            sequences,
            active,
            state: None,
            begin,
            encoding: Duration::ZERO,
            decoding: Duration::ZERO,
        })
    }

    pub fn parts(&self) -> &Arc<Seq2SeqParts> {
        &self.parts
    }

    pub fn is_over(&self) -> bool {
        self.active.is_empty()
    }

    /// How many are not over.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// How many tokens are to be encoded before the first decode step; 0 once they are.
    pub fn unencoded(&self) -> usize {
        match &self.state {
            Some(_) => 0,
            None => self.sources().map(<[u32]>::len).sum(),
        }
    }

    /// Of the sequences that are not over.
    pub fn sources(&self) -> impl Iterator<Item = &[u32]> {
        let active = self.active.iter();
        active.map(|&at| self.sequences[at].source.as_slice())
    }

    /// Takes the encoder states of the sources.
    pub fn encoded(&mut self, memory: Memory, time: Duration) {
        self.state = Some((memory, Cache::default()));
        self.encoding = time;
    }

    /// Every row's latest token, and what it follows.
    pub fn latest(&mut self, cancel: &CancelToken) -> Result<(Vec<u32>, &Cache, &Memory)> {
        let parts = self.parts.clone();
        let (memory, cache) = self.state.as_mut().ok_or_else(|| {
            Error::Internal("the sources of sequences were not encoded".to_owned())
        })?;
        if let (0, Some(_)) = (cache.length(), self.begin) {
            let start = vec![parts.start; self.active.len()];
            *cache = parts.model.decode(&start, cache, memory, cancel)?.1;
        }
        let start = self.begin.unwrap_or(parts.start);
        let mut ids = Vec::new();
        for &at in &self.active {
            self.sequences[at].search.last_tokens(start, &mut ids);
        }
        Ok((ids, cache, memory))
    }

    /// How many rows there are: sequences that are not over, times beams.
    pub fn rows(&self) -> usize {
        self.active.len() * self.settings.num_beams
    }

    /// Takes note of how long it took to compute the logits of the next tokens.
    pub fn computed(&mut self, time: Duration) {
        let stats = &self.parts.stats;
        stats.tokens_out.add(self.active.len() as u64);
        let times = if self.decoding.is_zero() {
            &stats.first_token_ms
        } else {
            &stats.token_ms
        };
        self.decoding += time;
        for &at in &self.active {
            times.observe_time(time);
            if let Search::Tokens(run) = &mut self.sequences[at].search {
                run.computed(time);
            }
        }
    }

    /// Chooses the next token of every sequence by its rows of logits, and returns the new text of the first.
    /// `cache` has what the logits were made of.
    pub fn choose(&mut self, rows: &[Vec<f32>], cache: &Cache) -> Result<String> {
        let width = self.settings.num_beams;
        let mut shown = String::new();
        let mut parents: Vec<u32> = Vec::with_capacity(rows.len());
        let mut staying = Vec::new();
        let started = Instant::now();
        for (place, (&number, rows)) in self.active.iter().zip(rows.chunks(width)).enumerate() {
            let sequence = &mut self.sequences[number];
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            let piece = sequence.search.take(
                &self.settings.rules,
                (&[self.parts.start], &self.parts.tokenizer),
                &rows,
            )?;
            let first = (place * width) as u32;
            if let Search::Tokens(run) = &mut sequence.search {
                run.chose(started.elapsed());
            }
            if number == 0 {
                shown = piece.text;
            }
            if !sequence.search.is_over() {
                staying.push(place);
                parents.extend(piece.parents.iter().map(|&parent| first + parent as u32));
            }
        }
        self.go_on(&staying, &parents, cache)?;
        Ok(shown)
    }

    /// Keeps the sequences at these places of the active ones, and in each row what it continues.
    fn go_on(&mut self, staying: &[usize], parents: &[u32], cache: &Cache) -> Result<()> {
        // A GPU has no tensors of nothing.
        self.state = match &self.state {
            Some((memory, _)) if !staying.is_empty() => {
                Some((memory.of(staying)?, cache.of(parents)?))
            }
            _ => None,
        };
        self.active = staying.iter().map(|&place| self.active[place]).collect();
        Ok(())
    }

    pub fn outputs(&self) -> Result<Vec<Seq2SeqOutput>> {
        let sequences = self.sequences.iter();
        sequences.map(|sequence| self.outcome(sequence)).collect()
    }

    fn outcome(&self, sequence: &Sequence) -> Result<Seq2SeqOutput> {
        let source_tokens = sequence.source.len();
        let search = match &sequence.search {
            Search::Tokens(run) => {
                return Ok(Seq2SeqOutput {
                    text: run.text().to_owned(),
                    choices: run.choices().to_vec(),
                    finish_reason: run.finish_reason(),
                    timings: run.timings(),
                    source_tokens,
                })
            }
            Search::Beams(search) => search,
        };
        let tokens = search.tokens();
        let decoded = self.parts.tokenizer.decode(tokens, true)?;
        let mut stop = StopMatcher::new(&self.settings.config.stop_sequences);
        let (text, stopped) = match stop.push(&decoded) {
            StopOutcome::Stop(shown) => (shown, true),
            StopOutcome::Continue(shown) => (shown + &stop.finish(), false),
        };
        let ended = tokens
            .last()
            .is_some_and(|last| self.settings.rules.end_ids.contains(last));
        let reason = match (stopped, ended) {
            (true, _) => FinishReason::StopSequence,
            (false, true) => FinishReason::Stop,
            (false, false) => FinishReason::Length,
        };
        let choice = |&token: &u32| Choice {
            token,
            logprob: None,
            top: Vec::new(),
        };
        let seconds = self.decoding.saturating_sub(self.encoding).as_secs_f64();
        Ok(Seq2SeqOutput {
            text,
            choices: tokens.iter().map(choice).collect(),
            finish_reason: search.is_over().then_some(reason),
            timings: Timings {
                prompt_ms: self.encoding.as_secs_f64() * 1e3,
                // No token is certain before the last.
                first_token_ms: self.decoding.as_secs_f64() * 1e3,
                tokens_per_second: if seconds > 0.0 {
                    tokens.len() as f64 / seconds
                } else {
                    0.0
                },
            },
            source_tokens,
        })
    }
}
