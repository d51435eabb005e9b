//! Regular expressions whose time grows with the text alone.

use regex::{Regex, RegexBuilder};

use super::{Characters, Span};
use crate::{CancelToken, Error, Result};
use base::runtime::memory;

/// What a compiled pattern may take.
const MOST_BYTES: usize = 16 << 20;
/// Matches between two looks at the cancel token.
const INTERVAL: usize = 1 << 12;

pub struct TextPattern(Regex);

impl TextPattern {
    /// `source` is in the syntax of the `regex` crate.
    pub fn new(source: &str) -> Result<Self> {
        RegexBuilder::new(source)
            .size_limit(MOST_BYTES)
            .build()
            .map(Self)
            .map_err(|error| {
                let reason = error.to_string();
                let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
                Error::InvalidInput(format!("the pattern can't be used: {line}"))
            })
    }

    /// Every match that is not empty, none of them overlapping another.
    pub fn find(&self, text: &str, cancel: &CancelToken) -> Result<Vec<Span>> {
        let mut characters = Characters::new(text);
        let mut found = Vec::new();
        for (index, matched) in self.0.find_iter(text).enumerate() {
            if index.is_multiple_of(INTERVAL) {
                cancel.check()?;
            }
            if !matched.is_empty() {
                let start = characters.at(matched.start());
                let end = characters.at(matched.end());
                let span = Span { start, end };
                memory::push(&mut found, span, "the matches of a pattern in a text")?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters() {
        let pattern = TextPattern::new(r"\b[A-Z]{2}[0-9]+").unwrap();
        let found = pattern
            .find("Café AB12, naïve CD3", &CancelToken::new())
            .unwrap();
        let spans: Vec<(usize, usize)> = found.iter().map(|span| (span.start, span.end)).collect();
        assert_eq!(spans, [(5, 9), (17, 20)]);
        let empty = TextPattern::new("x*").unwrap();
        assert!(empty.find("abc", &CancelToken::new()).unwrap().is_empty());
        assert!(TextPattern::new("(").is_err());
    }

    #[test]
    fn a_pattern_that_backtracking_never_ends_takes_no_time() {
        let pattern = TextPattern::new("(a+)+$").unwrap();
        let text = format!("{}b", "a".repeat(100_000));
        assert!(pattern.find(&text, &CancelToken::new()).unwrap().is_empty());
    }
}
