//! How draft tokens are chosen by the logits of a draft model.

use crate::generation::{Constraint, Needs, Sampler, Scores};

/// Chooses draft tokens as the sequence's own tokens will be chosen, by the same random numbers, so that equal
/// logits give equal tokens.
pub struct DraftSampler {
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    end_ids: Vec<u32>,
    left: usize,
}

impl DraftSampler {
    /// Of at most `left` tokens.
    pub fn new(
        sampler: Sampler,
        constraint: Option<Box<dyn Constraint>>,
        end_ids: Vec<u32>,
        left: usize,
    ) -> Self {
        Self {
            sampler,
            constraint,
            end_ids,
            left,
        }
    }

    /// How many tokens there may be yet.
    pub fn left(&self) -> usize {
        self.left
    }

    /// At most so many more.
    pub fn limit(&mut self, left: usize) {
        self.left = self.left.min(left);
    }

    /// What it needs to know of the logits.
    pub fn needs(&self) -> Needs {
        match self.constraint {
            Some(_) => Needs::All,
            None => self.sampler.needs(0),
        }
    }

    /// The next token; none where the sequence would end or can't go on.
    pub fn take(&mut self, scores: &Scores) -> Option<u32> {
        let token = self.chosen(scores);
        self.left = match token {
            Some(_) => self.left.saturating_sub(1),
            None => 0,
        };
        token
    }

    fn chosen(&mut self, scores: &Scores) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        let allowed = match &mut self.constraint {
            Some(constraint) => Some(constraint.allowed(&self.end_ids).ok()?),
            None => None,
        };
        let choice = self.sampler.choose(scores, allowed.as_deref()).ok()?;
        if self.end_ids.contains(&choice.token) {
            return None;
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(choice.token).ok()?;
            if constraint.is_satisfied() {
                self.left = 1;
            }
        }
        Some(choice.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::GenerationConfig;

    #[test]
    fn equal_logits_give_the_tokens_that_the_sequence_will_have() {
        let config = GenerationConfig {
            temperature: 1.0,
            seed: 3,
            frequency_penalty: 0.5,
            ..Default::default()
        };
        let mut sampler = Sampler::new(config, &[1, 2]).unwrap();
        let mut draft = DraftSampler::new(sampler.fork(), None, vec![9], 20);
        let logits: Vec<f32> = (0..9).map(|at| (at as f32 * 0.7).sin()).collect();
        for _ in 0..20 {
            let token = sampler.sample(&logits, None).unwrap().token;
            assert_eq!(draft.take(&Scores::All(logits.clone())), Some(token));
        }
        assert_eq!(draft.take(&Scores::All(logits)), None);
    }

    #[test]
    fn a_token_that_ends_the_sequence_is_not_drafted() {
        let sampler = Sampler::new(GenerationConfig::default(), &[1]).unwrap();
        let mut draft = DraftSampler::new(sampler, None, vec![1], 5);
        assert_eq!(draft.needs(), Needs::Largest(1));
        assert_eq!(draft.take(&Scores::Largest(vec![(1, 1.0)])), None);
        assert_eq!(draft.take(&Scores::Largest(vec![(0, 1.0)])), None);
        assert_eq!(draft.left(), 0);
    }
}
