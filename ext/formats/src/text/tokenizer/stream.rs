//! Decoding token by token.
//!
//! The pieces concatenate to exactly what [`Tokenizer::decode`] gives for all ids at once, a piece
//! is never broken UTF-8, and a token costs the same however many came before. Each decoder of the
//! `tokenizers` crate therefore has a counterpart here that keeps just the state it needs: the
//! bytes of an unfinished character, whether the text has begun, what a later token could change.

use std::collections::HashMap;
use std::sync::OnceLock;

use tokenizers::decoders::bpe::BPEDecoder;
use tokenizers::decoders::wordpiece::{cleanup, WordPiece};
use tokenizers::decoders::DecoderWrapper;
use tokenizers::normalizers::replace::Replace;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::tokenizer::Decoder;

use super::{engine_error, Tokenizer};
use crate::Result;

/// Turns token ids into text as they come.
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    skip_special_tokens: bool,
    stages: Vec<Stage>,
}

impl StreamDecoder {
    pub(super) fn new(tokenizer: Tokenizer, skip_special_tokens: bool) -> Self {
        Self {
            stages: stages(&tokenizer),
            tokenizer,
            skip_special_tokens,
        }
    }

    /// The text that `id` completes, often empty.
    pub fn push(&mut self, id: u32) -> Result<String> {
        match self.tokenizer.decodable(id, self.skip_special_tokens) {
            Some(token) => run(&mut self.stages, vec![token]),
            None => Ok(String::new()),
        }
    }

    /// What was held back for a token that did not come.
    pub fn finish(mut self) -> Result<String> {
        let mut text = String::new();
        for index in 0..self.stages.len() {
            let Some((stage, rest)) = self
                .stages
                .get_mut(index..)
                .and_then(<[Stage]>::split_first_mut)
            else {
                break;
            };
            text.push_str(&run(rest, stage.finish()?)?);
        }
        Ok(text)
    }
}

pub(super) fn stages(tokenizer: &Tokenizer) -> Vec<Stage> {
    let mut stages = Vec::new();
    match tokenizer.shared.core.get_decoder() {
        Some(decoder) => push_stages(decoder, &mut stages),
        None => stages.push(Stage::Join { begun: false }),
    }
    stages
}

fn run(stages: &mut [Stage], mut tokens: Vec<String>) -> Result<String> {
    for stage in stages {
        tokens = stage.push(tokens)?;
    }
    Ok(tokens.concat())
}

/// The streaming counterpart of one decoder. Up to the first stage that fuses, tokens come whole;
/// behind it come fragments of the one token that the fused text is.
pub(super) enum Stage {
    Join {
        begun: bool,
    },
    Bytes {
        pending: Vec<u8>,
    },
    WordPiece {
        decoder: WordPiece,
        begun: bool,
    },
    Metaspace {
        decoder: Metaspace,
        first: Metaspace,
        begun: bool,
        fragments: bool,
    },
    Bpe {
        decoder: BPEDecoder,
        held: Option<String>,
    },
    Replace(Replace),
    ByteFallback {
        pending: Vec<u8>,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
        held: String,
    },
    /// Token-wise decoders without state.
    Each(DecoderWrapper),
    /// Decoders that need all tokens.
    Whole {
        decoder: DecoderWrapper,
        tokens: Vec<String>,
        fragments: bool,
    },
}

fn push_stages(decoder: &DecoderWrapper, stages: &mut Vec<Stage>) {
    if let DecoderWrapper::Sequence(sequence) = decoder {
        for part in sequence.get_decoders() {
            push_stages(part, stages);
        }
        return;
    }
    let fragments = stages.iter().any(Stage::fuses);
    let stage = match (decoder, fragments) {
        // Tokens are concatenated in the end anyway; what matters is that `fuses` sees this.
        (DecoderWrapper::Fuse(_), false) => Stage::Whole {
            decoder: decoder.clone(),
            tokens: Vec::new(),
            fragments: false,
        },
        (DecoderWrapper::Fuse(_), true) => return,
        (DecoderWrapper::ByteLevel(_), false) => Stage::Bytes {
            pending: Vec::new(),
        },
        (DecoderWrapper::WordPiece(decoder), false) => Stage::WordPiece {
            decoder: decoder.clone(),
            begun: false,
        },
        (DecoderWrapper::Metaspace(decoder), _) => Stage::metaspace(decoder, fragments),
        (DecoderWrapper::BPE(decoder), false) => Stage::Bpe {
            decoder: decoder.clone(),
            held: None,
        },
        (DecoderWrapper::Replace(replace), _) if !fragments || replaces_one_char(replace) => {
            Stage::Replace(replace.clone())
        }
        (DecoderWrapper::ByteFallback(_), false) => Stage::ByteFallback {
            pending: Vec::new(),
        },
        (DecoderWrapper::Strip(_), false) => Stage::Each(decoder.clone()),
        (DecoderWrapper::Strip(strip), true) => Stage::Strip {
            content: strip.content,
            start: strip.start,
            stop: strip.stop,
            held: String::new(),
        },
        _ => Stage::Whole {
            decoder: decoder.clone(),
            tokens: Vec::new(),
            fragments,
        },
    };
    stages.push(stage);
}

/// Whether replacing fragment by fragment is the same as replacing in the whole.
fn replaces_one_char(replace: &Replace) -> bool {
    serde_json::to_value(replace).is_ok_and(|value| {
        value["pattern"]["String"]
            .as_str()
            .is_some_and(|pattern| pattern.chars().count() == 1)
    })
}

impl Stage {
    fn metaspace(decoder: &Metaspace, fragments: bool) -> Self {
        let later = Metaspace::new(
            decoder.get_replacement(),
            PrependScheme::Never,
            decoder.get_split(),
        );
        Self::Metaspace {
            decoder: later,
            first: decoder.clone(),
            begun: false,
            fragments,
        }
    }

    fn fuses(&self) -> bool {
        match self {
            Self::Bytes { .. } | Self::Strip { .. } => true,
            Self::Whole {
                decoder, fragments, ..
            } => *fragments || matches!(decoder, DecoderWrapper::Fuse(_)),
            Self::Metaspace { fragments, .. } => *fragments,
            _ => false,
        }
    }

    fn push(&mut self, tokens: Vec<String>) -> Result<Vec<String>> {
        Ok(match self {
            Self::Join { begun } => tokens
                .into_iter()
                .map(|token| {
                    if std::mem::replace(begun, true) {
                        format!(" {token}")
                    } else {
                        token
                    }
                })
                .collect(),
            Self::Bytes { pending } => {
                for token in &tokens {
                    append_bytes(token, pending);
                }
                vec![take_characters(pending)]
            }
            Self::WordPiece { decoder, begun } => tokens
                .into_iter()
                .map(|token| word_piece(decoder, std::mem::replace(begun, true), token))
                .collect(),
            Self::Metaspace {
                decoder,
                first,
                begun,
                fragments,
            } => {
                let mut decoded = Vec::with_capacity(tokens.len());
                for token in tokens {
                    let decoder = if *begun { &*decoder } else { &*first };
                    *begun = !*fragments;
                    decoded.extend(decoder.decode_chain(vec![token]).map_err(engine_error)?);
                }
                decoded
            }
            Self::Bpe { decoder, held } => tokens
                .into_iter()
                .filter_map(|token| held.replace(token))
                .map(|token| token.replace(&decoder.suffix, " "))
                .collect(),
            Self::Replace(replace) => replace.decode_chain(tokens).map_err(engine_error)?,
            Self::ByteFallback { pending } => {
                let mut decoded = Vec::with_capacity(tokens.len());
                for token in tokens {
                    match byte_of(&token) {
                        Some(byte) => pending.push(byte),
                        None => {
                            decoded.extend(take_byte_run(pending));
                            decoded.push(token);
                        }
                    }
                }
                decoded
            }
            Self::Strip {
                content,
                start,
                stop,
                held,
            } => {
                held.extend(tokens);
                strip_start(held, *content, start);
                if *start > 0 && held.is_empty() {
                    return Ok(Vec::new());
                }
                vec![take_all_but_last(held, *stop)]
            }
            Self::Each(decoder) => decoder.decode_chain(tokens).map_err(engine_error)?,
            Self::Whole {
                decoder: DecoderWrapper::Fuse(_),
                fragments: false,
                ..
            } => tokens,
            Self::Whole { tokens: held, .. } => {
                held.extend(tokens);
                Vec::new()
            }
        })
    }

    fn finish(&mut self) -> Result<Vec<String>> {
        Ok(match self {
            Self::Bytes { pending } if !pending.is_empty() => {
                vec![String::from_utf8_lossy(&std::mem::take(pending)).into_owned()]
            }
            Self::Bpe { decoder, held } => held
                .take()
                .map(|token| token.replace(&decoder.suffix, ""))
                .into_iter()
                .collect(),
            Self::ByteFallback { pending } => take_byte_run(pending),
            Self::Strip {
                content,
                stop,
                held,
                ..
            } => {
                let mut text = std::mem::take(held);
                for _ in 0..*stop {
                    match text.strip_suffix(*content) {
                        Some(rest) => text.truncate(rest.len()),
                        None => break,
                    }
                }
                vec![text]
            }
            Self::Whole {
                decoder,
                tokens,
                fragments,
            } if !tokens.is_empty() => {
                let mut tokens = std::mem::take(tokens);
                if *fragments {
                    tokens = vec![tokens.concat()];
                }
                decoder.decode_chain(tokens).map_err(engine_error)?
            }
            _ => Vec::new(),
        })
    }
}

pub(super) fn word_piece(decoder: &WordPiece, begun: bool, token: String) -> String {
    let text = match token.strip_prefix(&decoder.prefix) {
        _ if !begun => token,
        Some(rest) => rest.to_owned(),
        None => format!(" {token}"),
    };
    if decoder.cleanup {
        cleanup(&text)
    } else {
        text
    }
}

/// Removes up to `left` leading `content`; `left` becomes 0 once the text has begun.
fn strip_start(text: &mut String, content: char, left: &mut usize) {
    while *left > 0 {
        match text.chars().next() {
            Some(character) if character == content => {
                text.remove(0);
                *left -= 1;
            }
            Some(_) => *left = 0,
            None => break,
        }
    }
}

fn take_all_but_last(text: &mut String, characters: usize) -> String {
    let keep_from = match characters {
        0 => text.len(),
        _ => text
            .char_indices()
            .rev()
            .nth(characters - 1)
            .map_or(0, |(index, _)| index),
    };
    let kept = text.split_off(keep_from);
    std::mem::replace(text, kept)
}

/// The byte of a token such as `<0x0A>`.
pub(super) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// A run of byte tokens is text as a whole or not at all: then each byte is one U+FFFD.
fn take_byte_run(pending: &mut Vec<u8>) -> Vec<String> {
    if pending.is_empty() {
        return Vec::new();
    }
    match String::from_utf8(std::mem::take(pending)) {
        Ok(text) => vec![text],
        Err(error) => vec!["\u{FFFD}".to_owned(); error.as_bytes().len()],
    }
}

/// The complete characters, with U+FFFD for what can't become one; an unfinished one stays.
pub(super) fn take_characters(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    while let Some(rest) = pending.get(done..).filter(|rest| !rest.is_empty()) {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                done += valid.len();
            }
            Err(error) => {
                let valid = rest.get(..error.valid_up_to()).unwrap_or_default();
                text.push_str(&String::from_utf8_lossy(valid));
                done += valid.len();
                match error.error_len() {
                    Some(length) => {
                        text.push('\u{FFFD}');
                        done += length;
                    }
                    None => break,
                }
            }
        }
    }
    pending.drain(..done);
    text
}

/// The bytes that a byte-level token's characters stand for; other tokens are text as they are.
pub(super) fn append_bytes(token: &str, bytes: &mut Vec<u8>) {
    let table = character_bytes();
    let length = bytes.len();
    for character in token.chars() {
        match table.get(&character) {
            Some(byte) => bytes.push(*byte),
            None => {
                bytes.truncate(length);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// Byte-level vocabularies write printable Latin-1 bytes as themselves and shift the others up,
/// in order, to the characters from U+0100 on.
pub(super) fn character_bytes() -> &'static HashMap<char, u8> {
    static TABLE: OnceLock<HashMap<char, u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut shifted = 0x100u32;
        (0..=255u8)
            .filter_map(|byte| {
                let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
                let code = if printable {
                    u32::from(byte)
                } else {
                    shifted += 1;
                    shifted - 1
                };
                Some((char::from_u32(code)?, byte))
            })
            .collect()
    })
}

/// Bytes as byte-level vocabularies write them.
pub(super) fn characters_of(bytes: &[u8]) -> String {
    static TABLE: OnceLock<HashMap<u8, char>> = OnceLock::new();
    let pairs = || {
        character_bytes()
            .iter()
            .map(|(character, byte)| (*byte, *character))
    };
    let table = TABLE.get_or_init(|| pairs().collect());
    bytes.iter().filter_map(|byte| table.get(byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_table_is_that_of_the_tokenizers_crate() {
        let theirs = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let ours = character_bytes();
        assert_eq!(ours.len(), 256);
        assert!(theirs.iter().all(|character| ours.contains_key(character)));
        assert_eq!(ours.get(&'Ġ'), Some(&b' '));
        assert_eq!(ours.get(&'Ċ'), Some(&b'\n'));
    }

    #[test]
    fn an_unfinished_character_waits_and_a_broken_one_does_not() {
        let mut pending = "é".as_bytes()[..1].to_vec();
        assert_eq!(take_characters(&mut pending), "");
        pending.push(0xA9);
        assert_eq!(take_characters(&mut pending), "é");
        pending.extend([0xFF, b'a', 0xE2, 0x82]);
        assert_eq!(take_characters(&mut pending), "\u{FFFD}a");
        assert_eq!(pending, [0xE2, 0x82]);
    }

    #[test]
    fn stripping_ends_with_the_first_other_character() {
        let mut text = "  a".to_owned();
        let mut left = 1;
        strip_start(&mut text, ' ', &mut left);
        assert_eq!((text.as_str(), left), (" a", 0));
        assert_eq!(take_all_but_last(&mut text, 1), " ");
        assert_eq!(text, "a");
    }
}
