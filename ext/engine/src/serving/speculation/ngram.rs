//! Prompt lookup: where the sequence so far has the same n-gram as its end, what followed then is the draft.

/// Draft tokens of a step, at most.
const MOST: usize = 8;
/// Tokens of the n-gram: this many first, then fewer.
const LONGEST: usize = 4;
const SHORTEST: usize = 2;
/// After so many draft tokens it is known whether they pay.
const TRIAL: u32 = 16;
/// The least acceptance rate.
const WORTH: f32 = 0.25;
/// How many tokens are generated before it is tried again.
const PAUSE: u32 = 64;

#[derive(Clone, Debug, Default)]
pub struct NgramLookup {
    drafted: u32,
    accepted: u32,
    pause: u32,
}

impl NgramLookup {
    /// At most `most` tokens that may follow `ids`.
    pub fn draft(&mut self, ids: &[u32], most: usize) -> Vec<u32> {
        if self.pause > 0 {
            self.pause -= 1;
            return Vec::new();
        }
        let most = most.min(MOST);
        (SHORTEST..=LONGEST)
            .rev()
            .find_map(|length| follows(ids, length, most))
            .unwrap_or_default()
    }

    /// Takes note of how many draft tokens were accepted.
    pub fn note(&mut self, drafted: usize, accepted: usize) {
        self.drafted += drafted as u32;
        self.accepted += accepted as u32;
        if self.drafted >= TRIAL {
            if (self.accepted as f32) < WORTH * self.drafted as f32 {
                self.pause = PAUSE;
            }
            (self.drafted, self.accepted) = (0, 0);
        }
    }
}

/// What followed the last `length` tokens where they stood before, the latest time.
fn follows(ids: &[u32], length: usize, most: usize) -> Option<Vec<u32>> {
    let start = ids.len().checked_sub(length)?;
    let end = &ids[start..];
    let found = (0..start).rev().find(|&at| ids[at..].starts_with(end))?;
    let after = &ids[found + length..];
    let draft = after[..after.len().min(most)].to_vec();
    (!draft.is_empty()).then_some(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_before_is_drafted() {
        let mut lookup = NgramLookup::default();
        let ids = [1, 2, 3, 9, 8, 7, 5, 1, 2, 3];
        assert_eq!(lookup.draft(&ids, 2), [9, 8]);
        assert_eq!(lookup.draft(&ids, 100).len(), 7);
        assert!(lookup.draft(&[1, 2, 3, 4], 4).is_empty());
        assert!(lookup.draft(&[], 4).is_empty());
        assert_eq!(lookup.draft(&[6, 6, 6], 4), [6]);
    }

    #[test]
    fn lookup_pauses_while_it_does_not_pay() {
        let mut lookup = NgramLookup::default();
        let ids = [1, 2, 3, 1, 2];
        lookup.note(8, 8);
        lookup.note(8, 0);
        assert!(!lookup.draft(&ids, 4).is_empty());
        lookup.note(16, 1);
        for _ in 0..PAUSE {
            assert!(lookup.draft(&ids, 4).is_empty());
        }
        assert!(!lookup.draft(&ids, 4).is_empty());
    }
}
