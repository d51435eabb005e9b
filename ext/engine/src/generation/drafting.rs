//! Guesses of a smaller model: how many pay, and how they are chosen.

use super::constraint::Constraint;
use super::sampler::Sampler;
use super::scores::Scores;

/// Tokens guessed at a time, at most.
const MOST: usize = 8;
/// Tokens guessed at a time before it is known how often they are right.
const FIRST: usize = 4;
/// After so many answers it is known.
const TRIAL: f64 = 8.0;
/// Answers that count; earlier ones fade.
const MEMORY: f64 = 64.0;
/// What guessing must save at least, for its costs are estimates.
const WORTH: f64 = 1.03;
/// How many tokens pass before guessing is tried again.
const REST: u32 = 64;

/// Watches how often the guesses of one text are right.
#[derive(Clone, Debug, Default)]
pub struct Drafting {
    /// Guesses that were compared with what came, and those of them that were right.
    compared: f64,
    right: f64,
    rest: u32,
}

impl Drafting {
    /// Whether there is no guessing for a while.
    pub fn rests(&self) -> bool {
        self.rest > 0
    }

    /// How many tokens to guess now. `cost` is what a guess takes, in passes of the larger model: to make
    /// it and to check it.
    pub fn count(&mut self, cost: f64) -> usize {
        if self.rest > 0 {
            self.rest -= 1;
            return 0;
        }
        if self.compared < TRIAL {
            return FIRST;
        }
        let share = self.right / self.compared;
        let gains = (1..=MOST).map(|count| (count, gain(share, count, cost)));
        let best = gains.max_by(|a, b| a.1.total_cmp(&b.1));
        match best.filter(|&(_, gain)| gain >= WORTH) {
            Some((count, _)) => count,
            None => {
                *self = Self {
                    rest: REST,
                    ..Self::default()
                };
                0
            }
        }
    }

    /// Takes note of how many guesses were right: all before the first wrong one.
    pub fn note(&mut self, guessed: usize, right: usize) {
        self.compared += (right + usize::from(right < guessed)) as f64;
        self.right += right as f64;
        if self.compared > MEMORY {
            let fade = MEMORY / self.compared;
            self.compared *= fade;
            self.right *= fade;
        }
    }
}

/// The tokens that a pass with `count` guesses brings, for each pass without guesses that it takes the
/// time of; every guess is right with the probability `share` if those before it are.
fn gain(share: f64, count: usize, cost: f64) -> f64 {
    let tokens: f64 = (0..=count as i32).map(|power| share.powi(power)).sum();
    tokens / (1.0 + count as f64 * cost)
}

/// How a text would go on if a smaller model spoke for the larger: chosen as the text's own tokens will
/// be, by the same random numbers, so that equal logits give equal tokens.
pub struct Preview {
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    end_ids: Vec<u32>,
    left: usize,
}

impl Preview {
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

    /// How many of the largest logits it needs to know; `None` where it needs all.
    pub fn needs(&self) -> Option<usize> {
        match self.constraint {
            Some(_) => None,
            None => self.sampler.needs(),
        }
    }

    /// The next token; none where the text would end or can't go on.
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
    fn as_many_are_guessed_as_pay() {
        let mut drafting = Drafting::default();
        assert_eq!(drafting.count(0.1), FIRST);
        drafting.note(8, 8);
        assert_eq!(drafting.count(0.1), MOST);
        for _ in 0..4 {
            drafting.note(8, 2);
        }
        let count = drafting.count(0.1);
        assert!((1..MOST).contains(&count), "{count}");
        // Even right guesses do not pay when each takes as long as a pass.
        drafting.note(1000, 1000);
        assert_eq!(drafting.count(1.0), 0);
    }

    #[test]
    fn guessing_rests_while_it_does_not_pay() {
        let mut drafting = Drafting::default();
        for _ in 0..8 {
            drafting.note(4, 0);
        }
        for _ in 0..=REST {
            assert_eq!(drafting.count(0.2), 0);
        }
        assert_eq!(drafting.count(0.2), FIRST);
        drafting.note(8, 8);
        assert!(drafting.count(0.2) > 1);
    }

    #[test]
    fn equal_logits_give_the_tokens_that_the_text_will_have() {
        let config = GenerationConfig {
            temperature: 1.0,
            seed: 3,
            frequency_penalty: 0.5,
            ..Default::default()
        };
        let mut sampler = Sampler::new(config, &[1, 2]).unwrap();
        let mut preview = Preview::new(sampler.fork(), None, vec![9], 20);
        let logits: Vec<f32> = (0..9).map(|at| (at as f32 * 0.7).sin()).collect();
        for _ in 0..20 {
            let token = sampler.sample(&logits, None).unwrap().token;
            assert_eq!(preview.take(&Scores::All(logits.clone())), Some(token));
        }
        assert_eq!(preview.take(&Scores::All(logits)), None);
    }

    #[test]
    fn a_token_that_ends_the_text_is_no_guess() {
        let sampler = Sampler::new(GenerationConfig::default(), &[1]).unwrap();
        let mut preview = Preview::new(sampler, None, vec![1], 5);
        assert_eq!(preview.needs(), Some(1));
        assert_eq!(preview.take(&Scores::Largest(vec![(1, 1.0)])), None);
        assert_eq!(preview.take(&Scores::Largest(vec![(0, 1.0)])), None);
        assert_eq!(preview.left(), 0);
    }
}
