//! The texts of one call under way, each by its likeliest or drawn tokens or by beams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::scheduler::Seq2SeqScheduler;
use super::Seq2SeqModel;
use crate::generation::run::{Run, RunText};
use crate::generation::{
    BeamSearch, BeamSettings, Choice, Constraint, EarlyStopping, FinishReason, GenerationConfig,
    Scores, StopMatcher, StopOutcome, Timings, TokenRules,
};
use crate::models::seq2seq::{Cache, Memory};
use crate::serving::leader::{self, Leader};
use crate::{CancelToken, Error, Result};

/// More beams than this are a mistake.
const MOST_BEAMS: usize = 256;

/// How texts are written.
#[derive(Clone, Debug)]
pub struct WritingSettings {
    pub config: GenerationConfig,
    /// 1: one token after the other, as `config` says.
    pub num_beams: usize,
    pub length_penalty: f32,
    pub early_stopping: EarlyStopping,
    pub rules: TokenRules,
}

/// What has become of a text.
pub struct Written {
    pub text: String,
    pub choices: Vec<Choice>,
    pub finish_reason: Option<FinishReason>,
    pub timings: Timings,
    /// How many tokens were read.
    pub source_tokens: usize,
}

enum Search {
    Tokens(Box<Run>),
    Beams(Box<BeamSearch>),
}

struct Text {
    source: Vec<u32>,
    search: Search,
}

/// The texts of one call, which are written together with those of all others.
///
/// A call of [`Writing::step`] that is interrupted may be repeated; it goes on where it was.
pub struct Writing {
    scheduler: Arc<Seq2SeqScheduler>,
    texts: Arc<leader::Text<Texts>>,
    process: u32,
}

/// What there is of the texts of a call.
pub(super) struct Texts {
    model: Arc<Seq2SeqModel>,
    settings: WritingSettings,
    texts: Vec<Text>,
    /// Those that are not over, in the order of the memory.
    active: Vec<usize>,
    state: Option<(Memory, Cache)>,
    /// What a text that follows a constraint begins with, which is no part of it.
    begin: Option<u32>,
    reading: Duration,
    writing: Duration,
}

impl WritingSettings {
    fn check(&self, constrained: bool) -> Result<()> {
        if !(1..=MOST_BEAMS).contains(&self.num_beams) {
            return Err(Error::InvalidInput(format!(
                "num_beams must be between 1 and {MOST_BEAMS}, not {}",
                self.num_beams
            )));
        }
        if !self.length_penalty.is_finite() {
            return Err(Error::InvalidInput(
                "length_penalty must be a finite number".into(),
            ));
        }
        if self.num_beams == 1 {
            return Ok(());
        }
        let config = &self.config;
        let alone = [
            (constrained, "a schema, pattern or grammar"),
            (config.temperature > 0.0, "a temperature above 0"),
            (config.logprobs.is_some(), "logprobs"),
            (config.presence_penalty != 0.0, "presence_penalty"),
            (config.frequency_penalty != 0.0, "frequency_penalty"),
        ];
        match alone.iter().find(|(given, _)| *given) {
            Some((_, what)) => Err(Error::InvalidInput(format!(
                "beams don't go together with {what}: use num_beams: 1"
            ))),
            None => Ok(()),
        }
    }
}

impl Writing {
    /// `sources` are the ids of the texts to read; a constraint is one text's.
    pub fn new(
        model: Arc<Seq2SeqModel>,
        sources: Vec<Vec<u32>>,
        settings: WritingSettings,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Self> {
        let scheduler = model.scheduler()?;
        let texts = Texts::new(model, sources, settings, constraint)?;
        let is_over = texts.is_over();
        Ok(Self {
            texts: scheduler.join(texts, is_over),
            scheduler,
            process: std::process::id(),
        })
    }

    /// Waits for one more token of every text that is not over. Returns what became certain of the first
    /// text, `None` once all are over.
    pub fn step(&self, cancel: &CancelToken) -> Result<Option<String>> {
        self.check_process()?;
        self.scheduler.next(&self.texts, cancel)
    }

    /// Waits for the end of all texts.
    pub fn finish(&self, cancel: &CancelToken) -> Result<()> {
        self.check_process()?;
        self.scheduler.finish(&self.texts, cancel)
    }

    /// What has become of the texts, in their order.
    pub fn written(&self) -> Result<Vec<Written>> {
        self.check_process()?;
        self.texts.work().written()
    }

    /// A run belongs to the process that began it.
    fn check_process(&self) -> Result<()> {
        leader::check_process(self.process)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.scheduler.leave(&self.texts);
        }
    }
}

impl Texts {
    fn new(
        model: Arc<Seq2SeqModel>,
        sources: Vec<Vec<u32>>,
        mut settings: WritingSettings,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Self> {
        settings.check(constraint.is_some())?;
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
            // The constraint alone says which tokens may come, and where the text ends.
            settings.rules = TokenRules {
                end_ids: settings.rules.end_ids,
                ..TokenRules::default()
            };
        }
        let most = model.model.max_target().unwrap_or(usize::MAX);
        settings.config.max_new_tokens = settings.config.max_new_tokens.min(most);
        settings.rules.max_new_tokens = settings.config.max_new_tokens;
        let mut constraint = constraint;
        let texts = sources
            .into_iter()
            .map(|source| {
                let search = search(&model, &settings, constraint.take())?;
                Ok(Text { source, search })
            })
            .collect::<Result<Vec<_>>>()?;
        let active = (0..texts.len())
            .filter(|&text| !texts[text].search.is_over())
            .collect();
        Ok(Self {
            model,
            settings,
            texts,
            active,
            state: None,
            begin,
            reading: Duration::ZERO,
            writing: Duration::ZERO,
        })
    }

    pub fn model(&self) -> &Arc<Seq2SeqModel> {
        &self.model
    }

    pub fn is_over(&self) -> bool {
        self.active.is_empty()
    }

    /// How many are not over.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// How many tokens are to be read before the first is written; 0 once they are.
    pub fn unread(&self) -> usize {
        match &self.state {
            Some(_) => 0,
            None => self.sources().map(<[u32]>::len).sum(),
        }
    }

    /// Of the texts that are not over.
    pub fn sources(&self) -> impl Iterator<Item = &[u32]> {
        let active = self.active.iter();
        active.map(|&text| self.texts[text].source.as_slice())
    }

    /// Takes what was read of the sources.
    pub fn remember(&mut self, memory: Memory, time: Duration) {
        self.state = Some((memory, Cache::default()));
        self.reading = time;
    }

    /// Every row's latest token, and what it follows.
    pub fn latest(&mut self, cancel: &CancelToken) -> Result<(Vec<u32>, &Cache, &Memory)> {
        let model = self.model.clone();
        let (memory, cache) = self.state.as_mut().ok_or_else(|| {
            Error::Internal("texts are to be written that were not read".to_owned())
        })?;
        if let (0, Some(_)) = (cache.length(), self.begin) {
            let start = vec![model.defaults.start; self.active.len()];
            *cache = model.model.write(&start, cache, memory, cancel)?.1;
        }
        let start = self.begin.unwrap_or(model.defaults.start);
        let mut ids = Vec::new();
        for &text in &self.active {
            self.texts[text].search.last_tokens(start, &mut ids);
        }
        Ok((ids, cache, memory))
    }

    /// How many rows there are: texts that are not over, times beams.
    pub fn rows(&self) -> usize {
        self.active.len() * self.settings.num_beams
    }

    /// Takes note of how long it took to compute the logits of the next tokens.
    pub fn computed(&mut self, time: Duration) {
        let stats = &self.model.stats;
        stats.tokens_out.add(self.active.len() as u64);
        let times = if self.writing.is_zero() {
            &stats.first_token_ms
        } else {
            &stats.token_ms
        };
        self.writing += time;
        for &text in &self.active {
            times.observe_time(time);
            if let Search::Tokens(run) = &mut self.texts[text].search {
                run.computed(time);
            }
        }
    }

    /// Lets every text choose by its rows of logits; what became certain of the first. `cache` has what
    /// the logits were made of.
    pub fn choose(&mut self, rows: &[Vec<f32>], cache: &Cache) -> Result<String> {
        let width = self.settings.num_beams;
        let mut shown = String::new();
        let mut parents: Vec<u32> = Vec::with_capacity(rows.len());
        let mut staying = Vec::new();
        let started = Instant::now();
        for (place, (&number, rows)) in self.active.iter().zip(rows.chunks(width)).enumerate() {
            let text = &mut self.texts[number];
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            let piece = text.search.take(&self.settings.rules, &self.model, &rows)?;
            let first = (place * width) as u32;
            if let Search::Tokens(run) = &mut text.search {
                run.chose(started.elapsed());
            }
            if number == 0 {
                shown = piece.text;
            }
            if !text.search.is_over() {
                staying.push(place);
                parents.extend(piece.parents.iter().map(|&parent| first + parent as u32));
            }
        }
        self.go_on(&staying, &parents, cache)?;
        Ok(shown)
    }

    /// Keeps the texts at these places of the active ones, and in each row what it continues.
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

    fn written(&self) -> Result<Vec<Written>> {
        self.texts.iter().map(|text| self.outcome(text)).collect()
    }

    fn outcome(&self, text: &Text) -> Result<Written> {
        let source_tokens = text.source.len();
        let search = match &text.search {
            Search::Tokens(run) => {
                return Ok(Written {
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
        let decoded = self.model.tokenizer.decode(tokens, true)?;
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
        let seconds = self.writing.saturating_sub(self.reading).as_secs_f64();
        Ok(Written {
            text,
            choices: tokens.iter().map(choice).collect(),
            finish_reason: search.is_over().then_some(reason),
            timings: Timings {
                prompt_ms: self.reading.as_secs_f64() * 1e3,
                // No token is certain before the last.
                first_token_ms: self.writing.as_secs_f64() * 1e3,
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

fn search(
    model: &Seq2SeqModel,
    settings: &WritingSettings,
    constraint: Option<Box<dyn Constraint>>,
) -> Result<Search> {
    let start = model.defaults.start;
    if settings.num_beams > 1 {
        settings.config.validate()?;
        let beams = BeamSettings {
            width: settings.num_beams,
            length_penalty: settings.length_penalty,
            early_stopping: settings.early_stopping,
            repetition_penalty: settings.config.repetition_penalty,
        };
        let search = BeamSearch::new(beams, settings.rules.clone(), start);
        return Ok(Search::Beams(Box::new(search)));
    }
    let text = match constraint {
        Some(constraint) => RunText::constrained(constraint),
        None => RunText::free(model.tokenizer.stream(true)),
    };
    let end_ids = settings.rules.end_ids.clone();
    let run = Run::new(&[start], settings.config.clone(), text, end_ids)?;
    Ok(Search::Tokens(Box::new(run)))
}

/// What a step came to.
struct Piece {
    text: String,
    /// For each row of the text the one it continues.
    parents: Vec<usize>,
}

impl Search {
    fn is_over(&self) -> bool {
        match self {
            Self::Tokens(run) => run.finish_reason().is_some(),
            Self::Beams(search) => search.is_over(),
        }
    }

    fn last_tokens(&self, start: u32, ids: &mut Vec<u32>) {
        match self {
            Self::Tokens(run) => {
                ids.push(run.choices().last().map_or(start, |choice| choice.token));
            }
            Self::Beams(search) => ids.extend(search.last_tokens()),
        }
    }

    fn take(&mut self, rules: &TokenRules, model: &Seq2SeqModel, rows: &[&[f32]]) -> Result<Piece> {
        match self {
            Self::Tokens(run) => {
                let mut scores = rows.first().copied().unwrap_or_default().to_vec();
                let choices = run.choices().iter().map(|choice| choice.token);
                let text: Vec<u32> = [model.defaults.start].into_iter().chain(choices).collect();
                rules.apply(&text, 1, &mut scores);
                let (_, text) = run.take(&Scores::All(scores), true)?;
                Ok(Piece {
                    text,
                    parents: vec![0],
                })
            }
            Self::Beams(search) => {
                let parents = search.advance(rows);
                if parents.len() < rows.len() {
                    return Err(Error::Generation(
                        "the model gave no usable logits (all are NaN or forbidden); try dtype: :f32"
                            .to_owned(),
                    ));
                }
                let text = if search.is_over() {
                    model.tokenizer.decode(search.tokens(), true)?
                } else {
                    String::new()
                };
                Ok(Piece { text, parents })
            }
        }
    }
}
