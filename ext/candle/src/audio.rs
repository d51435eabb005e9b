//! `Candle::Audio`

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engine::tasks::Sound;
use engine::Error as EngineError;
use formats::audio::{self, Audio, Limits};
use magnus::{
    function, method, prelude::*, Error, RArray, RModule, RString, Ruby, Symbol, TryConvert, Value,
};

use crate::tensor::RbTensor;
use crate::{error, gc, gvl};

#[magnus::wrap(class = "Candle::Audio", free_immediately, size)]
pub struct RbAudio {
    audio: Arc<Audio>,
    #[allow(dead_code, reason = "held for its Drop")]
    memory: gc::Tracked,
}

impl RbAudio {
    fn new(ruby: &Ruby, audio: Arc<Audio>) -> Self {
        Self {
            memory: gc::Tracked::new(ruby, 4 * audio.samples().len()),
            audio,
        }
    }
}

/// Audio as Ruby gives it: a decoded one, or a pair that says what its String is.
pub fn sound(ruby: &Ruby, value: Value) -> Result<Sound, Error> {
    if let Ok(audio) = <&RbAudio>::try_convert(value) {
        return Ok(Sound::Decoded(audio.audio.clone()));
    }
    let (kind, content): (Symbol, RString) = TryConvert::try_convert(value)?;
    // SAFETY: the bytes are copied before anything else of Ruby runs.
    let bytes = unsafe { content.as_slice() }.to_vec();
    match &*kind.name()? {
        "bytes" => Ok(Sound::Encoded(bytes.into())),
        "file" => String::from_utf8(bytes)
            .map(|path| Sound::File(PathBuf::from(path)))
            .map_err(|_| invalid(ruby, "the path of an audio must be valid UTF-8")),
        other => Err(error::to_ruby(
            ruby,
            EngineError::Internal(format!("unknown kind {other:?} of audio")),
        )),
    }
}

fn invalid(ruby: &Ruby, reason: &str) -> Error {
    error::to_ruby(ruby, EngineError::InvalidInput(reason.to_owned()))
}

/// All audios of an Array.
pub fn sounds(ruby: &Ruby, audios: RArray) -> Result<Vec<Sound>, Error> {
    let values = audios.into_iter();
    values.map(|value| sound(ruby, value)).collect()
}

fn decode(ruby: &Ruby, value: Value) -> Result<RbAudio, Error> {
    let sound = sound(ruby, value)?;
    let audio = gvl::leave_waiting(ruby, |cancel| sound.decode(cancel))?;
    Ok(RbAudio::new(ruby, audio))
}

/// Of packed little-endian f32 samples, interleaved where there are several channels.
fn from_samples(
    ruby: &Ruby,
    packed: RString,
    rate: u32,
    channels: usize,
) -> Result<RbAudio, Error> {
    // SAFETY: the bytes are copied before anything else of Ruby runs.
    let bytes = unsafe { packed.as_slice() };
    if bytes.len() % 4 != 0 {
        let reason = "packed samples must be whole 32-bit floats, as pack(\"e*\") makes them";
        return Err(invalid(ruby, reason));
    }
    let values = bytes.chunks_exact(4);
    let samples: Vec<f32> = values
        .map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]))
        .collect();
    let audio = Audio::interleaved(&samples, rate, channels).map_err(error::raised(ruby))?;
    Ok(RbAudio::new(ruby, Arc::new(audio)))
}

fn rate(this: &RbAudio) -> u32 {
    this.audio.rate()
}

fn channels(this: &RbAudio) -> usize {
    this.audio.channels()
}

fn duration(this: &RbAudio) -> f64 {
    this.audio.duration()
}

fn count(this: &RbAudio) -> usize {
    this.audio.samples().len()
}

fn tensor(ruby: &Ruby, this: &RbAudio) -> Result<RbTensor, Error> {
    let tensor = gvl::leave(ruby, |_| {
        let samples = this.audio.samples();
        Ok(Tensor::from_slice(samples, samples.len(), &Device::Cpu)?)
    })?;
    Ok(RbTensor::new(ruby, tensor))
}

/// Little-endian f32 samples.
fn packed(ruby: &Ruby, this: &RbAudio) -> RString {
    let samples = this.audio.samples();
    let bytes: Vec<u8> = samples
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    ruby.str_from_slice(&bytes)
}

fn resampled(ruby: &Ruby, this: &RbAudio, rate: u32) -> Result<RbAudio, Error> {
    let audio = gvl::leave_waiting(ruby, |cancel| this.audio.resampled(rate, cancel))?;
    Ok(RbAudio::new(ruby, Arc::new(audio)))
}

/// The part between two seconds.
fn slice(ruby: &Ruby, this: &RbAudio, from: f64, to: f64) -> Result<RbAudio, Error> {
    let samples = this.audio.samples();
    let rate = f64::from(this.audio.rate());
    let place = |seconds: f64| ((seconds * rate).round().max(0.0) as usize).min(samples.len());
    let (from, to) = (place(from), place(to));
    let part = samples[from..to.max(from)].to_vec();
    let audio = Audio::new(part, this.audio.rate(), this.audio.channels());
    Ok(RbAudio::new(
        ruby,
        Arc::new(audio.map_err(error::raised(ruby))?),
    ))
}

fn is_encoded(content: RString) -> bool {
    // SAFETY: the bytes are only looked at, and nothing of Ruby runs meanwhile.
    audio::is_encoded(unsafe { content.as_slice() })
}

fn limits() -> (usize, usize) {
    let Limits {
        max_bytes,
        max_seconds,
    } = audio::limits();
    (max_bytes, max_seconds)
}

fn set_limits(max_bytes: usize, max_seconds: usize) {
    audio::set_limits(Limits {
        max_bytes,
        max_seconds,
    });
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Audio", ruby.class_object())?;
    class.undef_default_alloc_func();
    let singleton = class.singleton_class()?;
    singleton.define_private_method("_decode", function!(decode, 1))?;
    singleton.define_private_method("_from_samples", function!(from_samples, 3))?;
    singleton.define_private_method("_encoded", function!(is_encoded, 1))?;
    singleton.define_private_method("_limits", function!(limits, 0))?;
    singleton.define_private_method("_limits=", function!(set_limits, 2))?;
    class.define_method("sample_rate", method!(rate, 0))?;
    class.define_method("channels", method!(channels, 0))?;
    class.define_method("duration", method!(duration, 0))?;
    class.define_private_method("_count", method!(count, 0))?;
    class.define_private_method("_tensor", method!(tensor, 0))?;
    class.define_private_method("_packed", method!(packed, 0))?;
    class.define_private_method("_slice", method!(slice, 2))?;
    class.define_private_method("_resampled", method!(resampled, 1))
}
