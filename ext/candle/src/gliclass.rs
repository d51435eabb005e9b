//! `Candle::GLiClass`

use engine::serving::Slice;
use engine::tasks::LabelModel;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::model;

#[magnus::wrap(class = "Candle::GLiClass", free_immediately, size)]
pub struct RbGliclass {
    model: model::Slot<LabelModel>,
}

model::described!(LabelModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbGliclass, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbGliclass {
        model: model::load(ruby, &request, LabelModel::load)?,
    })
}

/// One row of probabilities per text, in the order of the labels.
fn classify(
    ruby: &Ruby,
    this: &RbGliclass,
    texts: RArray,
    labels: Vec<String>,
    multi_label: bool,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let rows = ruby.ary_new_capa(texts.len());
    model::in_slices(
        ruby,
        texts,
        Slice::Read.size(),
        |slice, _, cancel| model.scores(slice, &labels, multi_label, cancel),
        |found, _| model::add_rows(ruby, rows, &found),
    )?;
    Ok(rows)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("GLiClass", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_classify", method!(classify, 3))?;
    model::define_stats!(class, RbGliclass)?;
    model::define_model!(class, RbGliclass)
}
