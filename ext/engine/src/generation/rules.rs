//! Which tokens may not come next, by what a checkpoint or a call says: lengths, repetitions, words,
//! tokens that begin and end a text. As transformers means them.

/// `None`, 0 or empty where nothing is asked for. Lengths are numbers of new tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenRules {
    /// The tokens that end a text.
    pub end_ids: Vec<u32>,
    /// A text is not ended before it has so many tokens.
    pub min_new_tokens: usize,
    pub max_new_tokens: usize,
    /// No sequence of so many tokens comes twice; 0 allows all.
    pub no_repeat_ngram_size: usize,
    /// Sequences that do not come at all.
    pub bad_words: Vec<Vec<u32>>,
    pub suppressed: Vec<u32>,
    /// Not as the first token that the model chooses.
    pub suppressed_at_begin: Vec<u32>,
    /// The first token.
    pub forced_begin: Option<u32>,
    /// What a text ends with that reaches the greatest length.
    pub forced_end: Vec<u32>,
}

impl TokenRules {
    /// Leaves the scores of the tokens that may follow `text`, whose first `start` tokens were given;
    /// those of the others become -∞.
    pub fn apply(&self, text: &[u32], start: usize, scores: &mut [f32]) {
        let new = text.len().saturating_sub(start);
        let mut forbid = |token: u32| {
            if let Some(score) = scores.get_mut(token as usize) {
                *score = f32::NEG_INFINITY;
            }
        };
        self.repeated(text).for_each(&mut forbid);
        self.completed_words(text).for_each(&mut forbid);
        if new < self.min_new_tokens {
            self.end_ids.iter().copied().for_each(&mut forbid);
        }
        if let (0, Some(token)) = (new, self.forced_begin) {
            force(&[token], scores);
        }
        if new + 1 == self.max_new_tokens && !self.forced_end.is_empty() {
            force(&self.forced_end, scores);
        }
        let begin = usize::from(self.forced_begin.is_some());
        let at_begin = self.suppressed_at_begin.iter().filter(|_| new == begin);
        for &token in self.suppressed.iter().chain(at_begin) {
            if let Some(score) = scores.get_mut(token as usize) {
                *score = f32::NEG_INFINITY;
            }
        }
    }

    /// The tokens that would complete a sequence the text already has.
    fn repeated<'a>(&self, text: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let size = self.no_repeat_ngram_size;
        let known = size.checked_sub(1).filter(|&known| known <= text.len());
        let last = known.map(|known| &text[text.len() - known..]);
        last.into_iter().flat_map(move |last| {
            text.windows(size)
                .filter(move |seen| seen[..size - 1] == *last)
                .map(|seen| seen[seen.len() - 1])
        })
    }

    fn completed_words<'a>(&'a self, text: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let end = &self.end_ids;
        self.bad_words.iter().filter_map(move |word| {
            let (last, before) = word.split_last()?;
            let ends_text = before.is_empty() && end.contains(last);
            let fits = before.is_empty() || (word.len() <= text.len() && text.ends_with(before));
            (fits && !ends_text).then_some(*last)
        })
    }
}

/// Nothing but these tokens, each equally.
fn force(tokens: &[u32], scores: &mut [f32]) {
    scores.fill(f32::NEG_INFINITY);
    for &token in tokens {
        if let Some(score) = scores.get_mut(token as usize) {
            *score = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(rules: &TokenRules, text: &[u32]) -> Vec<u32> {
        let mut scores = [1.0; 8];
        rules.apply(text, 1, &mut scores);
        (0..8)
            .filter(|&token| scores[token as usize].is_finite())
            .collect()
    }

    #[test]
    fn sequences_do_not_come_twice() {
        let rules = |no_repeat_ngram_size| TokenRules {
            no_repeat_ngram_size,
            ..TokenRules::default()
        };
        assert_eq!(left(&rules(1), &[0, 3]), [1, 2, 4, 5, 6, 7]);
        assert_eq!(left(&rules(2), &[0, 3, 4, 5, 3]), [0, 1, 2, 3, 5, 6, 7]);
        assert_eq!(
            left(&rules(3), &[0, 3, 4, 5, 3]),
            (0..8).collect::<Vec<_>>()
        );
        assert_eq!(left(&rules(9), &[0, 3]), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn texts_begin_and_end_as_they_must() {
        let rules = TokenRules {
            end_ids: vec![7],
            min_new_tokens: 2,
            max_new_tokens: 4,
            forced_begin: Some(2),
            forced_end: vec![7],
            suppressed_at_begin: vec![1],
            suppressed: vec![0],
            ..TokenRules::default()
        };
        assert_eq!(left(&rules, &[0]), [2]);
        assert_eq!(left(&rules, &[0, 2]), [2, 3, 4, 5, 6]);
        assert_eq!(left(&rules, &[0, 2, 3]), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(left(&rules, &[0, 2, 3, 4]), [7]);
    }

    #[test]
    fn words_are_kept_from_being_completed() {
        let rules = TokenRules {
            end_ids: vec![7],
            bad_words: vec![vec![7], vec![1], vec![2, 3], vec![4, 5, 6], Vec::new()],
            ..TokenRules::default()
        };
        assert_eq!(left(&rules, &[0, 2]), [0, 2, 4, 5, 6, 7]);
        assert_eq!(left(&rules, &[0, 4, 5]), [0, 2, 3, 4, 5, 7]);
    }
}
