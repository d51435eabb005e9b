//! `Candle::GLiNER`

use engine::serving::Slice;
use engine::tasks::{ExtractModel, ExtractOptions, Extracted};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::model;

#[magnus::wrap(class = "Candle::GLiNER", free_immediately, size)]
pub struct RbGliner {
    model: model::Slot<ExtractModel>,
}

model::described!(ExtractModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbGliner, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbGliner {
        model: model::load(ruby, &request, ExtractModel::load)?,
    })
}

/// Words that are read at once, and words of an entity.
fn limits(ruby: &Ruby, this: &RbGliner) -> Result<(usize, usize), Error> {
    Ok(this.model.get(ruby)?.limits())
}

/// The entities of each text. `settings` are the threshold, whether entities never overlap, and whether one may have
/// several labels.
fn extract(
    ruby: &Ruby,
    this: &RbGliner,
    texts: RArray,
    labels: Vec<String>,
    settings: (f64, bool, bool),
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let (threshold, flat, multi_label) = settings;
    let options = ExtractOptions {
        threshold: threshold as f32,
        flat,
        multi_label,
    };
    let lists = ruby.ary_new_capa(texts.len());
    model::in_slices(
        ruby,
        texts,
        Slice::Tag.size(),
        |slice, _, cancel| model.extract(slice, &labels, &options, cancel),
        |found, _| {
            found.iter().try_for_each(|entities| {
                let list = ruby.ary_new_capa(entities.len());
                for entity in entities {
                    list.push(entity_hash(ruby, entity, &labels)?)?;
                }
                lists.push(list)
            })
        },
    )?;
    Ok(lists)
}

fn entity_hash(ruby: &Ruby, entity: &Extracted, labels: &[String]) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    let label = labels.get(entity.label).map(String::as_str);
    hash.aset(ruby.to_symbol("text"), entity.text.as_str())?;
    hash.aset(ruby.to_symbol("label"), label.unwrap_or_default())?;
    hash.aset(ruby.to_symbol("score"), f64::from(entity.score))?;
    hash.aset(ruby.to_symbol("start"), entity.start)?;
    hash.aset(ruby.to_symbol("end"), entity.end)?;
    Ok(hash)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("GLiNER", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_limits", method!(limits, 0))?;
    class.define_private_method("_extract", method!(extract, 3))?;
    model::define_stats!(class, RbGliner)?;
    model::define_model!(class, RbGliner)
}
