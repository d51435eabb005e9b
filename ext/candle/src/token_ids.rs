//! `Candle::Tokenizer::Ids`: token ids that stay in Rust on their way from a tokenizer to a model

use engine::{CancelToken, Tokenizer};
use formats::text::tokenizer::Detail;
use magnus::{method, prelude::*, Error, RArray, RClass, Ruby, TryConvert, Value};

#[magnus::wrap(
    class = "Candle::Tokenizer::Ids",
    free_immediately,
    size,
    frozen_shareable
)]
pub struct RbIds(pub Vec<u32>);

impl RbIds {
    /// From an Array or from what is this already.
    pub fn of(value: Value) -> Result<Vec<u32>, Error> {
        match <&Self>::try_convert(value) {
            Ok(ids) => Ok(ids.0.clone()),
            Err(_) => Vec::try_convert(value),
        }
    }
}

/// The ids of a prompt. Without `add_special_tokens` what the model begins with is added, unless the prompt has
/// it already.
pub fn of_prompt(
    tokenizer: &Tokenizer,
    text: &str,
    add_special_tokens: Option<bool>,
    cancel: &CancelToken,
) -> engine::Result<Vec<u32>> {
    let special = add_special_tokens.unwrap_or(true);
    let encoding = tokenizer.encode(text, special, Detail::Ids, cancel)?;
    let mut ids = encoding.get_ids().to_vec();
    let start = tokenizer.special_tokens().id("bos_token");
    let doubled = start.is_some_and(|id| ids.starts_with(&[id, id]));
    if add_special_tokens.is_none() && doubled {
        ids.remove(0);
    }
    Ok(ids)
}

fn size(this: &RbIds) -> usize {
    this.0.len()
}

fn to_a(this: &RbIds) -> Vec<u32> {
    this.0.clone()
}

fn plus(this: &RbIds, more: Value) -> Result<RbIds, Error> {
    let mut ids = this.0.clone();
    ids.extend(RbIds::of(more)?);
    Ok(RbIds(ids))
}

/// What stands before, between and after the places of a token.
fn split(ruby: &Ruby, this: &RbIds, id: u32) -> Result<RArray, Error> {
    let parts = ruby.ary_new();
    for part in this.0.split(|&other| other == id) {
        parts.push(RbIds(part.to_vec()))?;
    }
    Ok(parts)
}

pub fn init(ruby: &Ruby, tokenizer: RClass) -> Result<(), Error> {
    let class = tokenizer.define_class("Ids", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_method("size", method!(size, 0))?;
    class.define_method("to_a", method!(to_a, 0))?;
    class.define_method("+", method!(plus, 1))?;
    class.define_method("split", method!(split, 1))
}
