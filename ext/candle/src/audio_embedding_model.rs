//! `Candle::AudioEmbeddingModel`

use engine::serving::Slice;
use engine::tasks::AudioEmbeddingModel;
use magnus::{
    block::Proc, function, method, prelude::*, Error, RArray, RHash, RModule, Ruby, Value,
};

use crate::embedding_model::Vectors;
use crate::{audio, gvl, model};

#[magnus::wrap(class = "Candle::AudioEmbeddingModel", free_immediately, size)]
pub struct RbAudioEmbeddingModel {
    model: model::Slot<AudioEmbeddingModel>,
}

model::described!(AudioEmbeddingModel, sees);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbAudioEmbeddingModel, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbAudioEmbeddingModel {
        model: model::load(ruby, &request, AudioEmbeddingModel::load)?,
    })
}

fn sample_rate(ruby: &Ruby, this: &RbAudioEmbeddingModel) -> Result<u32, Error> {
    Ok(this.model.get(ruby)?.sample_rate())
}

fn embed(
    ruby: &Ruby,
    this: &RbAudioEmbeddingModel,
    audios: RArray,
    normalize: bool,
    form: String,
    progress: Option<Proc>,
) -> Result<Value, Error> {
    let model = this.model.get(ruby)?;
    let total = audios.len();
    let mut vectors = Vectors::new(ruby, &form, total)?;
    for (done, sound) in audio::sounds(ruby, audios)?.into_iter().enumerate() {
        let found = gvl::leave_waiting(ruby, |cancel| {
            model.embed(std::slice::from_ref(&sound), normalize, cancel)
        })?;
        vectors.add_watched(ruby, found, progress, (done + 1, total))?;
    }
    gvl::hold(ruby, || vectors.finish(ruby))
}

fn embed_texts(
    ruby: &Ruby,
    this: &RbAudioEmbeddingModel,
    texts: RArray,
    normalize: bool,
    form: String,
) -> Result<Value, Error> {
    let model = this.model.get(ruby)?;
    let mut vectors = Vectors::new(ruby, &form, texts.len())?;
    model::in_slices(
        ruby,
        texts,
        Slice::Read.size(),
        |slice, _, cancel| model.embed_texts(slice, normalize, cancel),
        |found, _| gvl::hold(ruby, || vectors.add(ruby, found)),
    )?;
    gvl::hold(ruby, || vectors.finish(ruby))
}

/// For each audio the scores of the texts.
fn match_texts(
    ruby: &Ruby,
    this: &RbAudioEmbeddingModel,
    audios: RArray,
    texts: Vec<String>,
) -> Result<RArray, Error> {
    let (model, sounds) = (this.model.get(ruby)?, audio::sounds(ruby, audios)?);
    let found = gvl::leave_waiting(ruby, |cancel| model.match_texts(&sounds, &texts, cancel))?;
    let rows = ruby.ary_new_capa(found.len());
    model::add_rows(ruby, rows, &found)?;
    Ok(rows)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("AudioEmbeddingModel", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_sample_rate", method!(sample_rate, 0))?;
    class.define_private_method("_embed", method!(embed, 4))?;
    class.define_private_method("_embed_texts", method!(embed_texts, 3))?;
    class.define_private_method("_match_texts", method!(match_texts, 2))?;
    model::define_model!(class, RbAudioEmbeddingModel)
}
