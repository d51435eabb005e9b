//! Tokenizer files by strangers: their normalizers may multiply a text, and their parts may contradict
//! each other so that the `tokenizers` crate panics.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::OnceLock;

use tokenizers::tokenizer::{NormalizedString, Normalizer};
use tokenizers::NormalizerWrapper;

use super::{Detail, Input, Tokenizer};
use crate::runtime::memory;
use crate::{CancelToken, Error, Result};

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
