//! The tokenizer that a GGUF file carries in its `tokenizer.*` keys.

mod models;
mod pre_tokenizer;

use tokenizers::AddedToken;

use super::load::Parts;
use super::segmenter::Segmenter;
use super::{engine_error, SpecialTokens, Tokenizer};
use crate::text::chat_template::ChatTemplates;
use crate::weights::Metadata;
use crate::{Error, Result};

/// GGUF's numbers for what a token is.
mod kind {
    pub const UNKNOWN: i64 = 2;
    pub const CONTROL: i64 = 3;
    pub const USER_DEFINED: i64 = 4;
    pub const BYTE: i64 = 6;
}

/// The role of a token and the keys that may name it.
const ROLE_KEYS: [(&str, &[&str]); 7] = [
    ("bos_token", &["bos_token_id"]),
    ("eos_token", &["eos_token_id"]),
    ("unk_token", &["unknown_token_id"]),
    ("sep_token", &["seperator_token_id", "separator_token_id"]),
    ("pad_token", &["padding_token_id"]),
    ("cls_token", &["cls_token_id"]),
    ("mask_token", &["mask_token_id"]),
];

/// A vocabulary as GGUF writes it.
struct Vocabulary<'a> {
    metadata: &'a Metadata,
    tokens: Vec<&'a str>,
    scores: Vec<f32>,
    kinds: Vec<i64>,
}

/// The rules for texts as a whole that a file states or its kind implies.
#[derive(Clone, Copy)]
struct Flags {
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
}

pub(super) fn load(metadata: &Metadata) -> Result<Tokenizer> {
    let vocabulary = Vocabulary::read(metadata)?;
    let model = metadata.str("tokenizer.ggml.model")?;
    let mut segmenter = None;
    let mut core = match model {
        "rwkv" => {
            let (core, found) = models::longest_match(&vocabulary)?;
            segmenter = Some(Segmenter::LongestMatch(found));
            core
        }
        "plamo2" => {
            let (core, found) = models::viterbi(&vocabulary)?;
            segmenter = Some(Segmenter::Viterbi(found));
            core
        }
        "gpt2" => models::byte_level_bpe(&vocabulary)?,
        "llama" => models::sentence_piece_bpe(&vocabulary)?,
        "gemma4" => models::spaced_bpe(&vocabulary)?,
        "bert" => models::word_piece(&vocabulary)?,
        "t5" => models::unigram(&vocabulary)?,
        other => {
            return Err(Error::unsupported(
                metadata.file(),
                format_args!(
                    "its tokenizer is of the kind {other:?}; gpt2, llama, gemma4, bert, t5, rwkv and plamo2 are known. \
                     Pass tokenizer: with the id of the original model"
                ),
            ))
        }
    };
    vocabulary.add_special_tokens(&mut core)?;
    let special_tokens = vocabulary.special_tokens(&core)?;
    Parts {
        core,
        special_tokens,
        model_max_length: None,
        chat_templates: chat_templates(metadata)?,
        bytes: vocabulary
            .tokens
            .iter()
            .map(|token| 4 * (token.len() + 48))
            .sum(),
        source: metadata.file().to_owned(),
        one_type: false,
        unknown: None,
        segmenter,
    }
    .into_tokenizer()
}

fn chat_templates(metadata: &Metadata) -> Result<Option<ChatTemplates>> {
    let mut templates = ChatTemplates::default();
    if let Some(source) = metadata.opt_str("tokenizer.chat_template")? {
        templates.insert("default", source.to_owned());
    }
    for name in metadata
        .opt_strings("tokenizer.chat_templates")?
        .unwrap_or_default()
    {
        if let Some(source) = metadata.opt_str(&format!("tokenizer.chat_template.{name}"))? {
            templates.insert(name, source.to_owned());
        }
    }
    Ok((!templates.is_empty()).then_some(templates))
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let Some(tokens) = metadata.opt_strings("tokenizer.ggml.tokens")? else {
            return Err(Error::Tokenizer(format!(
                "{} carries no tokenizer. Pass tokenizer: with the id or directory of one",
                metadata.file().display()
            )));
        };
        let scores = metadata
            .opt_f32s("tokenizer.ggml.scores")?
            .unwrap_or_default();
        let kinds = metadata
            .opt_i64s("tokenizer.ggml.token_type")?
            .unwrap_or_default();
        for (name, length) in [("scores", scores.len()), ("token types", kinds.len())] {
            if length != 0 && length != tokens.len() {
                return Err(Error::corrupt(
                    metadata.file(),
                    format_args!("it has {} tokens but {length} {name}", tokens.len()),
                ));
            }
        }
        if u32::try_from(tokens.len()).is_err() {
            return Err(Error::corrupt(metadata.file(), "it has too many tokens"));
        }
        Ok(Self {
            metadata,
            tokens,
            scores,
            kinds,
        })
    }

    /// Tokens with their ids; `read` made sure that ids fit.
    fn entries(&self) -> impl Iterator<Item = (u32, &str)> {
        (0u32..).zip(self.tokens.iter().copied())
    }

    fn kind(&self, id: u32) -> i64 {
        const NORMAL: i64 = 1;
        usize::try_from(id)
            .ok()
            .and_then(|index| self.kinds.get(index))
            .copied()
            .unwrap_or(NORMAL)
    }

    fn score(&self, id: u32) -> f32 {
        usize::try_from(id)
            .ok()
            .and_then(|index| self.scores.get(index))
            .copied()
            .unwrap_or(0.0)
    }

    /// The text of a token that a key names.
    fn token(&self, id: u32) -> Result<&str> {
        usize::try_from(id)
            .ok()
            .and_then(|index| self.tokens.get(index))
            .copied()
            .ok_or_else(|| {
                Error::corrupt(
                    self.metadata.file(),
                    format_args!("token id {id} lies beyond its {} tokens", self.tokens.len()),
                )
            })
    }

    /// The id and text of the first of these keys that names a token.
    fn named(&self, keys: &[&str]) -> Result<Option<(&str, u32)>> {
        for key in keys {
            if let Some(id) = self.metadata.opt_u32(&format!("tokenizer.ggml.{key}"))? {
                // Exporters write -1, as an unsigned number, for "none".
                if id != u32::MAX {
                    return Ok(Some((self.token(id)?, id)));
                }
            }
        }
        Ok(None)
    }

    fn flags(&self, usual: Flags) -> Result<Flags> {
        let flag = |name: &str, usual: bool| {
            let found = self.metadata.opt_bool(&format!("tokenizer.ggml.{name}"))?;
            Ok::<bool, Error>(found.unwrap_or(usual))
        };
        Ok(Flags {
            add_bos: flag("add_bos_token", usual.add_bos)?,
            add_eos: flag("add_eos_token", usual.add_eos)?,
            add_space_prefix: flag("add_space_prefix", usual.add_space_prefix)?,
        })
    }

    fn add_special_tokens(&self, core: &mut tokenizers::Tokenizer) -> Result<()> {
        let phi3 = self.is_phi3()?;
        let added: Vec<AddedToken> = self
            .entries()
            .filter_map(|(id, token)| {
                let special = match self.kind(id) {
                    kind::CONTROL | kind::UNKNOWN => true,
                    kind::USER_DEFINED => false,
                    _ => return None,
                };
                let plain = matches!(token, "<unk>" | "<s>" | "<|endoftext|>");
                Some(
                    AddedToken::from(token, special)
                        .normalized(false)
                        .lstrip(token == "<mask>")
                        .rstrip(phi3 && !plain),
                )
            })
            .filter(|token| !token.content.is_empty())
            .collect();
        core.add_tokens(added).map_err(engine_error)?;
        Ok(())
    }

    /// Phi-3's special tokens swallow the white space behind them, which GGUF has no key for.
    fn is_phi3(&self) -> Result<bool> {
        Ok(
            self.metadata.opt_str("general.architecture")? == Some("phi3")
                && self.metadata.opt_str("tokenizer.ggml.model")? == Some("llama"),
        )
    }

    fn special_tokens(&self, core: &tokenizers::Tokenizer) -> Result<SpecialTokens> {
        let mut tokens = SpecialTokens::default();
        for (role, keys) in ROLE_KEYS {
            if let Some((_, id)) = self.named(keys)? {
                // The text as the tokenizer knows it: WordPiece files write it differently.
                if let Some(content) = core.id_to_token(id) {
                    tokens.set(role, &content, id);
                }
            }
        }
        for key in ["eot_token_id", "eom_token_id"] {
            if let Some((_, id)) = self.named(&[key])? {
                tokens.add_end(id);
            }
        }
        let special: std::collections::HashMap<&str, u32> = self
            .entries()
            .filter(|(id, _)| matches!(self.kind(*id), kind::CONTROL | kind::USER_DEFINED))
            .map(|(id, token)| (token, id))
            .collect();
        tokens.add_turn_ends(|content| special.get(content).copied());
        Ok(tokens)
    }
}
