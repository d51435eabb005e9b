//! What samplers have to know of logits, found where they lie, so that a row of them need not be copied.

use candle_core::Tensor;

use crate::{Largest, Result};

/// What is asked of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Want {
    /// How many of the largest finite logits; of equal ones the first.
    pub count: usize,
    /// The weight of a token is e^((logit − largest) / temperature). None are summed where it is 0.
    pub temperature: f32,
    /// Draws the token at which the weights, summed up in the order of tokens, exceed this share of all.
    pub uniform: Option<f64>,
}

/// What there is of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// In the order of tokens.
    pub largest: Largest,
    /// Of the weights of all tokens.
    pub total: f64,
    /// None where no logit is finite.
    pub drawn: Option<u32>,
}

/// Of each row of f32 [rows, vocabulary]; `None` where the device has no kernel for it.
pub fn sample(logits: &Tensor, wants: &[Want]) -> Result<Option<Vec<Found>>> {
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        return Ok(crate::cuda::sampling::sample(logits, wants)?);
    }
    #[cfg(feature = "metal")]
    if logits.device().is_metal() {
        return Ok(crate::metal::sampling::sample(logits, wants)?);
    }
    let _ = (logits, wants);
    Ok(None)
}

/// The same on the host, to compare with.
pub fn reference(row: &[f32], want: &Want) -> Found {
    let mut finite: Largest = (0u32..)
        .zip(row.iter().copied())
        .filter(|(_, logit)| logit.is_finite())
        .collect();
    let Some(best) = crate::largest_of(row).map(|at| f64::from(row[at as usize])) else {
        return Found::default();
    };
    let temperature = f64::from(want.temperature);
    let weight = |logit: f32| ((f64::from(logit) - best) / temperature).exp();
    let mut found = Found::default();
    if want.temperature > 0.0 {
        found.total = finite.iter().map(|&(_, logit)| weight(logit)).sum();
        if let Some(uniform) = want.uniform {
            let mut left = uniform * found.total;
            let reached = finite.iter().find(|&&(_, logit)| {
                left -= weight(logit);
                left < 0.0
            });
            found.drawn = reached.or(finite.last()).map(|&(token, _)| token);
        }
    }
    finite.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(std::cmp::Ordering::Equal));
    finite.truncate(want.count);
    finite.sort_unstable_by_key(|&(token, _)| token);
    found.largest = finite;
    found
}
