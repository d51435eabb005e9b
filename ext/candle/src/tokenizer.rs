//! `Candle::Tokenizer`

use std::path::Path;

use engine::{CancelToken, Error as EngineError, Tokenizer};
use formats::text::chat_template::{ChatTemplate, Conversation};
use formats::text::tokenizer::{
    Detail, Encoding, Input, Padding, PaddingDirection, Truncation, TruncationDirection,
    TruncationStrategy,
};
use magnus::{function, method, prelude::*, Error, RHash, RModule, Ruby};
use serde_json::{Map, Value as Json};

use crate::token_ids::{self, RbIds};
use crate::{error, gc, gvl, hub, model};

/// Below these, leaving the GVL costs more than the work itself.
const SHORT_TEXT_BYTES: usize = 2048;
const SHORT_IDS: usize = 1024;

#[magnus::wrap(class = "Candle::Tokenizer", free_immediately, size, frozen_shareable)]
pub struct RbTokenizer {
    pub tokenizer: Tokenizer,
    memory: gc::Tracked,
}

impl RbTokenizer {
    pub fn new(ruby: &Ruby, tokenizer: Tokenizer) -> Self {
        let memory = gc::Tracked::new(ruby, tokenizer.memory_bytes());
        Self { tokenizer, memory }
    }

    /// A handle on the same vocabulary.
    fn derived(&self, tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            memory: self.memory.clone(),
        }
    }
}

fn from_file(ruby: &Ruby, path: String) -> Result<RbTokenizer, Error> {
    let tokenizer = gvl::leave(ruby, |_| Tokenizer::from_file(Path::new(&path)))?;
    Ok(RbTokenizer::new(ruby, tokenizer))
}

fn from_pretrained(ruby: &Ruby, source: String, settings: RHash) -> Result<RbTokenizer, Error> {
    let revision: Option<String> = model::setting(ruby, settings, "revision")?;
    let access = hub::access(ruby, settings)?;
    let tokenizer = gvl::leave(ruby, |cancel| {
        Tokenizer::from_pretrained(&source, revision.as_deref(), &access, cancel)
    })?;
    Ok(RbTokenizer::new(ruby, tokenizer))
}

fn with_truncation(
    ruby: &Ruby,
    this: &RbTokenizer,
    max_length: Option<usize>,
    strategy: String,
    left: bool,
) -> Result<RbTokenizer, Error> {
    gvl::hold(ruby, || {
        let strategy = TruncationStrategy::parse(&strategy).map_err(error::raised(ruby))?;
        let direction = if left {
            TruncationDirection::Left
        } else {
            TruncationDirection::Right
        };
        let truncation = max_length.map(|length| {
            Truncation::new(length)
                .strategy(strategy)
                .direction(direction)
        });
        Ok(this.derived(this.tokenizer.with_truncation(truncation)))
    })
}

/// `length` and `multiple_of` are nil where they do not apply.
fn with_padding(
    ruby: &Ruby,
    this: &RbTokenizer,
    left: bool,
    pad: (u32, u32, String),
    length: Option<usize>,
    multiple_of: Option<usize>,
) -> Result<RbTokenizer, Error> {
    gvl::hold(ruby, || {
        let (pad_id, pad_type_id, pad_token) = pad;
        let padding = Padding {
            direction: if left {
                PaddingDirection::Left
            } else {
                PaddingDirection::Right
            },
            pad_id,
            pad_type_id,
            pad_token,
            length,
            multiple_of,
        };
        Ok(this.derived(this.tokenizer.with_padding(Some(padding))))
    })
}

fn without_padding(ruby: &Ruby, this: &RbTokenizer) -> Result<RbTokenizer, Error> {
    gvl::hold(ruby, || Ok(this.derived(this.tokenizer.with_padding(None))))
}

/// One text, or a pair when `pair` is not nil.
fn encode_one(
    ruby: &Ruby,
    this: &RbTokenizer,
    text: &str,
    pair: Option<&str>,
    add_special_tokens: bool,
    detail: Detail,
) -> Result<Encoding, Error> {
    let input = match pair {
        Some(pair) => Input::Pair(text, pair),
        None => Input::Single(text),
    };
    let encode = |cancel: &CancelToken| {
        this.tokenizer
            .encode(input, add_special_tokens, detail, cancel)
    };
    if text.len() + pair.map_or(0, str::len) <= SHORT_TEXT_BYTES {
        return gvl::hold(ruby, || {
            encode(&CancelToken::new()).map_err(error::raised(ruby))
        });
    }
    gvl::leave(ruby, encode)
}

fn encode(
    ruby: &Ruby,
    this: &RbTokenizer,
    text: String,
    pair: Option<String>,
    add_special_tokens: bool,
) -> Result<Vec<u32>, Error> {
    let pair = pair.as_deref();
    encode_one(ruby, this, &text, pair, add_special_tokens, Detail::Ids)
        .map(|encoding| encoding.get_ids().to_vec())
}

/// The ids of a prompt, which stay in Rust; see [`token_ids::of_prompt`].
fn ids(
    ruby: &Ruby,
    this: &RbTokenizer,
    text: String,
    add_special_tokens: Option<bool>,
) -> Result<RbIds, Error> {
    let encode = |cancel: &CancelToken| {
        token_ids::of_prompt(&this.tokenizer, &text, add_special_tokens, cancel)
    };
    if text.len() <= SHORT_TEXT_BYTES {
        let ids = gvl::hold(ruby, || {
            encode(&CancelToken::new()).map_err(error::raised(ruby))
        });
        return ids.map(RbIds);
    }
    gvl::leave(ruby, encode).map(RbIds)
}

type Detailed = (
    Vec<u32>,
    Vec<String>,
    Vec<(usize, usize)>,
    Vec<Option<u32>>,
    Vec<u32>,
    Vec<u32>,
    Vec<u32>,
);

/// Ids, tokens, offsets, word ids, type ids, special-tokens mask, attention mask.
fn encode_detailed(
    ruby: &Ruby,
    this: &RbTokenizer,
    text: String,
    pair: Option<String>,
    add_special_tokens: bool,
) -> Result<Detailed, Error> {
    let pair = pair.as_deref();
    let encoding = encode_one(ruby, this, &text, pair, add_special_tokens, Detail::Offsets)?;
    Ok((
        encoding.get_ids().to_vec(),
        encoding.get_tokens().to_vec(),
        encoding.get_offsets().to_vec(),
        encoding.get_word_ids().to_vec(),
        encoding.get_type_ids().to_vec(),
        encoding.get_special_tokens_mask().to_vec(),
        encoding.get_attention_mask().to_vec(),
    ))
}

fn encode_all(
    ruby: &Ruby,
    this: &RbTokenizer,
    texts: &[String],
    add_special_tokens: bool,
    detail: Detail,
) -> Result<Vec<Encoding>, Error> {
    gvl::leave(ruby, |cancel| {
        let inputs: Vec<Input<'_>> = texts.iter().map(Input::from).collect();
        this.tokenizer
            .encode_batch(&inputs, add_special_tokens, detail, cancel)
    })
}

fn encode_batch(
    ruby: &Ruby,
    this: &RbTokenizer,
    texts: Vec<String>,
    add_special_tokens: bool,
) -> Result<Vec<Vec<u32>>, Error> {
    let encodings = encode_all(ruby, this, &texts, add_special_tokens, Detail::Ids)?;
    Ok(encodings
        .iter()
        .map(|encoding| encoding.get_ids().to_vec())
        .collect())
}

fn encode_batch_to_tokens(
    ruby: &Ruby,
    this: &RbTokenizer,
    texts: Vec<String>,
    add_special_tokens: bool,
) -> Result<Vec<Vec<String>>, Error> {
    let encodings = encode_all(ruby, this, &texts, add_special_tokens, Detail::Offsets)?;
    Ok(encodings
        .iter()
        .map(|encoding| encoding.get_tokens().to_vec())
        .collect())
}

fn decode(
    ruby: &Ruby,
    this: &RbTokenizer,
    ids: Vec<u32>,
    skip_special_tokens: bool,
) -> Result<String, Error> {
    let decode = || {
        this.tokenizer.check_ids(&ids)?;
        this.tokenizer.decode(&ids, skip_special_tokens)
    };
    if ids.len() <= SHORT_IDS {
        return gvl::hold(ruby, || decode().map_err(error::raised(ruby)));
    }
    gvl::leave(ruby, |_| decode())
}

fn id_to_token(ruby: &Ruby, this: &RbTokenizer, id: u32) -> Result<Option<String>, Error> {
    gvl::hold(ruby, || Ok(this.tokenizer.id_to_token(id)))
}

fn token_to_id(ruby: &Ruby, this: &RbTokenizer, token: String) -> Result<Option<u32>, Error> {
    gvl::hold(ruby, || Ok(this.tokenizer.token_to_id(&token)))
}

/// In the order of ids.
fn vocab(ruby: &Ruby, this: &RbTokenizer, with_added_tokens: bool) -> Result<RHash, Error> {
    let entries = gvl::leave(ruby, |_| {
        let mut entries: Vec<(String, u32)> = this
            .tokenizer
            .vocab(with_added_tokens)
            .into_iter()
            .collect();
        entries.sort_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
        Ok(entries)
    })?;
    gvl::hold(ruby, || {
        let hash = ruby.hash_new();
        for (token, id) in entries {
            hash.aset(token, id)?;
        }
        Ok(hash)
    })
}

fn vocab_size(ruby: &Ruby, this: &RbTokenizer, with_added_tokens: bool) -> Result<usize, Error> {
    gvl::hold(ruby, || Ok(this.tokenizer.vocab_size(with_added_tokens)))
}

/// `[role, token, id]` of every token with a role, then of the additional ones with a nil role.
fn special_tokens(this: &RbTokenizer) -> Vec<(Option<&'static str>, String, u32)> {
    let tokens = this.tokenizer.special_tokens();
    let roles = tokens
        .iter()
        .map(|(role, token)| (Some(role), token.content.clone(), token.id));
    let additional = tokens
        .additional()
        .iter()
        .map(|token| (None, token.content.clone(), token.id));
    roles.chain(additional).collect()
}

fn end_ids(this: &RbTokenizer) -> Vec<u32> {
    this.tokenizer.special_tokens().end_ids().to_vec()
}

fn model_kind(this: &RbTokenizer) -> &'static str {
    this.tokenizer.model_kind()
}

fn model_max_length(this: &RbTokenizer) -> Option<usize> {
    this.tokenizer.model_max_length()
}

fn source(this: &RbTokenizer) -> String {
    this.tokenizer.source().display().to_string()
}

/// `[max_length, strategy, direction]` or nil.
fn truncation(this: &RbTokenizer) -> Option<(usize, &'static str, String)> {
    this.tokenizer.truncation().map(|truncation| {
        (
            truncation.max_length,
            truncation.strategy.name(),
            truncation.direction.as_ref().to_owned(),
        )
    })
}

type PaddingFacts = (String, u32, u32, String, Option<usize>, Option<usize>);

/// `[direction, pad_id, pad_type_id, pad_token, length, multiple_of]` or nil.
fn padding(this: &RbTokenizer) -> Option<PaddingFacts> {
    this.tokenizer.padding().map(|padding| {
        (
            padding.direction.as_ref().to_owned(),
            padding.pad_id,
            padding.pad_type_id,
            padding.pad_token.clone(),
            padding.length,
            padding.multiple_of,
        )
    })
}

/// `[name, source]` of each chat template.
fn chat_templates(this: &RbTokenizer) -> Vec<(String, String)> {
    let Some(templates) = this.tokenizer.chat_templates() else {
        return Vec::new();
    };
    templates
        .names()
        .filter_map(|name| Some((name.to_owned(), templates.source(name)?.to_owned())))
        .collect()
}

/// `request` is the JSON of `messages`, `tools`, `documents`, `add_generation_prompt` and
/// `variables`; `template` is a source of its own or the name of one that the tokenizer has.
fn apply_chat_template(
    ruby: &Ruby,
    this: &RbTokenizer,
    request: String,
    template: Option<String>,
) -> Result<String, Error> {
    // A template has a thread of its own, and must not keep one of the pool's as well.
    gvl::leave_waiting(ruby, |cancel| {
        let request: Json = serde_json::from_str(&request)
            .map_err(|error| EngineError::InvalidInput(format!("the messages: {error}")))?;
        render(&this.tokenizer, &request, template.as_deref(), cancel)
    })
}

fn render(
    tokenizer: &Tokenizer,
    request: &Json,
    template: Option<&str>,
    cancel: &CancelToken,
) -> engine::Result<String> {
    let given = |name: &str| Some(&request[name]).filter(|value| !value.is_null());
    let no_variables = Map::new();
    let conversation = Conversation {
        messages: &request["messages"],
        tools: given("tools"),
        documents: given("documents"),
        add_generation_prompt: request["add_generation_prompt"].as_bool().unwrap_or(true),
        variables: request["variables"].as_object().unwrap_or(&no_variables),
    };
    if let Some(source) =
        template.filter(|template| template.contains("{{") || template.contains("{%"))
    {
        let template = ChatTemplate::compile(source)?;
        return template.render(&conversation, tokenizer.special_tokens(), cancel);
    }
    tokenizer.apply_chat_template(&conversation, template, cancel)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Tokenizer", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_from_file", function!(from_file, 1))?;
    class
        .singleton_class()?
        .define_private_method("_from_pretrained", function!(from_pretrained, 2))?;
    class.define_private_method("_with_truncation", method!(with_truncation, 3))?;
    class.define_private_method("_with_padding", method!(with_padding, 4))?;
    class.define_private_method("_without_padding", method!(without_padding, 0))?;
    class.define_private_method("_encode", method!(encode, 3))?;
    class.define_private_method("_ids", method!(ids, 2))?;
    class.define_private_method("_encode_detailed", method!(encode_detailed, 3))?;
    class.define_private_method("_encode_batch", method!(encode_batch, 2))?;
    class.define_private_method(
        "_encode_batch_to_tokens",
        method!(encode_batch_to_tokens, 2),
    )?;
    class.define_private_method("_decode", method!(decode, 2))?;
    class.define_private_method("_id_to_token", method!(id_to_token, 1))?;
    class.define_private_method("_token_to_id", method!(token_to_id, 1))?;
    class.define_private_method("_vocab", method!(vocab, 1))?;
    class.define_private_method("_vocab_size", method!(vocab_size, 1))?;
    class.define_private_method("_special_tokens", method!(special_tokens, 0))?;
    class.define_private_method("_end_ids", method!(end_ids, 0))?;
    class.define_private_method("_model_kind", method!(model_kind, 0))?;
    class.define_private_method("_model_max_length", method!(model_max_length, 0))?;
    class.define_private_method("_source", method!(source, 0))?;
    class.define_private_method("_truncation", method!(truncation, 0))?;
    class.define_private_method("_padding", method!(padding, 0))?;
    class.define_private_method("_chat_templates", method!(chat_templates, 0))?;
    class.define_private_method("_apply_chat_template", method!(apply_chat_template, 2))?;
    token_ids::init(ruby, class)
}
