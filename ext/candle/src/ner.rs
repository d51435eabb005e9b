//! `Candle::NER`

use engine::serving::Slice;
use engine::tasks::{entities, Aggregation, Entity, TagModel, TaggedToken};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{gvl, model};

#[magnus::wrap(class = "Candle::NER", free_immediately, size)]
pub struct RbNer {
    model: model::Slot<TagModel>,
}

model::described!(TagModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbNer, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbNer {
        model: model::load(ruby, &request, TagModel::load)?,
    })
}

fn labels(ruby: &Ruby, this: &RbNer) -> Result<Vec<String>, Error> {
    Ok(this.model.get(ruby)?.labels().to_vec())
}

/// The entities of each text. `settings` may hold aggregation and the least confidence.
fn extract(ruby: &Ruby, this: &RbNer, texts: RArray, settings: RHash) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let aggregation =
        model::parsed(ruby, settings, "aggregation", Aggregation::parse)?.unwrap_or_default();
    let threshold = model::setting(ruby, settings, "threshold")?.unwrap_or(0.0);
    let lists = ruby.ary_new_capa(texts.len());
    model::in_slices(
        ruby,
        texts,
        Slice::Tag.size(),
        |slice, _, cancel| {
            let tagged = model.tag(slice, None, cancel)?;
            let each = slice.iter().zip(&tagged);
            Ok(each
                .map(|(text, tokens)| find(&model, text, tokens, aggregation, threshold))
                .collect::<Vec<_>>())
        },
        |found, _| {
            found.iter().try_for_each(|entities| {
                let list = ruby.ary_new_capa(entities.len());
                for entity in entities {
                    list.push(entity_hash(ruby, entity)?)?;
                }
                lists.push(list)
            })
        },
    )?;
    Ok(lists)
}

/// Tokens count from the text's first, special ones included, as the tokenizer numbers them.
fn find(
    model: &TagModel,
    text: &str,
    tokens: &[TaggedToken],
    aggregation: Aggregation,
    threshold: f64,
) -> Vec<Entity> {
    let mut found = entities::aggregate(text, tokens, model.labels(), aggregation);
    found.retain(|entity| f64::from(entity.confidence) >= threshold);
    let index = |at: usize| tokens.get(at).map(|token| token.index);
    for entity in &mut found {
        let last = entity.token_end.checked_sub(1).and_then(index);
        entity.token_start = index(entity.token_start).unwrap_or_default();
        entity.token_end = last.map_or(entity.token_start, |last| last + 1);
    }
    found
}

fn entity_hash(ruby: &Ruby, entity: &Entity) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    hash.aset(ruby.to_symbol("text"), entity.text.as_str())?;
    hash.aset(ruby.to_symbol("label"), entity.label.as_str())?;
    hash.aset(ruby.to_symbol("start"), entity.start)?;
    hash.aset(ruby.to_symbol("end"), entity.end)?;
    hash.aset(ruby.to_symbol("confidence"), f64::from(entity.confidence))?;
    hash.aset(ruby.to_symbol("token_start"), entity.token_start)?;
    hash.aset(ruby.to_symbol("token_end"), entity.token_end)?;
    Ok(hash)
}

/// What is known of each token of a text: token, id, index, start, end, probabilities.
fn tokens(ruby: &Ruby, this: &RbNer, text: String) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let tagged = gvl::leave_waiting(ruby, |cancel| {
        model.tag(std::slice::from_ref(&text), None, cancel)
    })?;
    let list = ruby.ary_new();
    for token in tagged.iter().flatten() {
        let probabilities = ruby.ary_from_iter(token.probabilities.iter().map(|&p| f64::from(p)));
        list.push((
            token.token.as_str(),
            token.id,
            token.index,
            token.start,
            token.end,
            probabilities,
        ))?;
    }
    Ok(list)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("NER", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_labels", method!(labels, 0))?;
    class.define_private_method("_extract", method!(extract, 2))?;
    class.define_private_method("_tokens", method!(tokens, 1))?;
    model::define_stats!(class, RbNer)?;
    model::define_model!(class, RbNer)
}
