//! Models that read documents against what transformers says of checkpoints with the same seeded weights.

use std::path::{Path, PathBuf};

use engine::generation::{EarlyStopping, GenerationConfig, SearchSettings, TokenRules};
use engine::tasks::{LoadOptions, Picture, ReadModel};
use engine::{CancelToken, Error};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::Processor;
use serde_json::{json, Value};

use super::seeded_tensors::safetensors;
use super::seeded_vlms::{computed, excess, hash, numbers};
use super::weight_files::Folder;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures")
}

fn names() -> Vec<String> {
    let folders = std::fs::read_dir(fixtures().join("seeded_readers")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

fn record(name: &str, file: &str) -> Value {
    let path = fixtures().join("seeded_readers").join(name).join(file);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A whole checkpoint.
fn checkpoint(name: &str) -> Folder {
    let folder = Folder::new();
    let files = std::fs::read_dir(fixtures().join("seeded_readers").join(name)).unwrap();
    for entry in files {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        folder.write(file, std::fs::read(&path).unwrap());
    }
    let weights = safetensors(&record(name, "tensors.json"), str::to_owned);
    folder.write("model.safetensors", weights);
    folder
}

fn open(folder: &Folder) -> engine::Result<ReadModel> {
    let cancel = CancelToken::new();
    let files = ModelFiles::open(folder.path("").to_str().unwrap(), None, &cancel)?;
    ReadModel::load(&files, &LoadOptions::default(), &cancel)
}

fn picture(case: &Value) -> Picture {
    let images = fixtures().join("images");
    Picture::File(images.join(case["picture"].as_str().unwrap()))
}

/// Of a call that says how many tokens and beams there are; the rest is the checkpoint's.
fn settings(model: &ReadModel, count: usize, beams: Option<&Value>) -> SearchSettings {
    let rules = model.defaults().rules.clone();
    let plain = SearchSettings {
        config: GenerationConfig {
            max_new_tokens: count,
            ..GenerationConfig::default()
        },
        num_beams: 1,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::default(),
        rules: rules.clone(),
    };
    match beams {
        None => plain,
        Some(beams) => SearchSettings {
            num_beams: beams["num_beams"].as_u64().unwrap() as usize,
            length_penalty: beams["length_penalty"].as_f64().unwrap() as f32,
            early_stopping: EarlyStopping::Always,
            rules: TokenRules {
                no_repeat_ngram_size: beams["no_repeat_ngram_size"].as_u64().unwrap() as usize,
                ..rules
            },
            ..plain
        },
    }
}

/// What a model says otherwise than the reference, if anything.
fn difference(model: &ReadModel, expected: &Value) -> Option<String> {
    let cancel = CancelToken::new();
    for case in expected["cases"].as_array().unwrap() {
        let (picture, prompt) = (picture(case), case["prompt"].as_str());
        let logits = model.first_logits(&picture, prompt, &cancel).unwrap();
        let worst = excess(&logits, &case["logits"]);
        if worst.is_nan() || worst >= 1.0 {
            return Some(format!("logits are off by {worst:.1} tolerances"));
        }
        for (key, beams) in [("tokens", None), ("beams", Some(&expected["beams"]))] {
            let wanted = numbers(&case[key]);
            let settings = settings(model, numbers(&case["tokens"]).len(), beams);
            let pictures = [picture.clone()];
            let found = model.read(&pictures, prompt, &settings, 0, &cancel);
            let found = found.unwrap().remove(0).tokens;
            if found != wanted {
                return Some(format!("{key} {found:?} instead of {wanted:?}"));
            }
        }
    }
    None
}

#[test]
fn logits_greedy_tokens_and_beams_equal_the_reference() {
    let mut failures = Vec::new();
    for name in names() {
        let found = match open(&checkpoint(&name)) {
            Ok(model) => difference(&model, &record(&name, "expected.json")),
            Err(error) => Some(error.to_string()),
        };
        failures.extend(found.map(|found| format!("{name}: {found}")));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn pages_are_those_of_the_python_processors_byte_by_byte() {
    let mut failures = Vec::new();
    for name in names() {
        let path = fixtures().join("seeded_readers").join(&name);
        let raw = RawConfig::read(&path.join("preprocessor_config.json")).unwrap();
        let processor = Processor::read(&raw).unwrap();
        let expected = record(&name, "expected.json");
        let channels = |key: &str| -> Vec<f64> {
            let values = expected[key].as_array().unwrap().iter();
            values.map(|value| value.as_f64().unwrap()).collect()
        };
        let (mean, deviation) = (channels("mean"), channels("deviation"));
        for case in expected["prepared"].as_array().unwrap() {
            let (size, wanted) = (numbers(&case["size"]), numbers(&case["view"]));
            let image = computed(size[0] as usize, size[1] as usize);
            let view = processor.process(&image, &CancelToken::new()).unwrap();
            let found = [view.width as u32, view.height as u32];
            let differs = match case["values"].as_array() {
                // Numbers that nothing rounds.
                Some(values) => {
                    let found = view
                        .values
                        .iter()
                        .step_by(97)
                        .map(|value| f64::from(*value));
                    let mut pairs = found.zip(values.iter().map(|value| value.as_f64().unwrap()));
                    pairs.any(|(found, wanted)| (found - wanted).abs() > 1e-4 + 1e-5 * wanted.abs())
                }
                None => case["hash"] != hash(&view, &mean, &deviation),
            };
            if found[..] != wanted[..] || differs {
                failures.push(format!("{name} {size:?}: {found:?} {wanted:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn images_together_are_read_as_alone() {
    for name in ["trocr", "donut", "florence2"] {
        let model = open(&checkpoint(name)).unwrap();
        let expected = record(name, "expected.json");
        let cases = expected["cases"].as_array().unwrap();
        let prompt = cases[0]["prompt"].as_str();
        let asked: Vec<_> = cases
            .iter()
            .filter(|case| case["prompt"].as_str() == prompt)
            .collect();
        let pictures: Vec<_> = asked.iter().map(|case| picture(case)).collect();
        let cancel = CancelToken::new();
        let found = model.read(&pictures, prompt, &settings(&model, 8, None), 0, &cancel);
        for (case, found) in asked.iter().zip(found.unwrap()) {
            assert_eq!(found.tokens, numbers(&case["tokens"]), "{name}");
        }
    }
}

/// A damaged configuration is refused or read somehow, and never ends in a panic.
#[test]
fn configurations_that_lie_are_errors() {
    let others = [
        json!(0),
        json!(-3),
        json!(1u64 << 40),
        json!("x"),
        json!([1, 2, 3]),
    ];
    let (mut refused, mut read) = (0, 0);
    for name in names() {
        let folder = checkpoint(&name);
        let case = &record(&name, "expected.json")["cases"][0];
        for file in ["config.json", "preprocessor_config.json"] {
            let sound = record(&name, file);
            for (_, changed) in super::seeded_vlms::changes(&sound, &others) {
                folder.write(file, changed.to_string());
                let found = open(&folder).and_then(|model| {
                    let prompt = case["prompt"].as_str();
                    model.read(
                        &[picture(case)],
                        prompt,
                        &settings(&model, 2, None),
                        0,
                        &CancelToken::new(),
                    )
                });
                match found {
                    Ok(_) => read += 1,
                    Err(Error::Internal(reason)) => panic!("{name}: {reason}"),
                    Err(_) => refused += 1,
                }
            }
            folder.write(file, sound.to_string());
        }
    }
    assert!(refused > 50 && read > 50, "{refused} {read}");
}
