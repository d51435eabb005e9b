//! `Candle::SparseEmbeddingModel`

use engine::serving::Slice;
use engine::tasks::{SparseModel, SparseOptions, SparseVector, TextTask};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{gvl, model};

#[magnus::wrap(class = "Candle::SparseEmbeddingModel", free_immediately, size)]
pub struct RbSparseEmbeddingModel {
    model: model::Slot<SparseModel>,
}

model::described!(SparseModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbSparseEmbeddingModel, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbSparseEmbeddingModel {
        model: model::load(ruby, &request, SparseModel::load)?,
    })
}

fn describe(ruby: &Ruby, model: &SparseModel, hash: RHash) -> Result<(), Error> {
    hash.aset(ruby.to_symbol("dimensions"), model.dimension())?;
    hash.aset(ruby.to_symbol("similarity"), model.similarity().name())?;
    hash.aset(ruby.to_symbol("top_k"), model.top_k())?;
    hash.aset(ruby.to_symbol("routes"), model.routes())?;
    model::add_prompts(ruby, hash, model.prompts())
}

/// Two Arrays for each text: ids and weights.
fn embed(
    ruby: &Ruby,
    this: &RbSparseEmbeddingModel,
    texts: RArray,
    settings: RHash,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let options = SparseOptions {
        task: model::parsed(ruby, settings, "task", TextTask::parse)?,
        prompt: model::setting(ruby, settings, "prompt")?,
        prompt_name: model::setting(ruby, settings, "prompt_name")?,
        top_k: model::setting(ruby, settings, "top_k")?,
        batch_tokens: model::setting(ruby, settings, "batch_tokens")?,
        truncate: model::setting(ruby, settings, "truncate")?.unwrap_or(true),
        first_index: 0,
    };
    let vectors = ruby.ary_new_capa(texts.len());
    model::in_slices(
        ruby,
        texts,
        Slice::Read.size(),
        |slice, first_index, cancel| {
            let options = SparseOptions {
                first_index,
                ..options.clone()
            };
            model.embed(slice, &options, cancel)
        },
        |found, _| {
            gvl::hold(ruby, || {
                for SparseVector { ids, weights } in found {
                    let weights = weights.into_iter().map(f64::from);
                    let pair = ruby.ary_new_capa(2);
                    pair.push(ruby.ary_from_vec(ids))?;
                    pair.push(ruby.ary_from_iter(weights))?;
                    vectors.push(pair)?;
                }
                Ok(())
            })
        },
    )?;
    Ok(vectors)
}

/// How alike one vector is to each of several, all as pairs of ids and weights.
fn similarities(
    ruby: &Ruby,
    this: &RbSparseEmbeddingModel,
    one: (Vec<u32>, Vec<f32>),
    others: Vec<(Vec<u32>, Vec<f32>)>,
) -> Result<Vec<f64>, Error> {
    let similarity = this.model.get(ruby)?.similarity();
    gvl::leave(ruby, |cancel| {
        let vector = |(ids, weights): &(Vec<u32>, Vec<f32>)| {
            let pairs = ids.iter().copied().zip(weights.iter().copied());
            SparseVector::from_pairs(pairs.collect())
        };
        let one = vector(&one)?;
        let each = others.iter().map(|other| {
            cancel.check()?;
            Ok(f64::from(similarity.of(&one, &vector(other)?)))
        });
        each.collect()
    })
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("SparseEmbeddingModel", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_embed", method!(embed, 2))?;
    class.define_private_method("_similarities", method!(similarities, 2))?;
    model::define_stats!(class, RbSparseEmbeddingModel)?;
    model::define_model!(class, RbSparseEmbeddingModel, describe)
}
