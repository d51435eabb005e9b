//! Text to token ids and back.
//!
//! A [`Tokenizer`] is a cheap handle: the vocabulary is shared and never changes, truncation and
//! padding belong to the handle. The pipeline of the `tokenizers` crate is driven from here, so
//! that it can be cancelled and so that a handle with other options costs no copy of the vocabulary.

mod classes;
mod direct;
mod encode;
mod gguf;
mod guard;
mod load;
mod longest_match;
mod options;
mod ranks;
mod segmenter;
mod sentence_piece;
mod special_tokens;
mod stream;
mod token_bytes;
mod viterbi;
mod vocabulary_files;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use tokenizers::tokenizer::{Decoder, PostProcessor};
use tokenizers::PostProcessorWrapper;

pub use load::TokenizerFiles;
pub use options::{Padding, PaddingDirection, Truncation, TruncationDirection, TruncationStrategy};
pub use ranks::read_tiktoken;
pub use special_tokens::{SpecialToken, SpecialTokens};
pub use stream::StreamDecoder;
pub use token_bytes::{CharacterStream, TokenBytes};
pub use tokenizers::Encoding;

use direct::Direct;
use segmenter::Segmenter;

use crate::files::hub::Access;
use crate::files::model_files::{ModelFiles, WeightFiles};
use crate::text::chat_template::{ChatTemplates, Conversation};
use crate::weights::Metadata;
use crate::{CancelToken, Error, Result};

/// One text, or two that a model reads together.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    Single(&'a str),
    Pair(&'a str, &'a str),
}

impl<'a> From<&'a str> for Input<'a> {
    fn from(text: &'a str) -> Self {
        Self::Single(text)
    }
}

impl<'a> From<&'a String> for Input<'a> {
    fn from(text: &'a String) -> Self {
        Self::Single(text)
    }
}

impl<'a> From<(&'a str, &'a str)> for Input<'a> {
    fn from((first, second): (&'a str, &'a str)) -> Self {
        Self::Pair(first, second)
    }
}

/// What an encoding carries beside ids, type ids and masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Ids only: the fastest.
    #[default]
    Ids,
    /// Token texts, character offsets and word ids too.
    Offsets,
}

#[derive(Clone, Debug)]
pub struct Tokenizer {
    shared: Arc<Shared>,
    truncation: Option<Truncation>,
    padding: Option<Padding>,
    /// Whether texts go through the pipeline though there is a shorter way.
    by_pipeline: bool,
}

#[derive(Debug)]
struct Shared {
    /// Without post-processor, truncation and padding, which are applied from here.
    core: tokenizers::Tokenizer,
    post_processor: Option<PostProcessorWrapper>,
    special_tokens: SpecialTokens,
    model_max_length: Option<usize>,
    chat_templates: Option<ChatTemplates>,
    source: PathBuf,
    bytes: usize,
    /// All tokens are of the first type, since the model is given no types.
    one_type: bool,
    /// Ids that stand for the unknown token.
    unknown: Option<sentence_piece::Unknown>,
    /// In place of how the model cuts texts.
    segmenter: Option<Segmenter>,
    /// In place of the whole pipeline.
    direct: Option<Direct>,
}

impl Tokenizer {
    /// Reads one `tokenizer.json`, and nothing beside it.
    pub fn from_file(path: &Path) -> Result<Self> {
        load::from_file(path)
    }

    /// Reads a model directory: `tokenizer.json` or a plain vocabulary, and what configures it.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        Self::from_files(&TokenizerFiles::in_directory(directory))
    }

    pub fn from_files(files: &TokenizerFiles) -> Result<Self> {
        load::from_files(files)
    }

    /// The tokenizer that a GGUF file carries.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        gguf::load(metadata)
    }

    /// Of the bytes of tokens in the order of their merging, and the tokens after them: special ones, and others
    /// that do not stand for text.
    pub fn from_ranks(
        tokens: &[&[u8]],
        special: &[String],
        others: &[String],
        source: &Path,
    ) -> Result<Self> {
        ranks::load(tokens, (special, others), source)
    }

    /// From the model at `source`: a directory, a GGUF file, an id of the hub, or just a
    /// `tokenizer.json`.
    pub fn from_pretrained(
        source: &str,
        revision: Option<&str>,
        access: &Access,
        cancel: &CancelToken,
    ) -> Result<Self> {
        if source.ends_with(".json") && Path::new(source).is_file() {
            return Self::from_file(Path::new(source));
        }
        Self::from_model(
            &ModelFiles::open_as(source, revision, access, cancel)?,
            cancel,
        )
    }

    /// The tokenizer beside a model's weights, or the one inside its GGUF file.
    pub fn from_model(files: &ModelFiles, cancel: &CancelToken) -> Result<Self> {
        let found = TokenizerFiles::of_model(files, cancel)?;
        if !found.has_vocabulary() {
            if let Some(path) = load::gguf_file(files, cancel)? {
                let weights = crate::weights::open(&WeightFiles::Gguf(path))?;
                return Self::from_gguf(weights.metadata());
            }
        }
        Self::from_files(&found)
    }

    /// The prompt for a conversation, by the checkpoint's template called `name`.
    pub fn apply_chat_template(
        &self,
        conversation: &Conversation<'_>,
        name: Option<&str>,
        cancel: &CancelToken,
    ) -> Result<String> {
        let Some(templates) = self.chat_templates() else {
            return Err(Error::InvalidInput(format!(
                "{} has no chat template: pass one as chat_template:, or write the prompt yourself",
                self.source().display()
            )));
        };
        templates
            .select(name, conversation.tools.is_some())?
            .render(conversation, self.special_tokens(), cancel)
    }

    /// The same vocabulary with other limits; `None` lifts them.
    pub fn with_truncation(&self, truncation: Option<Truncation>) -> Self {
        Self {
            truncation,
            ..self.clone()
        }
    }

    /// The same vocabulary with other padding; `None` pads nothing.
    pub fn with_padding(&self, padding: Option<Padding>) -> Self {
        Self {
            padding,
            ..self.clone()
        }
    }

    /// The same tokenizer by the pipeline of the `tokenizers` crate, which all others are compared with.
    pub fn by_pipeline(&self) -> Self {
        Self {
            by_pipeline: true,
            ..self.clone()
        }
    }

    /// Whether texts are encoded without the pipeline of the `tokenizers` crate.
    pub fn is_direct(&self) -> bool {
        self.direct().is_some()
    }

    fn direct(&self) -> Option<&Direct> {
        let direct = self.shared.direct.as_ref();
        direct.filter(|_| !self.by_pipeline)
    }

    pub fn truncation(&self) -> Option<&Truncation> {
        self.truncation.as_ref()
    }

    pub fn padding(&self) -> Option<&Padding> {
        self.padding.as_ref()
    }

    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.shared.special_tokens
    }

    /// `model_max_length` of the configuration, unless it is the "unlimited" of some exporters.
    pub fn model_max_length(&self) -> Option<usize> {
        self.shared.model_max_length
    }

    pub fn chat_templates(&self) -> Option<&ChatTemplates> {
        self.shared.chat_templates.as_ref()
    }

    /// The file or directory this came from.
    pub fn source(&self) -> &Path {
        &self.shared.source
    }

    /// About how much memory the vocabulary takes.
    pub fn memory_bytes(&self) -> usize {
        self.shared.bytes
    }

    /// The ids of one text.
    pub fn ids(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encoding = self.encode(text, add_special_tokens, Detail::Ids, &CancelToken::new())?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn encode<'a>(
        &self,
        input: impl Into<Input<'a>>,
        add_special_tokens: bool,
        detail: Detail,
        cancel: &CancelToken,
    ) -> Result<Encoding> {
        let mut encoding =
            self.encode_unpadded(input.into(), add_special_tokens, detail, cancel)?;
        if let Some(padding) = &self.padding {
            padding.apply(std::slice::from_mut(&mut encoding))?;
        }
        Ok(encoding)
    }

    /// Encodes in parallel, in the pool of the caller, and in the given order.
    pub fn encode_batch(
        &self,
        inputs: &[Input<'_>],
        add_special_tokens: bool,
        detail: Detail,
        cancel: &CancelToken,
    ) -> Result<Vec<Encoding>> {
        guard::ensure_room_for_all(inputs)?;
        let mut encodings = inputs
            .par_iter()
            .map(|input| self.encode_unpadded(*input, add_special_tokens, detail, cancel))
            .collect::<Result<Vec<_>>>()?;
        if let Some(padding) = &self.padding {
            padding.apply(&mut encodings)?;
        }
        Ok(encodings)
    }

    /// How many special tokens surround one text, or two.
    pub fn added_tokens(&self, pair: bool) -> usize {
        self.shared
            .post_processor
            .as_ref()
            .map_or(0, |processor| processor.added_tokens(pair))
    }

    /// The text of `ids`; ids without a token are left out.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        let tokens: Vec<String> = ids
            .iter()
            .filter_map(|&id| self.decodable(id, skip_special_tokens))
            .collect();
        match self.shared.core.get_decoder() {
            Some(decoder) => self.guarded(|| decoder.decode(tokens).map_err(engine_error)),
            None => Ok(tokens.join(" ")),
        }
    }

    /// Decodes token by token; see [`StreamDecoder`].
    pub fn stream(&self, skip_special_tokens: bool) -> StreamDecoder {
        StreamDecoder::new(self.clone(), skip_special_tokens)
    }

    /// An `InvalidInput` error that names the first id without a token.
    pub fn check_ids(&self, ids: &[u32]) -> Result<()> {
        match ids.iter().find(|&&id| self.id_to_token(id).is_none()) {
            None => Ok(()),
            Some(id) => Err(Error::InvalidInput(format!(
                "there is no token with id {id}: this tokenizer has {} tokens",
                self.vocab_size(true)
            ))),
        }
    }

    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.shared.core.id_to_token(id)
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.shared.core.token_to_id(token)
    }

    /// Whether decoding leaves this token out when special tokens are skipped.
    pub fn is_special(&self, token: &str) -> bool {
        self.shared
            .core
            .get_added_vocabulary()
            .is_special_token(token)
    }

    /// Whether a token is found in texts as it is, before all else.
    pub fn is_added(&self, token: &str) -> bool {
        let added = self.shared.core.get_added_vocabulary().get_vocab();
        added.contains_key(token)
    }

    pub fn vocab(&self, with_added_tokens: bool) -> HashMap<String, u32> {
        self.shared.core.get_vocab(with_added_tokens)
    }

    pub fn vocab_size(&self, with_added_tokens: bool) -> usize {
        self.shared.core.get_vocab_size(with_added_tokens)
    }

    /// The algorithm behind it: `BPE`, `WordPiece`, `Unigram` or `WordLevel`.
    pub fn model_kind(&self) -> &'static str {
        use tokenizers::ModelWrapper as M;
        match self.shared.core.get_model() {
            M::BPE(_) => "BPE",
            M::WordPiece(_) => "WordPiece",
            M::WordLevel(_) => "WordLevel",
            M::Unigram(_) => "Unigram",
        }
    }

    fn decodable(&self, id: u32, skip_special_tokens: bool) -> Option<String> {
        self.id_to_token(id)
            .filter(|token| !skip_special_tokens || !self.is_special(token))
    }
}

/// Errors of the `tokenizers` crate, and ours that passed through it.
fn engine_error(error: tokenizers::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(ours) => *ours,
        Err(theirs) => Error::Tokenizer(theirs.to_string()),
    }
}
