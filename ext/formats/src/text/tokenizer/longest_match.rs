//! Cuts texts into the longest tokens that fit, from the beginning on: RWKV's world vocabulary has no merges.

use std::collections::HashMap;

use tokenizers::tokenizer::{Model, Token};
use tokenizers::ModelWrapper;

/// How many characters the longest token has that begins with a character.
#[derive(Debug)]
pub(super) struct LongestMatch(HashMap<char, usize>);

impl LongestMatch {
    pub fn new<'a>(tokens: impl Iterator<Item = &'a String>) -> Self {
        let mut longest = HashMap::new();
        for token in tokens {
            if let Some(first) = token.chars().next() {
                let length = longest.entry(first).or_insert(0);
                *length = token.chars().count().max(*length);
            }
        }
        Self(longest)
    }

    /// The tokens of `model` that a text consists of.
    pub fn tokenize(&self, model: &ModelWrapper, text: &str) -> tokenizers::Result<Vec<Token>> {
        let (mut tokens, mut ends, mut start) = (Vec::new(), Vec::new(), 0);
        while let Some(first) = text[start..].chars().next() {
            let most = self.0.get(&first).copied().unwrap_or(0);
            let characters = text[start..].char_indices().take(most);
            ends.clear();
            ends.extend(characters.map(|(at, character)| start + at + character.len_utf8()));
            let mut longest_first = ends.iter().rev();
            let found =
                longest_first.find_map(|&end| Some((end, model.token_to_id(&text[start..end])?)));
            let Some((end, id)) = found else {
                return Err(format!("no token begins with {first:?}").into());
            };
            tokens.push(Token::new(id, text[start..end].to_owned(), (start, end)));
            start = end;
        }
        Ok(tokens)
    }
}

/// The bytes of a token as GGUF files write it: bytes that are not printable ASCII are escaped.
pub(super) fn unescaped(token: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(token.len()), token.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b't') => bytes.push(b'\t'),
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b'x') => {
                let digits = rest
                    .by_ref()
                    .take(2)
                    .map(|digit| char::from(digit).to_digit(16));
                let number = digits.fold(0, |number, digit| 16 * number + digit.unwrap_or(0));
                bytes.push(number as u8);
            }
            other => bytes.extend(other),
        }
    }
    bytes
}
