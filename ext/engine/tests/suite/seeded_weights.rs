//! The checkpoints of `spec/fixtures/seeded`, whose weights are a function of tensor name and seed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{json, Map, Value};

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

/// Whether a tensor belongs to an expert that does nothing (LongCat), which no model reads.
pub fn unread(name: &str, tensor: &str) -> bool {
    let config = record(name, "config.json");
    let number = tensor.split(".experts.").nth(1);
    let number = number.and_then(|rest| rest.split('.').next()?.parse().ok());
    let used = config["n_routed_experts"].as_u64();
    let idle = config["zero_expert_num"].is_u64();
    idle && number
        .zip(used)
        .is_some_and(|(number, used): (u64, u64)| number >= used)
}

/// A whole checkpoint: config, weights and tokenizer.
pub fn checkpoint(name: &str) -> Folder {
    written(name, &record(name, "config.json"), str::to_owned)
}

/// The checkpoint with another value in its configuration.
pub fn changed(name: &str, key: &str, value: Value) -> Folder {
    let mut config = record(name, "config.json");
    config[key] = value;
    written(name, &config, str::to_owned)
}

/// The checkpoint of a model that reads texts of so many tokens.
pub fn roomy(name: &str, positions: usize) -> Folder {
    changed(name, "max_position_embeddings", positions.into())
}

/// The checkpoint of LFM2 whose convolutions see no token but their own.
pub fn one_tap() -> Folder {
    let folder = changed("lfm2", "conv_L_cache", 1.into());
    let mut tensors = record("lfm2", "tensors.json");
    for (name, entry) in tensors["tensors"].as_object_mut().unwrap() {
        if name.ends_with("conv.conv.weight") {
            entry["shape"][2] = 1.into();
        }
    }
    folder.write("model.safetensors", safetensors(&tensors, str::to_owned));
    folder
}

/// The checkpoint as the text part of a model of texts and images of this type.
pub fn text_part(name: &str, model_type: &str) -> Folder {
    let config = json!({"model_type": model_type, "text_config": record(name, "config.json")});
    written(name, &config, |tensor| {
        tensor.replacen("model.", "model.language_model.", 1)
    })
}

/// The checkpoint with all experts of a layer in two tensors, as some files have them.
pub fn fused_experts(name: &str) -> Folder {
    let folder = checkpoint(name);
    let bytes = safetensors(&record(name, "tensors.json"), str::to_owned);
    folder.write("model.safetensors", fused(&bytes));
    folder
}

/// The same file with each expert's gate before its up in one tensor, and all downs in another.
fn fused(file: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let mut parts = BTreeMap::<String, BTreeMap<(usize, &str), &Value>>::new();
    for (name, entry) in &header {
        let (whole, place) = match name.split_once(".experts.") {
            Some((layer, rest)) => {
                let (expert, part) = rest.split_once('.').unwrap();
                let both = if part.starts_with("down") {
                    "down"
                } else {
                    "gate_up"
                };
                let whole = format!("{layer}.experts.{both}_proj");
                (whole, (expert.parse().unwrap(), part))
            }
            None => (name.clone(), (0, "")),
        };
        parts.entry(whole).or_default().insert(place, entry);
    }
    let (mut fused, mut data) = (Map::new(), Vec::new());
    for (whole, parts) in parts {
        let (start, mut shape) = (data.len(), parts.values().next().unwrap()["shape"].clone());
        for entry in parts.values() {
            let range = number(&entry["data_offsets"][0])..number(&entry["data_offsets"][1]);
            data.extend(&file[8 + length..][range]);
        }
        if whole.contains(".experts.") {
            let count = parts.keys().last().unwrap().0 + 1;
            let rows: usize = parts.values().map(|entry| number(&entry["shape"][0])).sum();
            shape = json!([count, rows / count, shape[1]]);
        }
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        fused.insert(whole, entry);
    }
    let header = Value::Object(fused).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &data].concat()
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
