//! `Candle::VoiceActivityDetector`

use engine::tasks::VoiceModel;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby, Value};

use crate::{audio, gvl, model};

#[magnus::wrap(class = "Candle::VoiceActivityDetector", free_immediately, size)]
pub struct RbVoiceActivityDetector {
    model: model::Slot<VoiceModel>,
}

model::described!(VoiceModel, sees);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbVoiceActivityDetector, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbVoiceActivityDetector {
        model: model::load(ruby, &request, VoiceModel::load)?,
    })
}

fn sample_rate(ruby: &Ruby, this: &RbVoiceActivityDetector) -> Result<u32, Error> {
    Ok(this.model.get(ruby)?.sample_rate())
}

/// Samples that one probability stands for.
fn step(ruby: &Ruby, this: &RbVoiceActivityDetector) -> Result<usize, Error> {
    Ok(this.model.get(ruby)?.step())
}

/// How likely somebody speaks in each step of an audio, and how long it lasts in seconds.
fn probabilities(
    ruby: &Ruby,
    this: &RbVoiceActivityDetector,
    value: Value,
) -> Result<RArray, Error> {
    let (model, sound) = (this.model.get(ruby)?, audio::sound(ruby, value)?);
    let (found, duration) = gvl::leave_waiting(ruby, |cancel| model.probabilities(&sound, cancel))?;
    let pair = ruby.ary_new_capa(2);
    pair.push(ruby.ary_from_iter(found.iter().map(|&value| f64::from(value))))?;
    pair.push(duration)?;
    Ok(pair)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("VoiceActivityDetector", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_sample_rate", method!(sample_rate, 0))?;
    class.define_private_method("_step", method!(step, 0))?;
    class.define_private_method("_probabilities", method!(probabilities, 1))?;
    model::define_model!(class, RbVoiceActivityDetector)
}
