//! Guesses of what comes next, for a pass to check several tokens at once. A guess costs or saves time, and
//! changes no text: every token is chosen by its own logits, and a wrong guess is thrown away.

/// Tokens guessed at a time, at most.
const MOST: usize = 8;
/// The end of the text is looked for with this many tokens, then with fewer.
const LONGEST: usize = 4;
const SHORTEST: usize = 2;
/// After so many guesses it is known whether they pay.
const TRIAL: u32 = 16;
/// Of this share at least must be right.
const WORTH: f32 = 0.25;
/// How many tokens pass before guessing is tried again.
const REST: u32 = 64;

/// Where the text so far has said the same before, what followed then is the guess.
#[derive(Clone, Debug, Default)]
pub struct Speculation {
    guessed: u32,
    right: u32,
    rest: u32,
}

impl Speculation {
    /// At most `most` tokens that may follow `ids`.
    pub fn guess(&mut self, ids: &[u32], most: usize) -> Vec<u32> {
        if self.rest > 0 {
            self.rest -= 1;
            return Vec::new();
        }
        let most = most.min(MOST);
        (SHORTEST..=LONGEST)
            .rev()
            .find_map(|length| follows(ids, length, most))
            .unwrap_or_default()
    }

    /// Takes note of how many guesses were right.
    pub fn note(&mut self, guessed: usize, right: usize) {
        self.guessed += guessed as u32;
        self.right += right as u32;
        if self.guessed >= TRIAL {
            if (self.right as f32) < WORTH * self.guessed as f32 {
                self.rest = REST;
            }
            (self.guessed, self.right) = (0, 0);
        }
    }
}

/// What followed the last `length` tokens where they stood before, the latest time.
fn follows(ids: &[u32], length: usize, most: usize) -> Option<Vec<u32>> {
    let start = ids.len().checked_sub(length)?;
    let end = &ids[start..];
    let found = (0..start).rev().find(|&at| ids[at..].starts_with(end))?;
    let after = &ids[found + length..];
    let guess = after[..after.len().min(most)].to_vec();
    (!guess.is_empty()).then_some(guess)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_before_is_guessed() {
        let mut speculation = Speculation::default();
        let ids = [1, 2, 3, 9, 8, 7, 5, 1, 2, 3];
        assert_eq!(speculation.guess(&ids, 2), [9, 8]);
        assert_eq!(speculation.guess(&ids, 100).len(), 7);
        assert!(speculation.guess(&[1, 2, 3, 4], 4).is_empty());
        assert!(speculation.guess(&[], 4).is_empty());
        assert_eq!(speculation.guess(&[6, 6, 6], 4), [6]);
    }

    #[test]
    fn guessing_rests_while_it_does_not_pay() {
        let mut speculation = Speculation::default();
        let ids = [1, 2, 3, 1, 2];
        speculation.note(8, 8);
        speculation.note(8, 0);
        assert!(!speculation.guess(&ids, 4).is_empty());
        speculation.note(16, 1);
        for _ in 0..REST {
            assert!(speculation.guess(&ids, 4).is_empty());
        }
        assert!(!speculation.guess(&ids, 4).is_empty());
    }
}
