//! One window of audio to tokens.

use std::sync::Arc;

use super::allowed::Allowed;
use super::rules;
use super::tokens::WhisperTokens;
use crate::generation::random::Random;
use crate::models::seq2seq::{Cache, CrossDecoder, Memory, Rows};
use crate::{CancelToken, Error, Result};

/// A window on its way.
pub struct Window {
    /// What was given.
    pub prompt: Vec<u32>,
    /// Where in the prompt the start of the transcript stands.
    pub start: usize,
    pub memory: Memory,
    /// Whether tokens for times are wanted.
    pub timestamps: bool,
    /// Not written, beside what the checkpoint says.
    pub suppressed: Arc<[u32]>,
    /// What texts are made of, where only given words are.
    pub allowed: Option<Arc<Allowed>>,
    pub most: usize,
}

/// What a window became at one temperature.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// Without the token that ends it.
    pub tokens: Vec<u32>,
    pub avg_logprob: f32,
    pub no_speech_prob: f32,
    pub temperature: f32,
}

struct Running {
    window: usize,
    cache: Cache,
    tokens: Vec<u32>,
    logprobs: f64,
    no_speech_prob: f32,
    random: Random,
}

/// Decodes windows together, each in a row of its own: what comes of one does not depend on the others.
pub fn decode(
    decoder: &CrossDecoder,
    tokens: &WhisperTokens,
    windows: &[&Window],
    (temperature, seed): (f32, u64),
    cancel: &CancelToken,
) -> Result<Vec<Decoded>> {
    let mut decoded: Vec<Option<Decoded>> = vec![None; windows.len()];
    let mut running = Vec::with_capacity(windows.len());
    for (number, window) in windows.iter().enumerate() {
        cancel.check()?;
        let last = (window.prompt.len() - 1) as u32;
        let wanted = [window.start as u32, last];
        let (logits, cache) = decoder.begin(&window.prompt, &window.memory, &wanted, cancel)?;
        let logits: Vec<Vec<f32>> = logits.to_vec2()?;
        let no_speech = tokens.no_speech;
        let no_speech = no_speech.map(|token| rules::log_probability(&logits[0], token));
        let no_speech = no_speech.transpose()?;
        let mut run = Running {
            window: number,
            cache,
            tokens: Vec::new(),
            logprobs: 0.0,
            no_speech_prob: no_speech.map_or(0.0, f32::exp),
            random: Random::new(seed),
        };
        let [_, scores] = <[Vec<f32>; 2]>::try_from(logits)
            .map_err(|_| Error::Internal("two rows of logits were asked for".to_owned()))?;
        if run.take(tokens, window, scores, temperature)? {
            decoded[number] = Some(run.decoded(temperature));
        } else {
            running.push(run);
        }
    }
    while !running.is_empty() {
        cancel.check()?;
        let ids: Vec<[u32; 1]> = running.iter().map(Running::latest).collect();
        let groups: Vec<Rows<'_>> = running
            .iter()
            .zip(&ids)
            .map(|(run, ids)| Rows {
                ids,
                cache: &run.cache,
                memory: &windows[run.window].memory,
            })
            .collect();
        let (logits, caches) = decoder.write_together(&groups, cancel)?;
        let rows: Vec<Vec<f32>> = logits.to_vec2()?;
        let mut staying = Vec::with_capacity(running.len());
        for ((mut run, cache), scores) in running.into_iter().zip(caches).zip(rows) {
            run.cache = cache;
            let number = run.window;
            if run.take(tokens, windows[number], scores, temperature)? {
                decoded[number] = Some(run.decoded(temperature));
            } else {
                staying.push(run);
            }
        }
        running = staying;
    }
    let missing = || Error::Internal("a window was not decoded".to_owned());
    decoded
        .into_iter()
        .map(|one| one.ok_or_else(missing))
        .collect()
}

impl Window {
    /// Leaves the scores of tokens that may follow `written`.
    pub fn restrict(&self, tokens: &WhisperTokens, written: &[u32], scores: &mut [f32]) {
        rules::forbid_each(&self.suppressed, scores);
        // Before the rules for times, which choose among what is left.
        if let Some(allowed) = &self.allowed {
            allowed.apply(written, self.timestamps, scores);
        }
        rules::apply(tokens, written, self.timestamps, scores);
    }
}

impl Running {
    fn latest(&self) -> [u32; 1] {
        [self.tokens.last().copied().unwrap_or(0)]
    }

    /// Chooses the next token; whether the window is over.
    fn take(
        &mut self,
        tokens: &WhisperTokens,
        window: &Window,
        mut scores: Vec<f32>,
        temperature: f32,
    ) -> Result<bool> {
        if window.most == 0 {
            return Ok(true);
        }
        window.restrict(tokens, &self.tokens, &mut scores);
        let token = if temperature > 0.0 {
            sampled(&scores, temperature, &mut self.random)
        } else {
            kernels::largest_of(&scores)
        };
        let token = token.ok_or_else(|| {
            Error::Generation(
                "the model gave no usable logits (all are NaN or forbidden); try dtype: :f32"
                    .to_owned(),
            )
        })?;
        self.logprobs += f64::from(rules::log_probability(&scores, token)?);
        if token == tokens.end {
            return Ok(true);
        }
        self.tokens.push(token);
        Ok(self.tokens.len() >= window.most)
    }

    fn decoded(self, temperature: f32) -> Decoded {
        // As openai-whisper: the token that ends a window counts even where there was no room for it.
        let count = self.tokens.len() + 1;
        Decoded {
            tokens: self.tokens,
            avg_logprob: (self.logprobs / count as f64) as f32,
            no_speech_prob: self.no_speech_prob,
            temperature,
        }
    }
}

fn sampled(scores: &[f32], temperature: f32, random: &mut Random) -> Option<u32> {
    let most = kernels::largest_of(scores).map(|at| scores[at as usize])?;
    let weight = |score: &f32| (f64::from(score - most) / f64::from(temperature)).exp();
    let total: f64 = scores.iter().map(weight).sum();
    let mut rest = random.next_f64() * total;
    for (at, score) in scores.iter().enumerate() {
        rest -= weight(score);
        if rest < 0.0 {
            return Some(at as u32);
        }
    }
    kernels::largest_of(scores)
}
