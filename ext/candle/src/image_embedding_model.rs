//! `Candle::ImageEmbeddingModel`

use engine::tasks::ImageEmbeddingModel;
use magnus::{
    block::Proc, function, method, prelude::*, Error, RArray, RHash, RModule, Ruby, Value,
};

use crate::embedding_model::Vectors;
use crate::{gvl, image, model};

#[magnus::wrap(class = "Candle::ImageEmbeddingModel", free_immediately, size)]
pub struct RbImageEmbeddingModel {
    model: model::Slot<ImageEmbeddingModel>,
}

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbImageEmbeddingModel, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    let model = gvl::leave(ruby, |cancel| {
        ImageEmbeddingModel::load(&request.files, &request.options, cancel)
    })?;
    Ok(RbImageEmbeddingModel {
        model: model::Slot::new(ruby, model, ImageEmbeddingModel::info),
    })
}

fn info(ruby: &Ruby, this: &RbImageEmbeddingModel) -> Result<RHash, Error> {
    gvl::hold(ruby, || model::info(ruby, this.model.get(ruby)?.info()))
}

/// `progress` is called with how many are done, and of how many.
fn embed(
    ruby: &Ruby,
    this: &RbImageEmbeddingModel,
    images: RArray,
    normalize: bool,
    form: String,
    progress: Option<Proc>,
) -> Result<Value, Error> {
    let model = this.model.get(ruby)?;
    let total = images.len();
    let mut vectors = Vectors::new(ruby, &form, total)?;
    image::in_slices(
        ruby,
        images,
        |slice, first, cancel| model.embed(slice, normalize, first, cancel),
        |found, done| {
            gvl::hold(ruby, || vectors.add(ruby, found))?;
            match progress {
                Some(progress) => progress.call::<_, Value>((done, total)).map(drop),
                None => Ok(()),
            }
        },
    )?;
    gvl::hold(ruby, || vectors.finish(ruby))
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("ImageEmbeddingModel", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_info", method!(info, 0))?;
    class.define_private_method("_embed", method!(embed, 4))?;
    model::define_closing!(class, RbImageEmbeddingModel)
}
