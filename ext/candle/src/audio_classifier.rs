//! `Candle::AudioClassifier`

use engine::tasks::AudioClassifyModel;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{audio, gvl, model};

#[magnus::wrap(class = "Candle::AudioClassifier", free_immediately, size)]
pub struct RbAudioClassifier {
    model: model::Slot<AudioClassifyModel>,
}

model::described!(AudioClassifyModel, sees);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbAudioClassifier, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbAudioClassifier {
        model: model::load(ruby, &request, AudioClassifyModel::load)?,
    })
}

fn labels(ruby: &Ruby, this: &RbAudioClassifier) -> Result<Vec<String>, Error> {
    Ok(this.model.get(ruby)?.labels().to_vec())
}

fn sample_rate(ruby: &Ruby, this: &RbAudioClassifier) -> Result<u32, Error> {
    Ok(this.model.get(ruby)?.sample_rate())
}

/// One row of probabilities per audio, in the order of the labels.
fn classify(ruby: &Ruby, this: &RbAudioClassifier, audios: RArray) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let rows = ruby.ary_new_capa(audios.len());
    for sound in audio::sounds(ruby, audios)? {
        let found = gvl::leave_waiting(ruby, |cancel| {
            let logits = model.classify(std::slice::from_ref(&sound), cancel)?;
            Ok(logits.probabilities())
        })?;
        model::add_rows(ruby, rows, &found)?;
    }
    Ok(rows)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("AudioClassifier", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_labels", method!(labels, 0))?;
    class.define_private_method("_sample_rate", method!(sample_rate, 0))?;
    class.define_private_method("_classify", method!(classify, 1))?;
    model::define_model!(class, RbAudioClassifier)
}
