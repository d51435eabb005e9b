//! Ways to cut a text into tokens that the `tokenizers` crate does not have.

use tokenizers::tokenizer::Token;
use tokenizers::ModelWrapper;

use super::longest_match::LongestMatch;
use super::viterbi::Viterbi;

#[derive(Debug)]
pub(super) enum Segmenter {
    LongestMatch(LongestMatch),
    Viterbi(Viterbi),
}

impl Segmenter {
    /// The tokens of `model` that a text consists of.
    pub fn tokenize(&self, model: &ModelWrapper, text: &str) -> tokenizers::Result<Vec<Token>> {
        match self {
            Self::LongestMatch(longest) => longest.tokenize(model, text),
            Self::Viterbi(viterbi) => Ok(viterbi.tokenize(text)),
        }
    }
}
