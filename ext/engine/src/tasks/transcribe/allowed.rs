//! Texts of nothing but given words.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::generation::{Constraint, Ending, Pattern, Vocabulary};
use crate::{CancelToken, Error, Result};
use formats::text::tokenizer::Tokenizer;

/// Which tokens may follow a window's text, so that it is made of words and phrases of a list.
pub struct Allowed {
    /// At the beginning of a text.
    start: Mutex<Box<dyn Constraint>>,
    end_ids: Vec<u32>,
    beyond: Beyond,
}

/// Tokens that do not stand for text.
#[derive(Clone, Copy, Debug)]
pub struct Beyond {
    /// All from here on.
    pub first: u32,
    /// Those for times, which may come where a word ends.
    pub first_time: u32,
}

impl Beyond {
    /// All tokens are text.
    pub const NONE: Self = Self {
        first: u32::MAX,
        first_time: u32::MAX,
    };
}

impl Allowed {
    pub fn new(
        words: &[String],
        vocabulary: (&OnceLock<Vocabulary>, &Tokenizer),
        end_ids: Vec<u32>,
        beyond: Beyond,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let pattern = Pattern::Regex(pattern(words));
        let start = Vocabulary::constraint(vocabulary, (&pattern, Ending::Model), true, cancel)?;
        Ok(Self {
            start: Mutex::new(start),
            end_ids,
            beyond,
        })
    }

    /// Leaves the scores of tokens that may follow `written`; those of the others become -∞. `times`: whether
    /// tokens for times are wanted.
    pub fn apply(&self, written: &[u32], times: bool, scores: &mut [f32]) {
        // Who chooses among no tokens says so.
        if self.restrict(written, times, scores).is_err() {
            scores.fill(f32::NEG_INFINITY);
        }
    }

    fn restrict(&self, written: &[u32], times: bool, scores: &mut [f32]) -> Result<()> {
        let mut constraint = {
            let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
            start.fork()
        };
        for &token in written {
            if token < self.beyond.first {
                constraint.accept(token)?;
            }
        }
        let allowed = constraint.allowed(&self.end_ids)?;
        let holds = |token: u32| {
            let word = allowed.get(token as usize / 32);
            word.is_some_and(|word| word >> (token % 32) & 1 == 1)
        };
        let ends = self.end_ids.iter().any(|&end| holds(end));
        for (token, score) in (0u32..).zip(scores) {
            let time = times && ends && token >= self.beyond.first_time;
            let end = ends && self.end_ids.contains(&token);
            if !(time || end || token < self.beyond.first && holds(token)) {
                *score = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }
}

/// Words with a space between them, and maybe one before.
fn pattern(words: &[String]) -> String {
    let escaped: Vec<String> = words.iter().map(|word| escaped(word)).collect();
    let one = escaped.join("|");
    format!("(?: ?(?:{one})(?: (?:{one}))*)?")
}

fn escaped(word: &str) -> String {
    let mut result = String::with_capacity(word.len());
    for character in word.chars() {
        if character.is_ascii() && !character.is_ascii_alphanumeric() && character != ' ' {
            result.push('\\');
        }
        result.push(character);
    }
    result
}

/// An error for words that no text could be made of.
pub fn check(words: &[String]) -> Result<()> {
    match words.iter().position(|word| word.trim().is_empty()) {
        Some(at) => Err(Error::InvalidInput(format!(
            "vocabulary[{at}] has no characters"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_as_they_are() {
        let words = ["a.b".to_owned(), "c d".to_owned()];
        assert_eq!(pattern(&words), r"(?: ?(?:a\.b|c d)(?: (?:a\.b|c d))*)?");
        assert!(check(&words).is_ok());
        assert!(check(&[" ".to_owned()]).is_err());
    }
}
