//! How many draft tokens of a draft model pay.

/// Draft tokens of a step, at most.
const MOST: usize = 8;
/// Draft tokens of a step before the acceptance rate is known.
const FIRST: usize = 4;
/// After so many comparisons it is known.
const TRIAL: f64 = 8.0;
/// Comparisons that count; earlier ones fade.
const MEMORY: f64 = 64.0;
/// What speculation must save at least, since its costs are estimates.
const WORTH: f64 = 1.03;
/// How many tokens are generated before it is tried again.
const PAUSE: u32 = 64;

/// The acceptance rate of one sequence, and what follows from it.
#[derive(Clone, Debug, Default)]
pub struct Payoff {
    /// Draft tokens that were compared with what came, and those that were accepted.
    compared: f64,
    accepted: f64,
    pause: u32,
}

impl Payoff {
    /// Whether there is no speculation for a while.
    pub fn is_paused(&self) -> bool {
        self.pause > 0
    }

    /// How many tokens to draft now. `cost` is what a draft token takes, in steps of the larger model: to
    /// make it and to verify it.
    pub fn count(&mut self, cost: f64) -> usize {
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        if self.compared < TRIAL {
            return FIRST;
        }
        let share = self.accepted / self.compared;
        let gains = (1..=MOST).map(|count| (count, gain(share, count, cost)));
        let best = gains.max_by(|a, b| a.1.total_cmp(&b.1));
        match best.filter(|&(_, gain)| gain >= WORTH) {
            Some((count, _)) => count,
            None => {
                *self = Self {
                    pause: PAUSE,
                    ..Self::default()
                };
                0
            }
        }
    }

    /// Takes note of how many draft tokens were accepted: all before the first wrong one.
    pub fn note(&mut self, drafted: usize, accepted: usize) {
        self.compared += (accepted + usize::from(accepted < drafted)) as f64;
        self.accepted += accepted as f64;
        if self.compared > MEMORY {
            let fade = MEMORY / self.compared;
            self.compared *= fade;
            self.accepted *= fade;
        }
    }
}

/// The tokens that a step with `count` draft tokens brings, for each step without them that it takes the time
/// of; every draft token is accepted with the probability `share` if those before it are.
fn gain(share: f64, count: usize, cost: f64) -> f64 {
    let tokens: f64 = (0..=count as i32).map(|power| share.powi(power)).sum();
    tokens / (1.0 + count as f64 * cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_drafted_as_pay() {
        let mut payoff = Payoff::default();
        assert_eq!(payoff.count(0.1), FIRST);
        payoff.note(8, 8);
        assert_eq!(payoff.count(0.1), MOST);
        for _ in 0..4 {
            payoff.note(8, 2);
        }
        let count = payoff.count(0.1);
        assert!((1..MOST).contains(&count), "{count}");
        // Even accepted ones do not pay when each takes as long as a step.
        payoff.note(1000, 1000);
        assert_eq!(payoff.count(1.0), 0);
    }

    #[test]
    fn drafting_pauses_while_it_does_not_pay() {
        let mut payoff = Payoff::default();
        for _ in 0..8 {
            payoff.note(4, 0);
        }
        for _ in 0..=PAUSE {
            assert_eq!(payoff.count(0.2), 0);
        }
        assert_eq!(payoff.count(0.2), FIRST);
        payoff.note(8, 8);
        assert!(payoff.count(0.2) > 1);
    }
}
