//! `Candle::ImageEmbeddingModel`

use engine::tasks::ImageEmbeddingModel;
use magnus::{
    block::Proc, function, method, prelude::*, Error, RArray, RHash, RModule, Ruby, Value,
};

use crate::{image, model};

#[magnus::wrap(class = "Candle::ImageEmbeddingModel", free_immediately, size)]
pub struct RbImageEmbeddingModel {
    model: model::Slot<ImageEmbeddingModel>,
}

model::described!(ImageEmbeddingModel, sees);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbImageEmbeddingModel, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbImageEmbeddingModel {
        model: model::load(ruby, &request, ImageEmbeddingModel::load)?,
    })
}

fn embed(
    ruby: &Ruby,
    this: &RbImageEmbeddingModel,
    images: RArray,
    normalize: bool,
    form: String,
    progress: Option<Proc>,
) -> Result<Value, Error> {
    let model = this.model.get(ruby)?;
    image::vectors(ruby, images, &form, progress, |slice, first, cancel| {
        model.embed(slice, normalize, first, cancel)
    })
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("ImageEmbeddingModel", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_embed", method!(embed, 4))?;
    model::define_model!(class, RbImageEmbeddingModel)
}
