//! The GGUF files that llama.cpp's converter makes of seeded checkpoints, against the checkpoints themselves, which
//! transformers has run, and against llama.cpp.
//!
//! `spec/fixtures/make_seeded_gguf.py` has noted how a file's tensors come of the checkpoint's, so that the same bytes
//! are made here.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device};
use engine::models::decoder::{Blueprint, Decoder};
use engine::{CancelToken, Error};
use formats::files::model_files::WeightFiles;
use formats::weights;
use serde_json::Value;

use super::decoder::{greedy, in_chunks, numbers};
use super::seeded::{difference, excess};
use super::seeded_tensors::elements;
use super::seeded_weights::{names, record, seeded};
use super::weight_files::{f32_bytes, Folder, Gguf};

/// The names of all seeded checkpoints that have a GGUF file.
pub fn converted() -> Vec<String> {
    let names = names().into_iter();
    names
        .filter(|name| seeded(name).join("gguf.json").exists())
        .collect()
}

/// The names of architectures that have no other files, of which `spec/fixtures/make_gguf_only.py` writes fixtures.
fn alone() -> Vec<String> {
    let folders = std::fs::read_dir(seeded("../gguf_only")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.map(|name| format!("../gguf_only/{name}")).collect()
}

/// The number that GGUF has for a type, and the bytes of a value of it.
pub fn encoded(kind: &str, value: &Value) -> (u32, Vec<u8>) {
    if let Some(inner) = kind.strip_prefix("array ") {
        let values = value.as_array().unwrap();
        let elements: Vec<_> = values.iter().map(|value| encoded(inner, value)).collect();
        let inner = elements[0].0;
        let mut bytes = inner.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(elements.into_iter().flat_map(|(_, bytes)| bytes));
        return (9, bytes);
    }
    match kind {
        "uint32" => {
            let number = value.as_u64().unwrap() as u32;
            (4, number.to_le_bytes().to_vec())
        }
        "int32" => {
            let number = value.as_i64().unwrap() as i32;
            (5, number.to_le_bytes().to_vec())
        }
        "float32" => {
            // Python writes what JSON has no number for.
            let number = value.as_f64().unwrap_or(f64::NEG_INFINITY) as f32;
            (6, number.to_le_bytes().to_vec())
        }
        "bool" => (7, vec![u8::from(value.as_bool().unwrap())]),
        "string" => (8, Gguf::string(value.as_str().unwrap())),
        other => panic!("type {other}"),
    }
}

/// The elements of a tensor of the file.
pub fn cooked(recipe: &Value, tensors: &HashMap<String, Vec<f32>>) -> Vec<f32> {
    if let Some(values) = recipe["values"].as_array() {
        let values = values.iter().map(|value| value.as_f64().unwrap() as f32);
        return values.collect();
    }
    let added = recipe["add"].as_f64().unwrap_or(0.0) as f32;
    let mut all = Vec::new();
    for part in recipe["from"].as_array().unwrap() {
        let source = &tensors[part[0].as_str().unwrap()];
        let Some(first) = part[1].as_u64() else {
            all.extend(source.iter().map(|value| value + added));
            continue;
        };
        let mut places = vec![first as i64];
        for extent in part[2].as_array().unwrap() {
            let [count, stride] = [0, 1].map(|place| extent[place].as_i64().unwrap());
            let rows = places.iter();
            places = rows
                .flat_map(|place| (0..count).map(move |number| place + number * stride))
                .collect();
        }
        let places = places.into_iter().map(|place| place as usize);
        all.extend(places.map(|place| source[place] + added));
    }
    if recipe["minus_exp"] == true {
        all.iter_mut().for_each(|value| *value = -value.exp());
    }
    all
}

pub fn floats(bytes: Vec<u8>) -> Vec<f32> {
    let fours = bytes.chunks(4);
    fours
        .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
        .collect()
}

fn checkpoint_tensors(name: &str) -> HashMap<String, Vec<f32>> {
    let description = record(name, "tensors.json");
    let seed = description["seed"].as_u64().unwrap();
    let tensors = description["tensors"].as_object().unwrap().iter();
    tensors
        .map(|(name, tensor)| (name.clone(), floats(elements(name, seed, tensor))))
        .collect()
}

/// A tensor's name, its shape, innermost size first, and its elements.
type Stored = (String, Vec<u64>, Vec<f32>);

/// The tensors of a file.
fn tensors(name: &str) -> Vec<Stored> {
    let given = record(name, "gguf.json");
    let recipes = given["tensors"].as_object().unwrap().iter();
    let shape = |recipe: &Value| -> Vec<u64> {
        let sizes = recipe["shape"].as_array().unwrap().iter();
        sizes.map(|size| size.as_u64().unwrap()).collect()
    };
    let Some(seed) = given["seed"].as_u64() else {
        let sources = checkpoint_tensors(name);
        return recipes
            .map(|(name, recipe)| (name.clone(), shape(recipe), cooked(recipe, &sources)))
            .collect();
    };
    let architecture = given["metadata"]["general.architecture"][1]
        .as_str()
        .unwrap();
    let layers = given["metadata"][format!("{architecture}.block_count")][1]
        .as_u64()
        .unwrap();
    let mut all = Vec::new();
    for (pattern, recipe) in recipes {
        let mut described = recipe.clone();
        described["dtype"] = "F32".into();
        let count = if pattern.contains("{}") { layers } else { 1 };
        for layer in 0..count {
            let name = pattern.replace("{}", &layer.to_string());
            let values = floats(elements(&name, seed, &described));
            all.push((name, shape(recipe), values));
        }
    }
    all
}

/// A file of these metadata and tensors.
pub fn file_of(metadata: &Value, tensors: &[Stored]) -> Gguf {
    let mut file = Gguf::new();
    for (key, typed) in metadata.as_object().unwrap() {
        let (kind, value) = encoded(typed[0].as_str().unwrap(), &typed[1]);
        file = file.key(key, kind, &value);
    }
    let mut data = Vec::new();
    for (name, shape, values) in tensors {
        assert_eq!(values.len() as u64, shape.iter().product::<u64>(), "{name}");
        file = file.tensor(name, shape, 0, data.len() as u64);
        data.extend(f32_bytes(values));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.data(data)
}

pub fn gguf(name: &str) -> Folder {
    let folder = Folder::new();
    let metadata = &record(name, "gguf.json")["metadata"];
    folder.write("model.gguf", file_of(metadata, &tensors(name)).bytes());
    folder
}

/// The fixture of an architecture without other files, whose model reads texts of so many tokens.
pub fn roomy_alone(architecture: &str, positions: u32) -> Decoder {
    let name = format!("../gguf_only/{architecture}");
    let mut metadata = record(&name, "gguf.json")["metadata"].clone();
    let keys = metadata.as_object_mut().unwrap();
    for (key, typed) in keys.iter_mut() {
        if key.ends_with(".context_length") {
            typed[1] = positions.into();
        }
    }
    let folder = Folder::new();
    read(&folder.write("model.gguf", file_of(&metadata, &tensors(&name)).bytes())).unwrap()
}

pub fn read(path: &Path) -> Result<Decoder, Error> {
    let source = weights::open(&WeightFiles::Gguf(path.to_owned()))?;
    let blueprint = Blueprint::from_gguf(source.as_ref())?;
    let cancel = CancelToken::new();
    Decoder::load(
        &blueprint,
        source.as_ref(),
        &Device::Cpu,
        DType::F32,
        &cancel,
    )
}

/// What transformers says of a checkpoint, with the settings that its file stands for.
fn cases(name: &str) -> Vec<Value> {
    let own = record(name, "gguf.json")["cases"].as_array().cloned();
    own.unwrap_or_else(|| {
        let expected = record(name, "expected.json");
        expected["cases"].as_array().unwrap().clone()
    })
}

#[test]
fn files_say_what_their_checkpoints_say() {
    let mut failures = Vec::new();
    for name in converted() {
        let decoder = match read(&gguf(&name).path("model.gguf")) {
            Ok(decoder) => decoder,
            Err(error) => {
                failures.push(format!("{name}: {error}"));
                continue;
            }
        };
        for case in cases(&name) {
            let found = difference(&decoder, &case);
            failures.extend(found.map(|found| format!("{name}: {found}")));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// llama.cpp's logits and greedy tokens are the only reference that these have.
#[test]
fn files_of_architectures_without_others_say_what_llama_cpp_says() {
    let mut failures = Vec::new();
    for name in alone() {
        let decoder = read(&gguf(&name).path("model.gguf")).unwrap();
        for case in cases(&name) {
            let prompt = numbers(&case["prompt"]);
            let expected = numbers(&case["greedy"]);
            let rows = in_chunks(&decoder, &prompt, prompt.len());
            let rows: Vec<Vec<f32>> = rows.to_vec2().unwrap();
            let off = excess(&rows[prompt.len() - 1], &case["last"]);
            let most = if name.ends_with("codeshell") {
                GELU_TOLERANCES
            } else {
                1.0
            };
            let found = greedy(&decoder, &prompt, prompt.len() + expected.len());
            if off.is_nan() || off >= most || found[prompt.len()..] != expected {
                failures.push(format!("{name}: {off:.1} tolerances off"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The fixtures whose logits llama.cpp does not give as transformers does. It takes the two best experts of a group for
/// its worth, where DeepSeek V2 takes the best one, slides EXAONE 4's window in models of 64 layers alone, scales
/// Mellum's rotations inside of windows too, and has other norms and another router than Phi-3.5-MoE. It normalizes what
/// Mamba-2's states give in groups, where Granite and Mamba-2 itself normalize the whole; published files have one group.
const OTHERWISE: [&str; 6] = [
    "deepseek_v2",
    "exaone4",
    "granitemoehybrid",
    "mamba2",
    "mellum-sparse",
    "phimoe",
];
/// llama.cpp looks GELU up in a table of half precision.
const GELU: [&str; 6] = [
    "bloom",
    "gemma4",
    "gemma4_text",
    "gemma4_text-experts",
    "mpt",
    "mpt-clip",
];
const GELU_TOLERANCES: f64 = 100.0;

#[test]
fn files_say_what_llama_cpp_says() {
    let mut failures = Vec::new();
    for name in converted() {
        let given = record(&name, "gguf.json");
        let Some(logits) = given["llama_cpp"].as_array() else {
            continue;
        };
        let decoder = read(&gguf(&name).path("model.gguf")).unwrap();
        let pairs = cases(&name).into_iter().zip(logits);
        let off = pairs.map(|(case, expected)| {
            let prompt = numbers(&case["prompt"]);
            let rows = in_chunks(&decoder, &prompt, prompt.len());
            let rows: Vec<Vec<f32>> = rows.to_vec2().unwrap();
            excess(&rows[prompt.len() - 1], expected)
        });
        let worst = off.max_by(f64::total_cmp).unwrap();
        let most = if GELU.contains(&name.as_str()) {
            GELU_TOLERANCES
        } else {
            1.0
        };
        if (worst < most) == OTHERWISE.contains(&name.as_str()) {
            failures.push(format!("{name}: {worst:.1} tolerances off"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_architecture_passes_its_self_check() {
    let cancel = CancelToken::new();
    let mut failures = Vec::new();
    for name in converted().into_iter().chain(alone()) {
        let folder = gguf(&name);
        let files = WeightFiles::Gguf(folder.path("model.gguf"));
        let source = weights::open(&files).unwrap();
        let Ok(blueprint) = Blueprint::from_gguf(source.as_ref()) else {
            continue;
        };
        let decoder = read(&folder.path("model.gguf")).unwrap();
        let verdict = decoder.verify(source.as_ref(), &blueprint.names, &cancel);
        failures.extend(verdict.err().map(|error| format!("{name}: {error}")));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Keys that no model can do without.
const REQUIRED: [&str; 4] = [
    "block_count",
    "context_length",
    "embedding_length",
    "attention.head_count",
];

/// Without a key a file loads with the architecture's default, or is refused by the key's and its own name.
#[test]
fn missing_and_odd_keys_are_named() {
    let mut failures = Vec::new();
    for name in converted() {
        let (metadata, tensors) = (
            record(&name, "gguf.json")["metadata"].clone(),
            tensors(&name),
        );
        let architecture = metadata["general.architecture"][1].as_str().unwrap();
        let keys: Vec<String> = metadata.as_object().unwrap().keys().cloned().collect();
        let own = format!("{architecture}.");
        for key in keys.iter().filter(|key| key.starts_with(&own)) {
            let mut without = metadata.clone();
            without.as_object_mut().unwrap().remove(key);
            let mut odd = metadata.clone();
            odd[key] = serde_json::json!(["string", "many"]);
            let required = REQUIRED.contains(&&key[own.len()..]);
            for (kind, metadata, refused) in
                [("missing", without, required), ("odd", odd, required)]
            {
                let folder = Folder::new();
                let file = file_of(&metadata, &tensors).bytes();
                let path = folder.write("model.gguf", file);
                let source = weights::open(&WeightFiles::Gguf(path)).unwrap();
                match Blueprint::from_gguf(source.as_ref()) {
                    Ok(_) if !refused => {}
                    Ok(_) => failures.push(format!("{name}: {key} {kind}: loads")),
                    Err(error) => {
                        let text = error.to_string();
                        if !text.contains("model.gguf")
                            || (kind == "odd" || required) && !text.contains(key)
                        {
                            failures.push(format!("{name}: {key} {kind}: {text}"));
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Files were once written with the matrix of keys and values in one piece, and with the sizes of whole heads.
#[test]
fn older_files_of_latent_attention_are_read() {
    let name = "deepseek_v3";
    let config = record(name, "config.json");
    let size = |key: &str| config[key].as_u64().unwrap();
    let (heads, rank, value) = (
        size("num_attention_heads"),
        size("kv_lora_rank"),
        size("v_head_dim"),
    );
    let (plain, rotated) = (size("qk_nope_head_dim"), size("qk_rope_head_dim"));
    let mut metadata = record(name, "gguf.json")["metadata"].clone();
    for (key, number) in [
        ("head_count_kv", heads),
        ("key_length", plain + rotated),
        ("value_length", value),
    ] {
        metadata[format!("deepseek2.attention.{key}")][1] = number.into();
    }
    let keys = metadata.as_object_mut().unwrap();
    keys.retain(|key, _| !key.ends_with("_length_mla"));
    let mut stored = tensors(name);
    stored.retain(|(tensor, ..)| !tensor.contains("attn_k_b.") && !tensor.contains("attn_v_b."));
    let sources = checkpoint_tensors(name);
    for layer in 0..size("num_hidden_layers") {
        let source = format!("model.layers.{layer}.self_attn.kv_b_proj.weight");
        let shape = vec![rank, heads * (plain + value)];
        let whole = sources[&source].clone();
        stored.push((format!("blk.{layer}.attn_kv_b.weight"), shape, whole));
    }
    let folder = Folder::new();
    let path = folder.write("model.gguf", file_of(&metadata, &stored).bytes());
    let decoder = read(&path).unwrap();
    for case in cases(name) {
        assert_eq!(difference(&decoder, &case), None);
    }
}

/// Nemotron H without experts: of its fixture the converter says that it has some, since transformers' config does.
#[test]
fn dense_files_of_nemotron_h_are_read() {
    let name = "nemotron_h-dense";
    let config = record(name, "config.json");
    let inner = config["intermediate_size"].as_u64().unwrap();
    let kinds = config["layers_block_type"].as_array().unwrap().iter();
    let widths: Vec<u64> = kinds
        .map(|kind| if kind == "mlp" { inner } else { 0 })
        .collect();
    assert!(widths.contains(&inner));
    let given = record(name, "gguf.json")["metadata"].clone();
    let mut metadata = serde_json::Map::new();
    for (key, typed) in given.as_object().unwrap() {
        if !key.contains(".expert_") {
            metadata.insert(key.replace("nemotron_h_moe.", "nemotron_h."), typed.clone());
        }
    }
    metadata["general.architecture"][1] = "nemotron_h".into();
    metadata["nemotron_h.feed_forward_length"][1] = widths.into();
    let folder = Folder::new();
    let file = file_of(&metadata.into(), &tensors(name)).bytes();
    let decoder = read(&folder.write("model.gguf", file)).unwrap();
    assert!(decoder.config().experts.is_none());
    for case in cases(name) {
        assert_eq!(difference(&decoder, &case), None);
    }
}
