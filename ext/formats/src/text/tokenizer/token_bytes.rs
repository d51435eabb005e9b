//! The text of single tokens, as bytes: what a constraint compares its grammar with.

use tokenizers::tokenizer::Decoder;

use super::stream::{append_bytes, byte_of, stages, take_characters, word_piece, Stage};
use super::{engine_error, Tokenizer};
use crate::{Error, Result};

/// No vocabulary is near this; a file that claims more would only cost memory.
const MOST_TOKENS: usize = 1 << 22;

/// What one token adds to a text that has begun. It may be a part of a character.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBytes {
    pub bytes: Vec<u8>,
    /// A control token: `bytes` is its name, which isn't part of the text.
    pub special: bool,
}

impl Tokenizer {
    /// The bytes of every token, by id; ids without a token have none.
    pub fn token_bytes(&self) -> Result<Vec<TokenBytes>> {
        let vocabulary = self.vocab(true);
        let size = vocabulary
            .values()
            .max()
            .map_or(0, |&largest| largest as usize + 1);
        if size > MOST_TOKENS {
            return Err(Error::Tokenizer(format!(
                "{} has a token with id {}, beyond the limit of {MOST_TOKENS} for constrained generation",
                self.source().display(),
                size - 1
            )));
        }
        let stages = stages(self);
        let mut tokens = vec![TokenBytes::default(); size];
        for (token, id) in vocabulary {
            let special = self.is_special(&token);
            if let Some(slot) = tokens.get_mut(id as usize) {
                slot.special = special;
                slot.bytes = if special {
                    token.into_bytes()
                } else {
                    bytes_of(&stages, token)?
                };
            }
        }
        Ok(tokens)
    }
}

/// Runs one token through the decoders as if others stood before and behind it.
fn bytes_of(stages: &[Stage], token: String) -> Result<Vec<u8>> {
    let mut texts = vec![token];
    for stage in stages {
        texts = match stage {
            Stage::Bytes { .. } => {
                let mut bytes = Vec::new();
                for text in &texts {
                    append_bytes(text, &mut bytes);
                }
                return Ok(bytes);
            }
            Stage::ByteFallback { .. } => match texts.as_slice() {
                [text] => match byte_of(text) {
                    Some(byte) => return Ok(vec![byte]),
                    None => texts,
                },
                _ => texts,
            },
            Stage::Join { .. } => prefixed(" ", texts),
            Stage::WordPiece { decoder, .. } => texts
                .into_iter()
                .map(|text| word_piece(decoder, true, text))
                .collect(),
            Stage::Metaspace { decoder, .. } => {
                decoder.decode_chain(texts).map_err(engine_error)?
            }
            Stage::Bpe { decoder, .. } => texts
                .into_iter()
                .map(|text| text.replace(&decoder.suffix, " "))
                .collect(),
            Stage::Replace(decoder) => decoder.decode_chain(texts).map_err(engine_error)?,
            Stage::Each(decoder) => decoder.decode_chain(texts).map_err(engine_error)?,
            // These change the two ends of a text only, or need all of it.
            Stage::Strip { .. } | Stage::Whole { .. } => texts,
        };
    }
    Ok(texts.concat().into_bytes())
}

fn prefixed(prefix: &str, texts: Vec<String>) -> Vec<String> {
    texts
        .into_iter()
        .map(|text| format!("{prefix}{text}"))
        .collect()
}

/// Bytes in, whole characters out.
#[derive(Debug, Default)]
pub struct CharacterStream {
    pending: Vec<u8>,
}

impl CharacterStream {
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        take_characters(&mut self.pending)
    }

    /// What was held back for bytes that did not come.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}
