//! Speech encoders and the heads of audio models against what transformers says of the same checkpoints.

use std::path::PathBuf;

use candle_core::DType;
use engine::models::speech::{Blueprint, SpeechModel};
use engine::tasks::transcribe::Sound;
use engine::tasks::{AudioClassifyModel, AudioEmbeddingModel, LoadOptions, TranscribeModel};
use engine::{CancelToken, Error};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::weights;
use serde_json::Value;

use super::tiny_folder::tiny;

const TOLERANCE: f32 = 1e-4;

fn folder(name: &str) -> PathBuf {
    tiny("speech").join(name)
}

fn record(name: &str, file: &str) -> Value {
    let text = std::fs::read_to_string(folder(name).join(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn sound(file: &str) -> Sound {
    Sound::File(tiny("../audio").join(file))
}

fn files(name: &str) -> ModelFiles {
    let folder = folder(name);
    ModelFiles::open(folder.to_str().unwrap(), None, &CancelToken::new()).unwrap()
}

fn numbers(values: &Value) -> Vec<f32> {
    let values = values.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap() as f32).collect()
}

fn assert_near(found: &[f32], wanted: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let off = (found - wanted).abs();
        assert!(off <= tolerance, "{what} [{at}]: {found} is not {wanted}");
    }
}

/// The states of the encoder alone, row by row.
fn states(name: &str, audio: &str) -> Vec<Vec<f32>> {
    let cancel = CancelToken::new();
    let transcriber = TranscribeModel::load(&files(name), &LoadOptions::default(), &cancel);
    let features = transcriber
        .unwrap()
        .features(&sound(audio), &cancel)
        .unwrap();
    let config = RawConfig::read(&folder(name).join("config.json")).unwrap();
    let path = folder(name).join("model.safetensors");
    let source = weights::open_path(path.to_str().unwrap(), &cancel).unwrap();
    let blueprint = Blueprint::from_config(&config).unwrap();
    let place = (&candle_core::Device::Cpu, DType::F32);
    let model = SpeechModel::load(&blueprint, source.as_ref(), place, false, &cancel).unwrap();
    let input = [(features.values.as_slice(), features.bins)];
    let (states, boundaries) = model.encode(&input, &cancel).unwrap();
    let rows: Vec<Vec<f32>> = states.to_vec2().unwrap();
    assert_eq!(boundaries, [0, rows.len() as u32], "{name}");
    rows
}

#[test]
fn encoders_have_the_states_of_transformers() {
    for name in [
        "whisper",
        "whisper-english",
        "moonshine",
        "moonshine-wide",
        "wav2vec2",
        "wav2vec2-stable",
        "parakeet",
    ] {
        let expected = record(name, "states.json");
        let found = states(name, expected["audio"].as_str().unwrap());
        let shape = [found.len(), found[0].len()];
        assert_eq!(serde_json::json!(shape), expected["shape"], "{name}");
        let places = expected["places"].as_array().unwrap().iter();
        for (place, wanted) in places.zip(expected["rows"].as_array().unwrap()) {
            let row = place.as_u64().unwrap() as usize;
            let what = format!("state {row} of {name}");
            assert_near(&found[row], &numbers(wanted), TOLERANCE, &what);
        }
        let sums: Vec<f32> = (0..shape[1])
            .map(|column| {
                let values = found.iter().map(|row| f64::from(row[column]));
                values.sum::<f64>() as f32
            })
            .collect();
        let tolerance = TOLERANCE * shape[0] as f32;
        assert_near(&sums, &numbers(&expected["sums"]), tolerance, name);
    }
}

#[test]
fn voices_have_the_vectors_of_transformers() {
    let cancel = CancelToken::new();
    for (name, dimension) in [
        ("wav2vec2-voices", 6),
        ("wavlm-voices", 8),
        ("wav2vec2-bert-voices", 5),
    ] {
        let model = AudioEmbeddingModel::load(&files(name), &LoadOptions::default(), &cancel);
        let model = model.unwrap();
        assert_eq!(model.dimension(), dimension, "{name}");
        for audio in ["tones.wav", "long.flac"] {
            let found = model.embed(&[sound(audio)], false, &cancel).unwrap();
            let wanted = numbers(&record(name, "expected.json")[audio]);
            assert_near(&found.values, &wanted, TOLERANCE, name);
            let unit = model.embed(&[sound(audio)], true, &cancel).unwrap();
            let length: f32 = unit.values.iter().map(|value| value * value).sum();
            assert!((length - 1.0).abs() < 1e-5, "{name}");
        }
    }
}

#[test]
fn audio_without_states_for_all_layers_is_too_short() {
    let cancel = CancelToken::new();
    let files = files("wavlm-voices");
    let model = AudioEmbeddingModel::load(&files, &LoadOptions::default(), &cancel).unwrap();
    // 40 samples make a state, and the layers leave two of 16.
    let embed = |samples: usize| {
        let audio = formats::audio::Audio::new(vec![0.1; samples], 16_000, 1).unwrap();
        model.embed(&[Sound::Decoded(audio.into())], true, &cancel)
    };
    let error = embed(500).map(|found| found.count).unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    assert!(error.to_string().contains("too short"), "{error}");
    assert_eq!(embed(1000).unwrap().values.len(), 8);
}

#[test]
fn heads_that_label_no_whole_audio_are_refused() {
    let cancel = CancelToken::new();
    for (name, hint) in [
        ("wav2vec2-voices", "AudioEmbeddingModel"),
        ("wavlm-voices", "AudioEmbeddingModel"),
        ("wav2vec2-bert-voices", "AudioEmbeddingModel"),
        ("wav2vec2-frames", "every frame"),
    ] {
        let model = AudioClassifyModel::load(&files(name), &LoadOptions::default(), &cancel);
        let error = model.map(|model| model.labels().len()).unwrap_err();
        assert!(
            matches!(error, Error::UnsupportedModel(_)),
            "{name}: {error}"
        );
        assert!(error.to_string().contains(hint), "{name}: {error}");
    }
}
