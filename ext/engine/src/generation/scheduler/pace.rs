//! How much of a prompt is read between the tokens of others.

use std::time::Duration;

/// The time that a pass with a part of a prompt may take, in passes without one: a gap between two tokens
/// stays below three of the usual ones with some to spare.
const STRETCH: f64 = 2.2;
/// A part is at least this long, so that a prompt gets on.
const LEAST: usize = 4;
/// Before anything was measured.
const FIRST: usize = 16;
/// The weight of the latest measurement.
const LATEST: f64 = 0.25;

/// What passes have taken so far, in seconds.
#[derive(Default)]
pub struct Pace {
    /// A pass in which every text gets one token.
    pass: Option<f64>,
    /// A token of a prompt beside it.
    token: Option<f64>,
    /// A guess beside it that is checked, and a pass of the model that makes guesses.
    guess: Option<f64>,
    draft: Option<f64>,
}

fn blend(before: Option<f64>, latest: f64) -> Option<f64> {
    Some(before.map_or(latest, |before| before + LATEST * (latest - before)))
}

impl Pace {
    /// How many tokens of prompts go into a pass beside others' tokens.
    pub fn part(&self, most: usize) -> usize {
        match (self.pass, self.token) {
            (Some(pass), Some(token)) if token > 0.0 => {
                (((STRETCH - 1.0) * pass / token) as usize).clamp(LEAST, most.max(LEAST))
            }
            _ => FIRST.min(most),
        }
    }

    /// What one guess more for each of so many texts takes, in passes without guesses: to make it and to
    /// check it. `None` before a pass was measured.
    pub fn guess_cost(&self, texts: usize) -> Option<f64> {
        let pass = self.pass.filter(|&pass| pass > 0.0)?;
        let check = self.guess.unwrap_or(0.0) * texts as f64;
        Some((self.draft.unwrap_or(0.0) + check) / pass)
    }

    /// Takes note of a pass of the model that makes guesses.
    pub fn note_draft(&mut self, took: Duration) {
        self.draft = blend(self.draft, took.as_secs_f64());
    }

    /// Takes note of a pass with `decoding` texts that got a token, `reading` tokens of prompts and
    /// `guesses` to check.
    pub fn note(&mut self, decoding: usize, reading: usize, guesses: usize, took: Duration) {
        let took = took.as_secs_f64();
        match (decoding, reading) {
            (0, 0) => {}
            (_, 0) if guesses > 0 => {
                if let Some(pass) = self.pass {
                    self.guess = blend(self.guess, (took - pass).max(0.0) / guesses as f64);
                }
            }
            (_, 0) => self.pass = blend(self.pass, took),
            // Alone a part is read faster than between others; it is a beginning.
            (0, _) => self.token = self.token.or(Some(took / reading as f64)),
            _ => {
                let checks = self.guess.unwrap_or(0.0) * guesses as f64;
                let alone = self.pass.unwrap_or(0.0) + checks;
                self.token = blend(self.token, (took - alone).max(0.0) / reading as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_long_as_the_time_allows() {
        let mut pace = Pace::default();
        assert_eq!(pace.part(256), FIRST);
        pace.note(4, 0, 0, Duration::from_millis(10));
        pace.note(4, 20, 0, Duration::from_millis(30));
        // A token takes 1 ms, and 12 ms may be added.
        assert!((11..=12).contains(&pace.part(256)));
        assert_eq!(pace.part(8), 8);
        for _ in 0..50 {
            pace.note(4, 10, 0, Duration::from_millis(500));
        }
        assert_eq!(pace.part(256), LEAST);
    }

    #[test]
    fn a_guess_costs_what_it_takes_to_make_and_to_check_it() {
        let mut pace = Pace::default();
        pace.note(2, 0, 4, Duration::from_millis(10));
        assert_eq!(pace.guess_cost(1), None);
        pace.note(2, 0, 0, Duration::from_millis(10));
        assert_eq!(pace.guess_cost(1), Some(0.0));
        pace.note(2, 0, 4, Duration::from_millis(14));
        pace.note_draft(Duration::from_millis(2));
        let near = |cost: Option<f64>, wanted: f64| (cost.unwrap() - wanted).abs() < 1e-9;
        assert!(near(pace.guess_cost(1), 0.3));
        assert!(near(pace.guess_cost(2), 0.4));
    }
}
