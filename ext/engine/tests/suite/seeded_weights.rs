//! The checkpoints of `spec/fixtures/seeded`, whose weights are a function of tensor name and seed.

use std::path::{Path, PathBuf};

use serde_json::{json, Value};

use super::seeded_tensors::safetensors;
use super::weight_files::Folder;

/// The folder of a fixture, or of all of them.
pub fn seeded(name: &str) -> PathBuf {
    fixtures().join("seeded").join(name)
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures")
}

/// The names of all fixtures: model types, some with a variant after a dash.
pub fn names() -> Vec<String> {
    let folders = std::fs::read_dir(seeded("")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

pub fn record(name: &str, file: &str) -> Value {
    let text = std::fs::read_to_string(seeded(name).join(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A whole checkpoint: config, weights and tokenizer.
pub fn checkpoint(name: &str) -> Folder {
    written(name, &record(name, "config.json"), str::to_owned)
}

/// The checkpoint of a model that reads texts of so many tokens.
pub fn roomy(name: &str, positions: usize) -> Folder {
    let mut config = record(name, "config.json");
    config["max_position_embeddings"] = positions.into();
    written(name, &config, str::to_owned)
}

/// The checkpoint as the text part of a model of texts and images of this type.
pub fn text_part(name: &str, model_type: &str) -> Folder {
    let config = json!({"model_type": model_type, "text_config": record(name, "config.json")});
    written(name, &config, |tensor| {
        tensor.replacen("model.", "model.language_model.", 1)
    })
}

fn written(name: &str, config: &Value, renamed: impl Fn(&str) -> String) -> Folder {
    let folder = Folder::new();
    folder.write("config.json", config.to_string());
    let weights = safetensors(&record(name, "tensors.json"), renamed);
    folder.write("model.safetensors", weights);
    let expected = record(name, "expected.json");
    let tokenizer = fixtures().join(expected["tokenizer"].as_str().unwrap());
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        folder.write(file, std::fs::read(tokenizer.join(file)).unwrap());
    }
    folder
}
