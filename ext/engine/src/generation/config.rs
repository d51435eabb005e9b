//! How to generate: the fields of Ruby's `GenerationConfig` that the engine needs.

use super::logit_bias::LogitBias;
use crate::{Error, Result};

/// Where the draft tokens of speculative decoding come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculative {
    #[default]
    None,
    /// N-grams of the sequence so far.
    Lookup,
    /// A draft model.
    Draft,
}

impl Speculative {
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "lookup" => Ok(Self::Lookup),
            "draft" => Ok(Self::Draft),
            other => Err(Error::InvalidInput(format!(
                "speculative must be none, lookup or draft, not {other}"
            ))),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    /// New tokens at most; the prompt does not count.
    pub max_new_tokens: usize,
    /// 0 picks the likeliest token.
    pub temperature: f32,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    /// Divides (or multiplies, where negative) the logits of tokens seen, prompt included.
    pub repetition_penalty: f32,
    /// How many of the latest tokens the repetition penalty looks at; `None` means all.
    pub repetition_penalty_last_n: Option<usize>,
    /// Subtracted once from the logits of every token generated so far.
    pub presence_penalty: f32,
    /// Subtracted from a generated token's logit as often as it occurred.
    pub frequency_penalty: f32,
    /// Added to the logits of tokens, before penalties.
    pub logit_bias: LogitBias,
    pub seed: u64,
    pub stop_sequences: Vec<String>,
    /// How many alternatives to report for each token; `None` reports no probabilities.
    pub logprobs: Option<usize>,
    pub speculative: Speculative,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        Self {
            max_new_tokens: 512,
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            repetition_penalty_last_n: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: LogitBias::default(),
            seed: 0,
            stop_sequences: Vec::new(),
            logprobs: None,
            speculative: Speculative::None,
        }
    }
}

impl GenerationConfig {
    /// An `InvalidInput` error that names the first field out of its range.
    pub fn validate(&self) -> Result<()> {
        let probability = |value: Option<f32>| value.is_none_or(|p| (0.0..=1.0).contains(&p));
        let checks = [
            (
                self.temperature.is_finite() && self.temperature >= 0.0,
                "temperature must be 0 or more",
            ),
            (probability(self.top_p), "top_p must be between 0 and 1"),
            (probability(self.min_p), "min_p must be between 0 and 1"),
            (self.top_k != Some(0), "top_k must be at least 1"),
            (
                self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
                "repetition_penalty must be greater than 0",
            ),
            (
                self.presence_penalty.is_finite(),
                "presence_penalty must be a finite number",
            ),
            (
                self.frequency_penalty.is_finite(),
                "frequency_penalty must be a finite number",
            ),
            (
                self.logit_bias.is_valid(),
                "a logit_bias must be between -100 and 100",
            ),
            (
                self.stop_sequences.iter().all(|stop| !stop.is_empty()),
                "stop_sequences must not contain an empty string",
            ),
        ];
        match checks.iter().find(|(holds, _)| !holds) {
            Some((_, message)) => Err(Error::InvalidInput((*message).to_owned())),
            None => Ok(()),
        }
    }
}
