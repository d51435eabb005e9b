//! Tokenizer files by strangers: their normalizers may multiply a text, and their parts may contradict
//! each other so that the `tokenizers` crate panics.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::tokenizer::{NormalizedString, Normalizer};
use tokenizers::NormalizerWrapper;

use super::{Detail, Input, Tokenizer};
use crate::{CancelToken, Error, Result};
use base::runtime::memory;

/// How much longer a text may get. Real normalizers at most double one, but for a few characters.
const MOST_GROWTH: usize = 16;
/// Short texts may get this long.
const ALWAYS_ALLOWED: usize = 1 << 20;
/// What a normalized text takes per byte: the byte, and where it came from.
const BYTES_PER_BYTE: usize = 1 + 2 * size_of::<usize>();

/// What it takes in all until a text is tokens, per byte: 70 to 180 were measured, and 280 where every second byte is a
/// word.
const WORKING_BYTES: usize = 300;

/// An `OutOfMemory` error unless there is room for what the crate makes of a long text on the way, which it can't refuse
/// by itself.
pub(super) fn ensure_room(text: &str) -> Result<()> {
    memory::ensure_available(
        text.len().saturating_mul(WORKING_BYTES),
        format_args!("tokenizing a text of {}", memory::format_bytes(text.len())),
    )
}

/// `ensure_room` for what stays of many texts: an encoding each, and of its tokens ids, names and places.
pub(super) fn ensure_room_for_all(inputs: &[Input<'_>]) -> Result<()> {
    const BYTES_PER_TEXT: usize = 512;
    const KEPT_BYTES: usize = 40;
    let lengths = inputs.iter().map(|input| match input {
        Input::Single(text) => text.len(),
        Input::Pair(first, second) => first.len() + second.len(),
    });
    let length = lengths.sum::<usize>().saturating_mul(KEPT_BYTES);
    memory::ensure_available(
        length.saturating_add(inputs.len().saturating_mul(BYTES_PER_TEXT)),
        format_args!("the tokens of {} texts", inputs.len()),
    )
}

/// No text of a table of characters is longer; the longest that Unicode makes of a character is half of it.
const LONGEST_REPLACEMENT: usize = 64;

/// The table of characters in a tokenizer's file, by which SentencePiece normalizes: the size of a trie, the trie, and
/// the texts that it points to, each with a zero behind it. The crate reserves what the size says, and copies texts of
/// any length for each character.
pub(super) fn check_characters(table: &[u8], file: &Path) -> Result<()> {
    let refused =
        |reason: &str| Error::corrupt(file, format_args!("its table of characters {reason}"));
    let (size, rest) = table
        .split_first_chunk()
        .ok_or_else(|| refused("breaks off"))?;
    let trie = u32::from_le_bytes(*size) as usize / 4 * 4;
    let texts = rest.get(trie..).filter(|_| trie > 0);
    let texts = texts.ok_or_else(|| refused("does not have the size that it says"))?;
    match texts.split(|&byte| byte == 0).map(<[u8]>::len).max() {
        Some(longest) if longest > LONGEST_REPLACEMENT => {
            Err(refused("makes long texts of single characters"))
        }
        _ => Ok(()),
    }
}

/// The tables of characters in the normalizers of a `tokenizer.json`, checked before the crate reads them.
pub(super) fn check_normalizer(normalizer: &Value, file: &Path) -> Result<()> {
    match normalizer {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| match value {
            Value::String(table) if name == "precompiled_charsmap" => {
                check_characters(&base64(table), file)
            }
            value => check_normalizer(value, file),
        }),
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| check_normalizer(item, file)),
        _ => Ok(()),
    }
}

/// The bytes of a text in Base64; what does not belong there is passed over, as the crate refuses it.
fn base64(text: &str) -> Vec<u8> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0u32, 0);
    for digit in text.bytes().filter_map(digit) {
        (bits, count) = ((bits << 6) | u32::from(digit), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// A normalizer step by step, with what may have stopped it.
pub(super) struct Bounded<'a> {
    normalizer: &'a NormalizerWrapper,
    source: &'a Path,
    cancel: &'a CancelToken,
    most: usize,
    failure: OnceLock<Error>,
}

impl<'a> Bounded<'a> {
    pub fn new(
        normalizer: &'a NormalizerWrapper,
        source: &'a Path,
        text: &str,
        cancel: &'a CancelToken,
    ) -> Self {
        Self {
            normalizer,
            source,
            cancel,
            most: text.len().saturating_mul(MOST_GROWTH).max(ALWAYS_ALLOWED),
            failure: OnceLock::new(),
        }
    }

    /// The error that ended it; the crate drops those of normalizers.
    pub fn finish(self) -> Result<()> {
        self.failure.into_inner().map_or(Ok(()), Err)
    }

    fn apply(&self, normalizer: &NormalizerWrapper, text: &mut NormalizedString) -> Result<()> {
        if let NormalizerWrapper::Sequence(steps) = normalizer {
            let mut steps = steps.as_ref().iter();
            return steps.try_for_each(|step| self.apply(step, text));
        }
        self.cancel.check()?;
        let length = text.get().len();
        let longest = match normalizer {
            // At most one match per character, and one at the end.
            NormalizerWrapper::Replace(replace) => {
                let matches = text.get().chars().count() + 1;
                length.saturating_add(matches.saturating_mul(replace.content.len()))
            }
            _ => length,
        };
        self.check(longest)?;
        normalizer
            .normalize(text)
            .map_err(|error| Error::Tokenizer(error.to_string()))?;
        self.check(text.get().len())
    }

    fn check(&self, length: usize) -> Result<()> {
        if length > self.most {
            return Err(Error::corrupt(
                self.source,
                format_args!("its normalizers make a text more than {MOST_GROWTH} times as long"),
            ));
        }
        let bytes = length.saturating_mul(BYTES_PER_BYTE);
        memory::ensure_available(bytes, "a normalized text")
    }
}

impl Normalizer for Bounded<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if self.failure.get().is_none() {
            if let Err(error) = self.apply(self.normalizer, text) {
                self.failure.get_or_init(|| error);
            }
        }
        Ok(())
    }
}

impl Tokenizer {
    /// Runs what the crate may panic in.
    pub(super) fn guarded<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            Err(Error::corrupt(
                self.source(),
                "its tokenizer's parts contradict each other",
            ))
        })
    }

    /// An error for a tokenizer that can't be used at all.
    pub(super) fn checked(self) -> Result<Self> {
        if self.vocab_size(true) == 0 {
            return Err(Error::corrupt(self.source(), "it has no tokens"));
        }
        let cancel = CancelToken::new();
        for text in ["", "a", "Hello, wörld 123\n", "\u{301}漢"] {
            for input in [Input::Single(text), Input::Pair(text, text)] {
                let outcome = self
                    .encode(input, true, Detail::Offsets, &cancel)
                    .and_then(|encoding| self.decode(encoding.get_ids(), false));
                // Any other error, such as a word without a token for it, is one text's.
                if let Err(error @ Error::CorruptModel(_)) = outcome {
                    return Err(error);
                }
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_characters_that_lie_are_refused_before_they_are_read() {
        let table = |size: u32, texts: &[u8]| [&size.to_le_bytes()[..], &[0; 8], texts].concat();
        let check = |table: &[u8]| check_characters(table, Path::new("a.model"));
        check(&table(8, b"abc\0de\0")).unwrap();
        check(&table(8, &[b'x'; LONGEST_REPLACEMENT])).unwrap();
        let long = [b'x'; LONGEST_REPLACEMENT + 1];
        for wrong in [
            table(u32::MAX, b"abc\0"),
            table(16, b"abc\0"),
            table(0, b"abc\0"),
            table(8, &long),
            vec![1, 2],
        ] {
            let message = check(&wrong).unwrap_err().to_string();
            assert!(message.contains("its table of characters"), "{message}");
        }
        let json = serde_json::json!({ "type": "Sequence", "normalizers": [
            { "type": "Precompiled", "precompiled_charsmap": "/////wAAAABhAA==" }
        ] });
        assert!(check_normalizer(&json, Path::new("tokenizer.json")).is_err());
        assert_eq!(base64("SGVsbG8sIHc="), b"Hello, w");
    }
}
