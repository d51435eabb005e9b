//! `Candle::Reranker`

use engine::serving::Slice;
use engine::tasks::{RerankModel, RerankOptions, ScorePooling};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{gvl, model};

#[magnus::wrap(class = "Candle::Reranker", free_immediately, size)]
pub struct RbReranker {
    model: model::Slot<RerankModel>,
}

model::described!(RerankModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbReranker, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbReranker {
        model: model::load(ruby, &request, RerankModel::load)?,
    })
}

/// Raw logits in the order of the documents.
fn score(
    ruby: &Ruby,
    this: &RbReranker,
    query: String,
    documents: RArray,
    settings: RHash,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let options = RerankOptions {
        pooling: model::parsed(ruby, settings, "pooling", ScorePooling::parse)?.unwrap_or_default(),
        batch_tokens: model::setting(ruby, settings, "batch_tokens")?,
    };
    let scores = ruby.ary_new_capa(documents.len());
    model::in_slices(
        ruby,
        documents,
        Slice::Read.size(),
        |slice, _, cancel| model.score(&query, slice, &options, cancel),
        |found, _| {
            found
                .into_iter()
                .try_for_each(|score| scores.push(f64::from(score)))
        },
    )?;
    Ok(scores)
}

/// The ids that the model reads for a query and a document, and the part each belongs to.
fn tokens(
    ruby: &Ruby,
    this: &RbReranker,
    query: String,
    document: String,
) -> Result<(Vec<u32>, Vec<u32>), Error> {
    let model = this.model.get(ruby)?;
    gvl::leave(ruby, |cancel| model.tokens(&query, &document, cancel))
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Reranker", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_score", method!(score, 3))?;
    class.define_private_method("_tokens", method!(tokens, 2))?;
    model::define_stats!(class, RbReranker)?;
    model::define_model!(class, RbReranker)
}
