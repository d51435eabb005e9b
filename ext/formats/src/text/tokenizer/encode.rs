//! From a text to its encoding: directly where the tokenizer's parts are known, else by the pipeline of the `tokenizers`
//! crate, step by step.

use std::sync::Arc;

use tokenizers::tokenizer::{Model, NormalizedString, OffsetType, PostProcessor, PreTokenizer};
use tokenizers::Encoding;

use super::direct::{Direct, Frames, Output};
use super::guard::{self, Bounded};
use super::{engine_error, Detail, Input, Tokenizer};
use crate::{CancelToken, Error, Result};
use base::runtime::stack;

/// A text of this many bytes takes longer than an interrupt may wait.
const LONG_TEXT: usize = 256 << 10;

impl Tokenizer {
    /// Finds out what the post-processor puts around texts, which a text that is encoded directly gets at once.
    pub(super) fn read_frames(&mut self) {
        if self.shared.direct.is_none() {
            return;
        }
        let frames =
            Frames::new(|first, second, special| self.post_process(first, second, special).ok());
        let shared = Arc::get_mut(&mut self.shared);
        if let Some(direct) = shared.and_then(|shared| shared.direct.as_mut()) {
            direct.frames = frames;
        }
    }

    pub(super) fn encode_unpadded(
        &self,
        input: Input<'_>,
        add_special_tokens: bool,
        detail: Detail,
        cancel: &CancelToken,
    ) -> Result<Encoding> {
        let (first, second) = match input {
            Input::Single(text) => (text, None),
            Input::Pair(first, second) => (first, Some(second)),
        };
        if let Some(direct) = self.direct() {
            let texts = (first, second);
            let found = self.encode_directly(direct, texts, add_special_tokens, detail, cancel)?;
            if let Some(encoding) = found {
                return Ok(encoding);
            }
        }
        let mut first = self.encode_text(first, 0, detail, cancel)?;
        let mut second = second
            .map(|text| self.encode_text(text, 1, detail, cancel))
            .transpose()?;
        if let Some(truncation) = &self.truncation {
            let added = self.added_by(second.is_some(), add_special_tokens);
            truncation.apply(&mut first, second.as_mut(), added)?;
        }
        self.finish(first, second, add_special_tokens)
    }

    /// How many special tokens surround the texts, if they are wanted.
    fn added_by(&self, pair: bool, add_special_tokens: bool) -> usize {
        if add_special_tokens {
            self.added_tokens(pair)
        } else {
            0
        }
    }

    /// `None` where a text needs the pipeline.
    fn encode_directly(
        &self,
        direct: &Direct,
        (first, second): (&str, Option<&str>),
        add_special_tokens: bool,
        detail: Detail,
        cancel: &CancelToken,
    ) -> Result<Option<Encoding>> {
        let encode = |text: &str| {
            self.apart_if_long(text, cancel, move |this, text, cancel| {
                let direct = this.direct();
                direct.map_or(Ok(None), |direct| {
                    direct.encode(text, detail, this.truncation.as_ref(), cancel)
                })
            })
        };
        let Some(mut first_tokens) = encode(first)? else {
            return Ok(None);
        };
        let mut second_tokens = match second.map(encode).transpose()? {
            Some(None) => return Ok(None),
            found => found.flatten(),
        };
        if let Some(truncation) = &self.truncation {
            let added = self.added_by(second.is_some(), add_special_tokens);
            let lengths = (first_tokens.len(), second_tokens.as_ref().map(Output::len));
            let (keep_first, keep_second) = truncation.kept(lengths.0, lengths.1, added)?;
            first_tokens.cut(keep_first, truncation.direction);
            if let Some(second) = &mut second_tokens {
                second.cut(keep_second, truncation.direction);
            }
        }
        let frame = direct.frames.get(second.is_some(), add_special_tokens);
        if let Some(frame) = frame.filter(|_| detail == Detail::Ids) {
            let second = second_tokens.as_ref().map_or(&[][..], Output::ids);
            return Ok(Some(frame.fill(
                first_tokens.ids(),
                second,
                self.shared.one_type,
            )));
        }
        let name = |id| self.shared.core.get_model().id_to_token(id);
        let first = first_tokens.into_encoding(first, 0, name);
        let second = second_tokens
            .zip(second)
            .map(|(tokens, text)| tokens.into_encoding(text, 1, name));
        self.finish(first, second, add_special_tokens).map(Some)
    }

    fn finish(
        &self,
        first: Encoding,
        second: Option<Encoding>,
        add_special_tokens: bool,
    ) -> Result<Encoding> {
        let mut encoding = self.post_process(first, second, add_special_tokens)?;
        if self.shared.one_type {
            encoding.set_type_ids(vec![0; encoding.len()]);
        }
        Ok(encoding)
    }

    /// A long text is encoded on a thread that can be left alone: most steps of the pipeline take the text
    /// as a whole and look at no token.
    fn encode_text(
        &self,
        text: &str,
        type_id: u32,
        detail: Detail,
        cancel: &CancelToken,
    ) -> Result<Encoding> {
        self.apart_if_long(text, cancel, move |this, text, cancel| {
            this.encode_whole(text, type_id, detail, cancel)
        })
    }

    fn apart_if_long<T: Send + 'static>(
        &self,
        text: &str,
        cancel: &CancelToken,
        encode: impl Fn(&Self, &str, &CancelToken) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if text.len() < LONG_TEXT {
            return encode(self, text, cancel);
        }
        guard::ensure_room(text)?;
        let (this, text, part) = (self.clone(), text.to_owned(), cancel.part());
        let work = move || encode(&this, &text, &part);
        match stack::apart(stack::ROOMY, None, cancel, work)? {
            Some(outcome) => outcome,
            None => Err(Error::Interrupted),
        }
    }

    fn encode_whole(
        &self,
        text: &str,
        type_id: u32,
        detail: Detail,
        cancel: &CancelToken,
    ) -> Result<Encoding> {
        let core = &self.shared.core;
        let check = || {
            cancel
                .check()
                .map_err(|error| -> tokenizers::Error { Box::new(error) })
        };
        let encode = || {
            check()?;
            let normalizer = core
                .get_normalizer()
                .map(|normalizer| Bounded::new(normalizer, self.source(), text, cancel));
            let mut pieces = core
                .get_added_vocabulary()
                .extract_and_normalize(normalizer.as_ref(), text);
            if let Some(normalizer) = normalizer {
                let outcome = normalizer.finish();
                outcome.map_err(|error| -> tokenizers::Error { Box::new(error) })?;
            }
            check()?;
            if let Some(pre_tokenizer) = core.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            let tokenize = |piece: &NormalizedString| {
                check()?;
                let mut tokens = match &self.shared.segmenter {
                    Some(segmenter) => segmenter.tokenize(core.get_model(), piece.get())?,
                    None => core.get_model().tokenize(piece.get())?,
                };
                if let Some(unknown) = self.shared.unknown {
                    for token in tokens.iter_mut().filter(|token| token.id >= unknown.from) {
                        token.id = unknown.id;
                    }
                }
                Ok(tokens)
            };
            match &self.truncation {
                Some(limit) => {
                    pieces.tokenize_with_limit(tokenize, limit.max_length, limit.direction)?;
                }
                None => pieces.tokenize(tokenize)?,
            }
            let offsets = match detail {
                Detail::Ids => OffsetType::None,
                Detail::Offsets => OffsetType::Char,
            };
            pieces.into_encoding(None, type_id, offsets)
        };
        let mut encoding = self.guarded(|| encode().map_err(engine_error))?;
        if detail == Detail::Ids && type_id != 0 {
            encoding.set_type_ids(vec![type_id; encoding.len()]);
        }
        Ok(encoding)
    }

    pub(super) fn post_process(
        &self,
        first: Encoding,
        second: Option<Encoding>,
        add_special_tokens: bool,
    ) -> Result<Encoding> {
        if let Some(processor) = &self.shared.post_processor {
            let process = || processor.process(first, second, add_special_tokens);
            return self.guarded(|| process().map_err(engine_error));
        }
        let encodings = std::iter::once(first).chain(second).collect();
        <dyn PostProcessor>::default_process(encodings, add_special_tokens)
            .map_err(engine_error)?
            .pop()
            .ok_or_else(|| Error::Internal("post-processing gave no encoding".to_owned()))
    }
}
