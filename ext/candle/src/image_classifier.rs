//! `Candle::ImageClassifier`

use engine::tasks::ImageClassifyModel;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{image, model};

#[magnus::wrap(class = "Candle::ImageClassifier", free_immediately, size)]
pub struct RbImageClassifier {
    model: model::Slot<ImageClassifyModel>,
}

model::described!(ImageClassifyModel, sees);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbImageClassifier, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbImageClassifier {
        model: model::load(ruby, &request, ImageClassifyModel::load)?,
    })
}

fn labels(ruby: &Ruby, this: &RbImageClassifier) -> Result<Vec<String>, Error> {
    Ok(this.model.get(ruby)?.labels().to_vec())
}

/// One row of probabilities per image, in the order of the labels.
fn classify(ruby: &Ruby, this: &RbImageClassifier, images: RArray) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let rows = ruby.ary_new_capa(images.len());
    image::in_slices(
        ruby,
        images,
        |slice, first, cancel| Ok(model.classify(slice, first, cancel)?.probabilities()),
        |found, _| model::add_rows(ruby, rows, &found),
    )?;
    Ok(rows)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("ImageClassifier", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_labels", method!(labels, 0))?;
    class.define_private_method("_classify", method!(classify, 1))?;
    model::define_model!(class, RbImageClassifier)
}
