//! Biases of logits: what a call adds to the logits of single tokens before one is chosen.

use crate::{Error, Result};

/// A bias is at most this far from 0. That much bans a token, or all others.
const LARGEST: f32 = 100.0;

/// Tokens and what is added to their logits, as `sequence_bias` of transformers has it for single tokens: before
/// penalties, temperature and truncation. What a constraint forbids stays forbidden.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitBias(Vec<(u32, f32)>);

impl From<Vec<(u32, f32)>> for LogitBias {
    fn from(biases: Vec<(u32, f32)>) -> Self {
        Self(biases)
    }
}

impl LogitBias {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn is_valid(&self) -> bool {
        let mut biases = self.0.iter();
        biases.all(|(_, bias)| (-LARGEST..=LARGEST).contains(bias))
    }

    /// An error that names a token which a model of so many tokens does not have.
    pub fn check(&self, vocabulary: usize) -> Result<()> {
        let mut tokens = self.0.iter().map(|&(token, _)| token);
        match tokens.find(|&token| token as usize >= vocabulary) {
            Some(token) => Err(Error::InvalidInput(format!(
                "logit_bias names token {token}, and the model's tokens are 0 to {}",
                vocabulary.saturating_sub(1)
            ))),
            None => Ok(()),
        }
    }

    pub fn apply(&self, scores: &mut [f32]) {
        for &(token, bias) in &self.0 {
            if let Some(score) = scores.get_mut(token as usize) {
                *score += bias;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_added_and_what_is_forbidden_stays_so() {
        let mut scores = [1.0, f32::NEG_INFINITY, 3.0];
        let bias = LogitBias::from(vec![(0, 2.5), (1, 100.0), (2, -100.0), (9, 1.0)]);
        bias.apply(&mut scores);
        assert_eq!(scores, [3.5, f32::NEG_INFINITY, -97.0]);
    }

    #[test]
    fn biases_and_tokens_have_ranges() {
        for bias in [100.5, -101.0, f32::NAN, f32::INFINITY] {
            assert!(!LogitBias::from(vec![(0, bias)]).is_valid());
        }
        let bias = LogitBias::from(vec![(0, -100.0), (7, 100.0)]);
        assert!(bias.is_valid());
        assert!(bias.check(8).is_ok());
        assert!(matches!(bias.check(7), Err(Error::InvalidInput(_))));
    }
}
