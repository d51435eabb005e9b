//! Which tokens may come next in a window, as Whisper was trained.

use super::tokens::WhisperTokens;
use crate::Result;

/// Leaves the scores of tokens that may follow `written`; those of the others become -∞. `timestamps`: whether
/// tokens for times are wanted.
pub fn apply(tokens: &WhisperTokens, written: &[u32], timestamps: bool, scores: &mut [f32]) {
    if written.is_empty() {
        forbid_each(&tokens.suppressed_at_begin, scores);
    }
    forbid_each(&tokens.suppressed, scores);
    if timestamps {
        follow_times(tokens, written, scores);
    }
}

/// Times come in pairs, never fall, and begin a window; one comes where all together are likelier than any
/// other token.
fn follow_times(tokens: &WhisperTokens, written: &[u32], scores: &mut [f32]) {
    let first = (tokens.first_timestamp as usize).min(scores.len());
    forbid_each(tokens.no_timestamps.as_slice(), scores);
    let is_time = |token: &&u32| **token >= tokens.first_timestamp;
    let after_time = written.last().as_ref().is_some_and(is_time);
    let before = written.len().checked_sub(2).map(|at| &written[at]);
    let after_pair = before.as_ref().is_none_or(is_time);
    match (after_time, after_pair) {
        (true, true) => forbid(&mut scores[first..]),
        (true, false) => {
            let end = (tokens.end as usize).min(scores.len());
            forbid(&mut scores[..end]);
        }
        _ => {}
    }
    if let Some(&last) = written.iter().rev().find(is_time) {
        let least = last as usize + usize::from(!after_time || after_pair);
        let least = least.min(scores.len());
        forbid(&mut scores[first..least]);
    }
    if written.is_empty() {
        forbid(&mut scores[..first]);
        if let Some(latest) = tokens.latest_first_timestamp {
            let beyond = first.saturating_add(latest as usize + 1).min(scores.len());
            forbid(&mut scores[beyond..]);
        }
    }
    let (text, times) = scores.split_at(first);
    let Some(highest) = most(times) else {
        return;
    };
    let sum: f64 = times
        .iter()
        .map(|&score| f64::from(score - highest).exp())
        .sum();
    let together = f64::from(highest) + sum.ln();
    if together > f64::from(most(text).unwrap_or(f32::NEG_INFINITY)) {
        forbid(&mut scores[..first]);
    }
}

fn most(scores: &[f32]) -> Option<f32> {
    kernels::largest_of(scores).map(|at| scores[at as usize])
}

fn forbid(scores: &mut [f32]) {
    scores.fill(f32::NEG_INFINITY);
}

/// The scores of these tokens become -∞.
pub fn forbid_each(tokens: &[u32], scores: &mut [f32]) {
    for &token in tokens {
        if let Some(score) = scores.get_mut(token as usize) {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// ln of the probability of a token.
pub fn log_probability(scores: &[f32], token: u32) -> Result<f32> {
    let Some(&score) = scores.get(token as usize).filter(|score| score.is_finite()) else {
        return Ok(f32::NEG_INFINITY);
    };
    Ok(score - kernels::log_sum_exp(scores)?)
}
