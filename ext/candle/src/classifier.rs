//! `Candle::Classifier`

use engine::serving::Slice;
use engine::tasks::ClassifyModel;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::model;

#[magnus::wrap(class = "Candle::Classifier", free_immediately, size)]
pub struct RbClassifier {
    model: model::Slot<ClassifyModel>,
}

model::described!(ClassifyModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbClassifier, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbClassifier {
        model: model::load(ruby, &request, ClassifyModel::load)?,
    })
}

fn labels(ruby: &Ruby, this: &RbClassifier) -> Result<Vec<String>, Error> {
    Ok(this.model.get(ruby)?.labels().to_vec())
}

fn is_multi_label(ruby: &Ruby, this: &RbClassifier) -> Result<bool, Error> {
    Ok(this.model.get(ruby)?.has_independent_labels())
}

/// One row of probabilities per text, in the order of the labels.
fn classify(
    ruby: &Ruby,
    this: &RbClassifier,
    texts: RArray,
    pairs: Option<Vec<String>>,
    batch_tokens: Option<usize>,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let rows = ruby.ary_new_capa(texts.len());
    model::in_slices(
        ruby,
        texts,
        Slice::Read.size(),
        |slice, first, cancel| {
            let partners = pairs
                .as_ref()
                .and_then(|pairs| pairs.get(first..first + slice.len()));
            let logits = model.classify(slice, partners, batch_tokens, cancel)?;
            Ok(logits.probabilities())
        },
        |found, _| model::add_rows(ruby, rows, &found),
    )?;
    Ok(rows)
}

/// One row per text: how likely each hypothesis follows from it.
fn entailment(
    ruby: &Ruby,
    this: &RbClassifier,
    texts: RArray,
    hypotheses: Vec<String>,
    independent: bool,
    batch_tokens: Option<usize>,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let rows = ruby.ary_new_capa(texts.len());
    model::in_slices(
        ruby,
        texts,
        Slice::Read.size_of_groups(hypotheses.len()),
        |slice, _, cancel| model.entailment(slice, &hypotheses, independent, batch_tokens, cancel),
        |found, _| model::add_rows(ruby, rows, &found),
    )?;
    Ok(rows)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Classifier", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_labels", method!(labels, 0))?;
    class.define_private_method("_multi_label", method!(is_multi_label, 0))?;
    class.define_private_method("_classify", method!(classify, 3))?;
    class.define_private_method("_entailment", method!(entailment, 4))?;
    model::define_stats!(class, RbClassifier)?;
    model::define_model!(class, RbClassifier)
}
