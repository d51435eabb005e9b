//! `Candle::CLIP`

use engine::serving::Slice;
use engine::tasks::ClipModel;
use magnus::{
    block::Proc, function, method, prelude::*, Error, RArray, RHash, RModule, Ruby, Value,
};

use crate::embedding_model::Vectors;
use crate::{gvl, image, model};

#[magnus::wrap(class = "Candle::CLIP", free_immediately, size)]
pub struct RbClip {
    model: model::Slot<ClipModel>,
}

model::described!(ClipModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbClip, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbClip {
        model: model::load(ruby, &request, ClipModel::load)?,
    })
}

fn embed_texts(ruby: &Ruby, this: &RbClip, texts: RArray, form: String) -> Result<Value, Error> {
    let model = this.model.get(ruby)?;
    let mut vectors = Vectors::new(ruby, &form, texts.len())?;
    model::in_slices(
        ruby,
        texts,
        Slice::Read.size(),
        |slice, _, cancel| model.embed_texts(slice, cancel),
        |found, _| gvl::hold(ruby, || vectors.add(ruby, found)),
    )?;
    gvl::hold(ruby, || vectors.finish(ruby))
}

fn embed_images(
    ruby: &Ruby,
    this: &RbClip,
    images: RArray,
    form: String,
    progress: Option<Proc>,
) -> Result<Value, Error> {
    let model = this.model.get(ruby)?;
    image::vectors(ruby, images, &form, progress, |slice, first, cancel| {
        model.embed_images(slice, first, cancel)
    })
}

/// One row per image: how well each text fits.
fn match_texts(
    ruby: &Ruby,
    this: &RbClip,
    images: RArray,
    texts: Vec<String>,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let rows = ruby.ary_new_capa(images.len());
    image::in_slices(
        ruby,
        images,
        |slice, first, cancel| model.match_texts(slice, first, &texts, cancel),
        |found, _| model::add_rows(ruby, rows, &found),
    )?;
    Ok(rows)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("CLIP", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_embed_texts", method!(embed_texts, 2))?;
    class.define_private_method("_embed_images", method!(embed_images, 3))?;
    class.define_private_method("_match_texts", method!(match_texts, 2))?;
    model::define_model!(class, RbClip)
}
