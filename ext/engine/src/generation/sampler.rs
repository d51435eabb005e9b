//! Logits in, one token out.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::config::GenerationConfig;
use super::random::Random;
use super::scores::{Needs, Nucleus, Scores};
use crate::{Error, Result};

/// A token chosen, with the probabilities of the model itself (before penalties and truncation).
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub token: u32,
    /// Log probability of `token`; only when asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens with their log probabilities, best first; as many as asked for.
    pub top: Vec<(u32, f32)>,
}

/// Keeps what the penalties and the draw depend on: the tokens so far and the random state.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: GenerationConfig,
    random: Random,
    history: Vec<u32>,
    generated: HashMap<u32, u32>,
}

impl Sampler {
    /// `prompt` counts for the repetition penalty, not for presence and frequency.
    pub fn new(config: GenerationConfig, prompt: &[u32]) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            random: Random::new(config.seed),
            history: prompt.to_vec(),
            generated: HashMap::new(),
            config,
        })
    }

    /// Chooses the next token by all logits or, without a mask, by as many of the largest as it `needs`.
    pub fn choose(&mut self, scores: &Scores, allowed: Option<&[u32]>) -> Result<Choice> {
        match scores {
            Scores::All(logits) => self.sample(logits, allowed),
            Scores::Largest(logits) => self.sample_of(logits, None),
            Scores::Nucleus(logits, total) => self.sample_of(logits, Some(*total)),
            Scores::Drawn(token) => {
                self.random.next_f64();
                self.accept(*token);
                Ok(self.report(*token, &[]))
            }
        }
    }

    /// Chooses the next token. `allowed` is the mask of a constraint, bit `i % 32` of word
    /// `i / 32` standing for token `i`; it is applied before everything else.
    pub fn sample(&mut self, logits: &[f32], allowed: Option<&[u32]>) -> Result<Choice> {
        let mut scores = logits.to_vec();
        if let Some(mask) = allowed {
            for (token, score) in scores.iter_mut().enumerate() {
                if !is_allowed(mask, token) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
        self.config.logit_bias.apply(&mut scores);
        self.penalize(&mut scores);
        let token = self.draw(&scores)?;
        self.accept(token);
        Ok(self.report(token, logits))
    }

    /// A sampler that will draw as this one, given the same logits, and reports nothing but tokens.
    pub fn fork(&self) -> Self {
        let mut fork = self.clone();
        fork.config.logprobs = None;
        fork
    }

    /// What it needs to know of the logits, after so many more draws: of all for log probabilities, and for biases and
    /// penalties, which may put any token first.
    pub fn needs(&self, draws: usize) -> Needs {
        let config = &self.config;
        let by_logits_alone = config.logprobs.is_none()
            && config.repetition_penalty == 1.0
            && config.presence_penalty == 0.0
            && config.frequency_penalty == 0.0
            && config.logit_bias.is_empty();
        let (temperature, min_p) = (
            config.temperature,
            config.min_p.filter(|&min_p| min_p > 0.0),
        );
        match (config.top_k, config.top_p.filter(|&top_p| top_p < 1.0)) {
            _ if !by_logits_alone => Needs::All,
            _ if temperature == 0.0 => Needs::Largest(1),
            // With one more it is known whether any is left out.
            (Some(top_k), _) => top_k.checked_add(1).map_or(Needs::All, Needs::Largest),
            (None, None) if min_p.is_none() => Needs::Draw {
                temperature,
                uniform: self.uniform(draws),
            },
            (None, top_p) => Needs::Nucleus(Nucleus {
                temperature,
                top_p,
                min_p,
            }),
        }
    }

    /// The random number of the draw after so many others.
    fn uniform(&self, draws: usize) -> f64 {
        let mut random = self.random.clone();
        (0..draws).for_each(|_| {
            random.next_f64();
        });
        random.next_f64()
    }

    /// `sample` by the largest logits, in the order of tokens. `total` is the weight of all tokens, where there are more.
    fn sample_of(&mut self, largest: &[(u32, f32)], total: Option<f64>) -> Result<Choice> {
        let larger = |best: (u32, f32), next: (u32, f32)| if next.1 > best.1 { next } else { best };
        let best = largest.iter().copied().reduce(larger);
        let best = best.ok_or_else(unusable)?;
        let token = if self.config.temperature == 0.0 {
            best.0
        } else {
            self.pick(largest.to_vec(), best, total)
        };
        self.accept(token);
        Ok(self.report(token, &[]))
    }

    /// Records a token that was not drawn here, such as one that a constraint forces.
    pub fn accept(&mut self, token: u32) {
        self.history.push(token);
        *self.generated.entry(token).or_insert(0) += 1;
    }

    fn penalize(&self, scores: &mut [f32]) {
        if self.config.repetition_penalty != 1.0 {
            let last = self
                .config
                .repetition_penalty_last_n
                .unwrap_or(self.history.len());
            let start = self.history.len().saturating_sub(last);
            let mut seen: Vec<u32> = self.history[start..].to_vec();
            seen.sort_unstable();
            seen.dedup();
            for token in seen {
                if let Some(score) = scores.get_mut(token as usize) {
                    if *score < 0.0 {
                        *score *= self.config.repetition_penalty;
                    } else {
                        *score /= self.config.repetition_penalty;
                    }
                }
            }
        }
        let (presence, frequency) = (self.config.presence_penalty, self.config.frequency_penalty);
        if presence != 0.0 || frequency != 0.0 {
            for (&token, &count) in &self.generated {
                if let Some(score) = scores.get_mut(token as usize) {
                    *score -= presence + frequency * count as f32;
                }
            }
        }
    }

    fn draw(&mut self, scores: &[f32]) -> Result<u32> {
        let best = kernels::largest_of(scores).ok_or_else(unusable)?;
        if self.config.temperature == 0.0 {
            return Ok(best);
        }
        let finite = (0u32..)
            .zip(scores.iter().copied())
            .filter(|(_, score)| score.is_finite())
            .collect();
        Ok(self.pick(finite, (best, scores[best as usize]), None))
    }

    /// Draws one of tokens with finite scores, of which `best` has the largest.
    fn pick(&mut self, finite: Vec<(u32, f32)>, best: (u32, f32), total: Option<f64>) -> u32 {
        let candidates = self.candidates(finite, best.1, total);
        let total: f64 = candidates.iter().map(|&(_, weight)| weight).sum();
        let mut left = self.random.next_f64() * total;
        for &(token, weight) in &candidates {
            left -= weight;
            if left < 0.0 {
                return token;
            }
        }
        candidates.last().map_or(best.0, |&(token, _)| token)
    }

    /// What temperature, top-k, top-p and min-p leave, in this order, each over the renormalized
    /// rest of the one before, with unnormalized weights; best first where something was left out.
    fn candidates(
        &self,
        mut finite: Vec<(u32, f32)>,
        best: f32,
        total: Option<f64>,
    ) -> Vec<(u32, f64)> {
        let temperature = f64::from(self.config.temperature);
        if let Some(top_k) = self.config.top_k.filter(|&k| k < finite.len()) {
            let by_score = |a: &(u32, f32), b: &(u32, f32)| {
                let order = b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal);
                order.then(a.0.cmp(&b.0))
            };
            finite.select_nth_unstable_by(top_k - 1, by_score);
            finite.truncate(top_k);
            finite.sort_unstable_by(by_score);
        }
        let best = f64::from(best);
        let mut candidates: Vec<(u32, f64)> = finite
            .into_iter()
            .map(|(token, score)| (token, ((f64::from(score) - best) / temperature).exp()))
            .collect();
        if let Some(top_p) = self.config.top_p.filter(|&p| p < 1.0) {
            let whole = || candidates.iter().map(|&(_, weight)| weight).sum();
            let wanted = f64::from(top_p) * total.unwrap_or_else(whole);
            keep_nucleus(&mut candidates, wanted);
        }
        if let Some(min_p) = self.config.min_p {
            // The best candidate has weight 1, so `min_p` is a bound on the weights themselves.
            candidates.retain(|&(_, weight)| weight >= f64::from(min_p));
        }
        candidates
    }

    fn report(&self, token: u32, logits: &[f32]) -> Choice {
        let Some(wanted) = self.config.logprobs else {
            return Choice {
                token,
                logprob: None,
                top: Vec::new(),
            };
        };
        let normalizer = log_sum_exp(logits);
        let logprob = logits.get(token as usize).map(|logit| logit - normalizer);
        let mut top: Vec<(u32, f32)> = logits
            .iter()
            .enumerate()
            .map(|(id, logit)| (id as u32, logit - normalizer))
            .collect();
        let by_logprob = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if wanted < top.len() && wanted > 0 {
            top.select_nth_unstable_by(wanted - 1, by_logprob);
        }
        top.truncate(wanted);
        top.sort_unstable_by(by_logprob);
        Choice {
            token,
            logprob,
            top,
        }
    }
}

/// Keeps the fewest of the likeliest candidates whose weights reach `wanted`, best first.
/// A vocabulary is large and these are few, so that only as many are sorted as turn out to be needed.
fn keep_nucleus(candidates: &mut Vec<(u32, f64)>, wanted: f64) {
    const FIRST: usize = 64;
    const GROWTH: usize = 8;
    let by_weight = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let (mut before, mut sorted, mut next) = (0.0, 0, FIRST);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let count = next.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count - 1, by_weight);
        }
        rest[..count].sort_unstable_by(by_weight);
        for (at, (_, weight)) in rest[..count].iter().enumerate() {
            if before >= wanted {
                candidates.truncate((sorted + at).max(1));
                return;
            }
            before += weight;
        }
        sorted += count;
        next *= GROWTH;
    }
}

fn is_allowed(mask: &[u32], token: usize) -> bool {
    mask.get(token / 32)
        .is_some_and(|word| word >> (token % 32) & 1 == 1)
}

fn unusable() -> Error {
    let message = "the model gave no usable logits (all are NaN or forbidden); try dtype: :f32";
    Error::Generation(message.to_owned())
}

/// `ln Σ exp(logits)`, computed around the maximum.
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !top.is_finite() {
        return top;
    }
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from(logit - top).exp())
        .sum();
    top + sum.ln() as f32
}

#[cfg(test)]
mod tests;
