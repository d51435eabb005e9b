//! Phrases end to end, each of which sees itself alone.

use crate::nn::PackedSequences;
use crate::Result;

/// The beginning, the end, the dot and the question mark of BERT's uncased vocabulary, which end phrases.
pub const FIRST: u32 = 101;
pub const LAST: u32 = 102;
pub const DOT: u32 = 1012;
const QUESTION: u32 = 1029;

/// One sequence for each phrase with the token that ends it, whose words count from 0.
pub fn phrases(ids: &[u32]) -> Result<PackedSequences> {
    let mut phrases = PackedSequences::new();
    let mut positions = Vec::with_capacity(ids.len());
    for phrase in ids.split_inclusive(|id| [FIRST, LAST, DOT, QUESTION].contains(id)) {
        phrases.push(phrase, None)?;
        let last = phrase.len() as u32 - 1;
        positions.extend(0..last);
        // The token at the end begins to count again.
        positions.push(0);
    }
    phrases.at_positions(positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_end_with_dots() {
        let found = phrases(&[FIRST, 7, 8, 9, DOT, 5, DOT, LAST]).unwrap();
        assert_eq!(found.boundaries(), [0, 1, 5, 7, 8]);
        assert_eq!(found.positions(), Some(&[0, 0, 1, 2, 0, 0, 0, 0][..]));
    }
}
