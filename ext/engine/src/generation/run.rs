//! The run of one sequence: from logits to tokens, from tokens to text, and when it ends. It knows nothing of
//! models, caches and batches.

use std::time::Duration;

use super::config::GenerationConfig;
use super::constraint::Constraint;
use super::sampler::{Choice, Sampler};
use super::scores::{Needs, Scores};
use super::stop::{StopMatcher, StopOutcome};
use crate::Result;
use formats::text::tokenizer::{CharacterStream, StreamDecoder};

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model said so.
    Stop,
    /// `max_new_tokens` or the end of the context.
    Length,
    StopSequence,
    /// A constraint was satisfied, and the text ended there.
    Constraint,
}

/// How tokens become text. Decoders of some tokenizers change the beginning of a text; one that
/// follows a constraint must be what the constraint has seen, byte by byte.
pub enum RunText {
    Free(StreamDecoder),
    Constrained(CharacterStream, Box<dyn Constraint>),
}

impl RunText {
    pub fn free(stream: StreamDecoder) -> Self {
        Self::Free(stream)
    }

    pub fn constrained(constraint: Box<dyn Constraint>) -> Self {
        Self::Constrained(CharacterStream::default(), constraint)
    }

    /// What of the text became certain with a token.
    fn push(&mut self, token: u32) -> Result<String> {
        match self {
            Self::Free(stream) => stream.push(token),
            Self::Constrained(stream, constraint) => Ok(stream.push(constraint.bytes(token))),
        }
    }

    fn constraint(&mut self) -> Option<&mut dyn Constraint> {
        match self {
            Self::Free(_) => None,
            Self::Constrained(_, constraint) => Some(constraint.as_mut()),
        }
    }

    fn finish(self) -> Result<String> {
        match self {
            Self::Free(stream) => stream.finish(),
            Self::Constrained(stream, _) => Ok(stream.finish()),
        }
    }
}

/// Durations of a run. Only time spent computing counts, not the caller's between two tokens.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    pub prompt_ms: f64,
    pub first_token_ms: f64,
    pub tokens_per_second: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    prompt: Duration,
    first_token: Duration,
    total: Duration,
}

pub struct Run {
    prompt_length: usize,
    max_new_tokens: usize,
    end_ids: Vec<u32>,
    sampler: Sampler,
    /// `None` once nothing more is said.
    text_source: Option<RunText>,
    stop: StopMatcher,
    text: String,
    choices: Vec<Choice>,
    /// How long the text is with each of them.
    ends: Vec<usize>,
    finished: Option<FinishReason>,
    clock: Clock,
}

impl Run {
    /// `end_ids` are the tokens by which the model ends a text.
    pub fn new(
        prompt: &[u32],
        config: GenerationConfig,
        text: RunText,
        end_ids: Vec<u32>,
    ) -> Result<Self> {
        Ok(Self {
            prompt_length: prompt.len(),
            max_new_tokens: config.max_new_tokens,
            end_ids,
            stop: StopMatcher::new(&config.stop_sequences),
            finished: (config.max_new_tokens == 0).then_some(FinishReason::Length),
            sampler: Sampler::new(config, prompt)?,
            text_source: Some(text),
            text: String::new(),
            choices: Vec::new(),
            ends: Vec::new(),
            clock: Clock::default(),
        })
    }

    /// The tokens that a constraint leaves no choice of.
    pub fn forced_tokens(&mut self) -> Vec<u32> {
        let constraint = self.text_source.as_mut().and_then(RunText::constraint);
        constraint.map_or_else(Vec::new, |constraint| constraint.forced())
    }

    /// How many tokens there may be after the next.
    pub fn left(&self) -> usize {
        self.max_new_tokens.saturating_sub(self.choices.len() + 1)
    }

    /// What chooses the next tokens, for tokens that are only tried.
    pub fn fork(&mut self) -> (Sampler, Option<Box<dyn Constraint>>) {
        let constraint = self.text_source.as_mut().and_then(RunText::constraint);
        let constraint = constraint.map(|constraint| constraint.fork());
        (self.sampler.fork(), constraint)
    }

    /// The tokens by which the model ends a sequence.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Counts the time it took to compute logits.
    pub fn computed(&mut self, time: Duration) {
        if self.choices.is_empty() {
            self.clock.prompt += time;
        }
        self.clock.total += time;
    }

    /// Counts the time it took to choose a token of them.
    pub fn chose(&mut self, time: Duration) {
        self.clock.total += time;
        if self.choices.len() == 1 {
            self.clock.first_token = self.clock.total;
        }
    }

    /// What it needs to know of the logits after so many more tokens.
    pub fn needs(&self, tokens: usize) -> Needs {
        match self.text_source {
            Some(RunText::Constrained(..)) => Needs::All,
            _ => self.sampler.needs(tokens),
        }
    }

    /// Whether another token follows the next, which is the likeliest; unless the next one ends the sequence.
    pub fn goes_on_plainly(&self) -> bool {
        self.needs(0) == Needs::Largest(1) && self.left() > 0
    }

    /// Chooses the next token by its scores; returns it with the text that became certain. With no
    /// room for another one the run ends here.
    pub fn take(&mut self, scores: &Scores, room: bool) -> Result<(u32, String)> {
        let taken = self.take_one(scores, room)?;
        self.ends.push(self.text.len());
        Ok(taken)
    }

    fn take_one(&mut self, scores: &Scores, room: bool) -> Result<(u32, String)> {
        let allowed = match self.text_source.as_mut().and_then(RunText::constraint) {
            Some(constraint) => Some(constraint.allowed(&self.end_ids)?),
            None => None,
        };
        let choice = self.sampler.choose(scores, allowed.as_deref())?;
        let token = choice.token;
        self.choices.push(choice);
        if self.end_ids.contains(&token) {
            return Ok((token, self.finish(FinishReason::Stop)?));
        }
        let piece = match &mut self.text_source {
            Some(source) => source.push(token)?,
            None => String::new(),
        };
        let shown = match self.stop.push(&piece) {
            StopOutcome::Stop(shown) => {
                self.text_source = None;
                self.finished = Some(FinishReason::StopSequence);
                shown
            }
            StopOutcome::Continue(shown) => shown,
        };
        self.text.push_str(&shown);
        match self.ending(token, room)? {
            Some(reason) => Ok((token, shown + &self.finish(reason)?)),
            None => Ok((token, shown)),
        }
    }

    /// Why the run ends after a token that did not end it by itself; `None` when it goes on or a stop
    /// sequence has ended it.
    fn ending(&mut self, token: u32, room: bool) -> Result<Option<FinishReason>> {
        if self.finished.is_some() {
            return Ok(None);
        }
        let full = self.choices.len() >= self.max_new_tokens || !room;
        let Some(constraint) = self.text_source.as_mut().and_then(RunText::constraint) else {
            return Ok(full.then_some(FinishReason::Length));
        };
        constraint.accept(token)?;
        if constraint.is_satisfied() || (full && constraint.may_end()) {
            return Ok(Some(FinishReason::Constraint));
        }
        Ok(full.then_some(FinishReason::Length))
    }

    /// Ends the run and returns what was held back.
    fn finish(&mut self, reason: FinishReason) -> Result<String> {
        let rest = match self.text_source.take() {
            Some(source) => source.finish()?,
            None => String::new(),
        };
        let (rest, reason) = match self.stop.push(&rest) {
            StopOutcome::Stop(shown) => (shown, FinishReason::StopSequence),
            StopOutcome::Continue(shown) => (shown + &self.stop.finish(), reason),
        };
        self.text.push_str(&rest);
        self.finished = Some(reason);
        Ok(rest)
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// What of the text became certain with each token.
    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, &end)| &self.text[start..end])
    }

    /// The tokens generated, an end token included.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// `None` while the run goes on.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    pub fn prompt_length(&self) -> usize {
        self.prompt_length
    }

    pub fn timings(&self) -> Timings {
        let decoding = self.clock.total.saturating_sub(self.clock.first_token);
        let tokens = self.choices.len().saturating_sub(1);
        let rate = if tokens == 0 || decoding.is_zero() {
            0.0
        } else {
            tokens as f64 / decoding.as_secs_f64()
        };
        Timings {
            prompt_ms: self.clock.prompt.as_secs_f64() * 1e3,
            first_token_ms: self.clock.first_token.as_secs_f64() * 1e3,
            tokens_per_second: rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use formats::text::tokenizer::Tokenizer;

    #[test]
    fn a_device_may_go_on_with_the_likeliest_token_where_nothing_else_is_wanted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/tiny");
        let tokenizer = Tokenizer::from_directory(&root.join("decoders/llama")).unwrap();
        let run = |change: fn(&mut GenerationConfig)| {
            let mut config = GenerationConfig::default();
            change(&mut config);
            let text = RunText::free(tokenizer.stream(true));
            Run::new(&[1, 2], config, text, vec![0]).unwrap()
        };
        assert!(run(|_| {}).goes_on_plainly());
        let otherwise: [fn(&mut GenerationConfig); 5] = [
            |config| config.temperature = 1.0,
            |config| config.repetition_penalty = 1.1,
            |config| config.logprobs = Some(1),
            |config| config.logit_bias = vec![(3, 1.0)].into(),
            |config| config.max_new_tokens = 1,
        ];
        for change in otherwise {
            assert!(!run(change).goes_on_plainly());
        }
        let mut run = run(|config| config.max_new_tokens = 2);
        assert!(run.goes_on_plainly());
        run.take(&Scores::Largest(vec![(5, 1.0)]), true).unwrap();
        assert!(!run.goes_on_plainly());
    }
}
