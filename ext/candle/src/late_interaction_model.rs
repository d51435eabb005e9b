//! `Candle::LateInteractionModel`

use candle_core::Tensor;
use engine::serving::Slice;
use engine::tasks::{LateInteractionModel, LateOptions, LateSettings, TextTask};
use kernels::tensor::max_sim::max_sim;
use magnus::{
    function, method, prelude::*, Error, RArray, RHash, RModule, Ruby, TryConvert, Value,
};

use crate::{error, gvl, image, model, tensor::RbTensor};

#[magnus::wrap(class = "Candle::LateInteractionModel", free_immediately, size)]
pub struct RbLateInteractionModel {
    model: model::Slot<LateInteractionModel>,
}

model::described!(LateInteractionModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbLateInteractionModel, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    let own = LateSettings {
        query_length: model::setting(ruby, settings, "query_length")?,
        document_length: model::setting(ruby, settings, "document_length")?,
    };
    Ok(RbLateInteractionModel {
        model: model::load(ruby, &request, |files, options, cancel| {
            LateInteractionModel::load(files, options, own, cancel)
        })?,
    })
}

fn describe(ruby: &Ruby, model: &LateInteractionModel, hash: RHash) -> Result<(), Error> {
    hash.aset(ruby.to_symbol("dimensions"), model.dimension())?;
    let lengths = [
        ("query_length", TextTask::Query),
        ("document_length", TextTask::Document),
    ];
    for (name, task) in lengths {
        hash.aset(ruby.to_symbol(name), model.length(task))?;
    }
    hash.aset(ruby.to_symbol("query_expansion"), model.expands())?;
    model::add_prompts(ruby, hash, model.prompts())
}

/// One Tensor for each text.
fn embed(
    ruby: &Ruby,
    this: &RbLateInteractionModel,
    texts: RArray,
    task: String,
    settings: RHash,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let task = TextTask::parse(&task).map_err(error::raised(ruby))?;
    let options = LateOptions {
        prompt: model::setting(ruby, settings, "prompt")?,
        prompt_name: model::setting(ruby, settings, "prompt_name")?,
        batch_tokens: model::setting(ruby, settings, "batch_tokens")?,
    };
    let tensors = ruby.ary_new_capa(texts.len());
    model::in_slices(
        ruby,
        texts,
        Slice::Read.size(),
        |slice, _, cancel| model.embed(slice, task, &options, cancel),
        |found, _| {
            gvl::hold(ruby, || {
                found
                    .into_iter()
                    .try_for_each(|tensor| tensors.push(RbTensor::new(ruby, tensor)))
            })
        },
    )?;
    Ok(tensors)
}

/// One Tensor for each image.
fn embed_images(
    ruby: &Ruby,
    this: &RbLateInteractionModel,
    images: RArray,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let tensors = ruby.ary_new_capa(images.len());
    image::in_slices(
        ruby,
        images,
        |slice, first, cancel| model.embed_images(slice, first, cancel),
        |found, _| {
            gvl::hold(ruby, || {
                found
                    .into_iter()
                    .try_for_each(|tensor| tensors.push(RbTensor::new(ruby, tensor)))
            })
        },
    )?;
    Ok(tensors)
}

/// A score for each document, all being f32 Tensors [tokens, dimension] on the CPU.
fn scores(
    ruby: &Ruby,
    this: &RbLateInteractionModel,
    query: &RbTensor,
    documents: RArray,
) -> Result<Vec<f64>, Error> {
    this.model.get(ruby)?;
    let tensor = |value: Value| -> Result<Tensor, Error> {
        Ok(<&RbTensor>::try_convert(value)?.tensor(ruby)?.clone())
    };
    let documents: Vec<Tensor> = documents
        .into_iter()
        .map(tensor)
        .collect::<Result<_, Error>>()?;
    let query = query.tensor(ruby)?.clone();
    let found = gvl::leave_waiting(ruby, |cancel| max_sim(&query, &documents, cancel))?;
    Ok(found.into_iter().map(f64::from).collect())
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("LateInteractionModel", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_embed", method!(embed, 3))?;
    class.define_private_method("_embed_images", method!(embed_images, 1))?;
    class.define_private_method("_scores", method!(scores, 2))?;
    model::define_stats!(class, RbLateInteractionModel)?;
    model::define_model!(class, RbLateInteractionModel, describe)
}
