//! `Candle::Transcriber` and its runs

use candle_core::{Device, Tensor};
use engine::tasks::transcribe::{Segment, Task, Timestamps, Transcript};
use engine::tasks::{ModelInfo, TranscribeModel, TranscribeSettings, Transcribing};
use formats::text::tokenizer::Tokenizer;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby, Value};

use crate::tensor::RbTensor;
use crate::{audio, error, gvl, model};

#[magnus::wrap(class = "Candle::Transcriber", free_immediately, size)]
pub struct RbTranscriber {
    model: model::Slot<TranscribeModel>,
}

impl model::Described for TranscribeModel {
    fn info(&self) -> &ModelInfo {
        self.info()
    }

    fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer()
    }
}

#[magnus::wrap(class = "Candle::Transcriber::Run", free_immediately, size)]
pub struct RbTranscribing(model::Underway<Transcribing>);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbTranscriber, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbTranscriber {
        model: model::load(ruby, &request, TranscribeModel::load)?,
    })
}

fn languages(ruby: &Ruby, this: &RbTranscriber) -> Result<Vec<String>, Error> {
    Ok(this.model.get(ruby)?.languages())
}

fn sample_rate(ruby: &Ruby, this: &RbTranscriber) -> Result<u32, Error> {
    Ok(this.model.get(ruby)?.sample_rate())
}

/// What the model's feature extractor makes of an audio, [frames, numbers of a frame].
fn features(ruby: &Ruby, this: &RbTranscriber, value: Value) -> Result<RbTensor, Error> {
    let (model, sound) = (this.model.get(ruby)?, audio::sound(ruby, value)?);
    let tensor = gvl::leave_waiting(ruby, |cancel| {
        let found = model.features(&sound, cancel)?;
        let shape = (found.frames, found.bins);
        Ok(Tensor::from_vec(found.values, shape, &Device::Cpu)?)
    })?;
    Ok(RbTensor::new(ruby, tensor))
}

/// The code of the likeliest language, and how likely it is.
fn detect_language(ruby: &Ruby, this: &RbTranscriber, value: Value) -> Result<RArray, Error> {
    let (model, sound) = (this.model.get(ruby)?, audio::sound(ruby, value)?);
    let (code, probability) =
        gvl::leave_waiting(ruby, |cancel| model.detect_language(&sound, cancel))?;
    let pair = ruby.ary_new_capa(2);
    pair.push(code)?;
    pair.push(probability)?;
    Ok(pair)
}

fn begin(
    ruby: &Ruby,
    this: &RbTranscriber,
    audios: RArray,
    settings: RHash,
) -> Result<RbTranscribing, Error> {
    let model = this.model.get(ruby)?;
    let sounds = audio::sounds(ruby, audios)?;
    let settings = transcribe_settings(ruby, settings)?;
    let run = Transcribing::new(model, sounds, settings).map_err(error::raised(ruby))?;
    Ok(RbTranscribing(model::Underway::new(run)))
}

fn transcribe_settings(ruby: &Ruby, settings: RHash) -> Result<TranscribeSettings, Error> {
    let usual = TranscribeSettings::default();
    let task: Option<String> = model::setting(ruby, settings, "task")?;
    let timestamps: Option<String> = model::setting(ruby, settings, "timestamps")?;
    let timestamp_tokens = model::setting(ruby, settings, "timestamp_tokens")?;
    let condition = model::setting(ruby, settings, "condition_on_previous_text")?;
    let seed = model::setting(ruby, settings, "seed")?;
    let vocabulary: Option<Vec<String>> = model::setting(ruby, settings, "vocabulary")?;
    let suppressed: Option<Vec<u32>> = model::setting(ruby, settings, "suppress_tokens")?;
    // A missing threshold is not applied.
    let threshold = |name: &str| model::setting(ruby, settings, name);
    Ok(TranscribeSettings {
        language: model::setting(ruby, settings, "language")?,
        task: match task.as_deref() {
            Some("translate") => Task::Translate,
            _ => Task::Transcribe,
        },
        timestamps: match timestamps.as_deref() {
            Some("word") => Timestamps::Words,
            Some("segment") => Timestamps::Segments,
            _ => Timestamps::None,
        },
        timestamp_tokens: timestamp_tokens.unwrap_or(usual.timestamp_tokens),
        initial_prompt: model::setting(ruby, settings, "initial_prompt")?,
        hotwords: model::setting(ruby, settings, "hotwords")?,
        suppress_tokens: suppressed.unwrap_or_default(),
        vocabulary: vocabulary.unwrap_or_default(),
        temperatures: model::setting(ruby, settings, "temperatures")?,
        compression_ratio_threshold: threshold("compression_ratio_threshold")?,
        logprob_threshold: threshold("logprob_threshold")?,
        no_speech_threshold: threshold("no_speech_threshold")?,
        condition_on_previous_text: condition.unwrap_or(usual.condition_on_previous_text),
        max_new_tokens: model::setting(ruby, settings, "max_new_tokens")?,
        num_beams: model::setting(ruby, settings, "num_beams")?,
        seed: seed.unwrap_or(usual.seed),
    })
}

/// New segments as pairs of an audio's index and Hashes; nil at the end.
fn step(ruby: &Ruby, run: &RbTranscribing) -> Result<Option<RArray>, Error> {
    let run = run.0.get(ruby)?;
    let Some(found) = gvl::leave_waiting(ruby, |cancel| run.step(cancel))? else {
        return Ok(None);
    };
    let list = ruby.ary_new();
    for (index, segments) in found {
        list.push((index, hashes(ruby, &segments)?))?;
    }
    Ok(Some(list))
}

fn hashes(ruby: &Ruby, segments: &[Segment]) -> Result<RArray, Error> {
    let list = ruby.ary_new_capa(segments.len());
    for segment in segments {
        let hash = ruby.hash_new();
        hash.aset(ruby.to_symbol("start"), segment.start)?;
        hash.aset(ruby.to_symbol("end"), segment.end)?;
        hash.aset(ruby.to_symbol("text"), segment.text.as_str())?;
        hash.aset(
            ruby.to_symbol("tokens"),
            ruby.ary_from_vec(segment.tokens.clone()),
        )?;
        hash.aset(ruby.to_symbol("avg_logprob"), segment.avg_logprob)?;
        hash.aset(ruby.to_symbol("no_speech_prob"), segment.no_speech_prob)?;
        hash.aset(ruby.to_symbol("temperature"), segment.temperature)?;
        let words = ruby.ary_new_capa(segment.words.len());
        for word in &segment.words {
            let spoken = ruby.hash_new();
            spoken.aset(ruby.to_symbol("start"), word.start)?;
            spoken.aset(ruby.to_symbol("end"), word.end)?;
            spoken.aset(ruby.to_symbol("text"), word.text.as_str())?;
            spoken.aset(ruby.to_symbol("probability"), word.probability)?;
            words.push(spoken)?;
        }
        hash.aset(ruby.to_symbol("words"), words)?;
        list.push(hash)?;
    }
    Ok(list)
}

/// What has become of the audios: a Hash with Symbol keys for each.
fn outcomes(ruby: &Ruby, run: &RbTranscribing) -> Result<RArray, Error> {
    let list = ruby.ary_new();
    for found in run.0.get(ruby)?.transcripts() {
        list.push(outcome(ruby, &found)?)?;
    }
    Ok(list)
}

fn outcome(ruby: &Ruby, found: &Transcript) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    hash.aset(ruby.to_symbol("text"), found.text.as_str())?;
    hash.aset(ruby.to_symbol("language"), found.language.as_deref())?;
    hash.aset(ruby.to_symbol("duration"), found.duration)?;
    hash.aset(ruby.to_symbol("segments"), hashes(ruby, &found.segments)?)?;
    hash.aset(
        ruby.to_symbol("token_ids"),
        ruby.ary_from_vec(found.token_ids.clone()),
    )?;
    Ok(hash)
}

/// Seconds that are written, and of how many.
fn position(ruby: &Ruby, run: &RbTranscribing) -> Result<(f64, f64), Error> {
    Ok(run.0.get(ruby)?.position())
}

/// Ends the run, whether it is over or not.
fn release(run: &RbTranscribing) {
    run.0.release();
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Transcriber", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_languages", method!(languages, 0))?;
    class.define_private_method("_sample_rate", method!(sample_rate, 0))?;
    class.define_private_method("_features", method!(features, 1))?;
    class.define_private_method("_detect_language", method!(detect_language, 1))?;
    class.define_private_method("_begin", method!(begin, 2))?;
    model::define_model!(class, RbTranscriber)?;
    let run = class.define_class("Run", ruby.class_object())?;
    run.undef_default_alloc_func();
    run.define_method("step", method!(step, 0))?;
    run.define_method("outcomes", method!(outcomes, 0))?;
    run.define_method("position", method!(position, 0))?;
    run.define_method("release", method!(release, 0))
}
