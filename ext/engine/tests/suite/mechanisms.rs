//! One seeded checkpoint per mechanism: half precision, damaged settings, missing tensors; and the heads of all types.

use candle_core::{DType, Device, Tensor};
use engine::models::decoder::model::Logits;
use engine::models::decoder::{Blueprint, Decoder};
use engine::models::families::supported;
use engine::models::heads::HeadKind;
use engine::{CancelToken, Error};
use formats::files::model_files::WeightFiles;
use formats::files::raw_config::RawConfig;
use formats::weights;
use serde_json::{json, Value};

use super::decoder::{in_chunks, numbers, read_checkpoint};
use super::seeded_tensors::safetensors;
use super::seeded_weights::{checkpoint, names, record, unread};

/// Attention sinks and clamped experts, chunks and layers without positions, several residual streams, shared keys, latent
/// attention, an indexer, differential attention, experts of queries, xIELU, ALiBi, stacks, shortcuts, output gates, heads
/// by layer, a softmax router with a shared expert, a norm without weights, sliding windows of parallel blocks.
pub const MECHANISMS: [&str; 17] = [
    "afmoe",
    "apertus",
    "bloom",
    "cohere2",
    "deepseek_v3",
    "deepseek_v32",
    "diffllama",
    "ernie4_5_moe",
    "gemma3n_text",
    "gemma4_text",
    "gpt_oss",
    "hrm_text",
    "jetmoe",
    "laguna",
    "llama4_text",
    "longcat_flash",
    "olmo",
];

/// By how much logits in half precision may differ, relative to the largest.
const HALF: [(DType, f32); 2] = [(DType::F16, 0.02), (DType::BF16, 0.2)];

#[test]
fn half_precision_stays_close() {
    let mut failures = Vec::new();
    for name in MECHANISMS {
        let folder = checkpoint(name);
        let ids = numbers(&record(name, "expected.json")["cases"][0]["prompt"]);
        let logits = |dtype| -> Vec<f32> {
            let decoder = read_checkpoint(&folder.path(""), dtype).unwrap();
            let all: Tensor = in_chunks(&decoder, &ids, ids.len());
            all.flatten_all().unwrap().to_vec1().unwrap()
        };
        let exact = logits(DType::F32);
        let largest = exact.iter().fold(0f32, |most, value| most.max(value.abs()));
        for (dtype, limit) in HALF {
            let pairs = logits(dtype).into_iter().zip(&exact);
            let off = pairs.map(|(a, b)| (a - b).abs() / largest);
            let off = off.max_by(f32::total_cmp).unwrap();
            if off.is_nan() || off > limit {
                failures.push(format!("{name} in {dtype:?}: off by {off}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// What loading says of a config and, where it loads, what computing does: anything but a panic.
fn outcome(name: &str, folder: &super::weight_files::Folder) -> Option<String> {
    match read_checkpoint(&folder.path(""), DType::F32) {
        Ok(decoder) => {
            let cancel = CancelToken::new();
            let cache = decoder.new_cache();
            let read = cache.map(|mut cache| {
                let first = decoder.forward(&[5, 6, 7], &mut cache, Logits::Last, &cancel);
                first.and_then(|_| decoder.forward(&[8], &mut cache, Logits::Last, &cancel))
            });
            // An error is as good as a result here.
            drop(read);
            None
        }
        Err(Error::CorruptModel(_) | Error::UnsupportedModel(_)) => None,
        Err(other) => Some(format!("{name}: {other:?}")),
    }
}

/// The places of all values of a config, those of nested objects included.
fn places(config: &Value) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (key, value) in config.as_object().into_iter().flatten() {
        found.push(vec![key.clone()]);
        let inner = places(value).into_iter();
        found.extend(inner.map(|rest| [vec![key.clone()], rest].concat()));
    }
    found
}

/// Settings that are negative, huge, of another type or missing are refused, or the model computes with them.
#[test]
fn damaged_settings_are_refused_or_used() {
    let huge = 1u64 << 40;
    let values = [
        json!(-1),
        json!(0),
        json!(huge),
        json!(0.3),
        json!("many"),
        json!([]),
        json!(null),
    ];
    let mut failures = Vec::new();
    for name in MECHANISMS {
        let folder = checkpoint(name);
        let config = record(name, "config.json");
        for place in places(&config) {
            for value in &values {
                let mut changed = config.clone();
                let pointer = format!("/{}", place.join("/"));
                *changed.pointer_mut(&pointer).unwrap() = value.clone();
                folder.write("config.json", changed.to_string());
                println!("{name}, {pointer}: {value}");
                failures.extend(outcome(&format!("{name}, {pointer}: {value}"), &folder));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A checkpoint without one of its tensors is damaged, unless it is a bias that other checkpoints omit too, and is never loaded
/// with something else in its place.
#[test]
fn missing_tensors_are_named() {
    let mut failures = Vec::new();
    for name in MECHANISMS {
        let folder = checkpoint(name);
        let description = record(name, "tensors.json");
        let tensors = description["tensors"].as_object().unwrap().iter();
        for (tensor, _) in tensors.filter(|(tensor, _)| !unread(name, tensor)) {
            let mut without = description.clone();
            without["tensors"].as_object_mut().unwrap().remove(tensor);
            folder.write("model.safetensors", safetensors(&without, str::to_owned));
            let optional = tensor.ends_with("bias") || tensor == "lm_head.weight";
            match read_checkpoint(&folder.path(""), DType::F32) {
                Err(Error::CorruptModel(_) | Error::UnsupportedModel(_)) => {}
                Ok(_) if optional => {}
                Ok(_) => failures.push(format!("{name} loads without {tensor}")),
                Err(other) => failures.push(format!("{name} without {tensor}: {other:?}")),
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A checkpoint with the matrix of a head loads it exactly where the type's tasks say so.
#[test]
fn heads_load_for_the_tasks_that_types_list() {
    let cancel = CancelToken::new();
    let table = supported();
    let mut failures = Vec::new();
    for name in names() {
        let folder = checkpoint(&name);
        let raw = RawConfig::read(&folder.path("config.json")).unwrap();
        let Ok(blueprint) = Blueprint::from_config(&raw) else {
            continue;
        };
        let model_type = raw.model_type().unwrap().unwrap().to_owned();
        let entries = table.iter().filter(|entry| entry.model_type == model_type);
        let tasks: Vec<_> = entries.flat_map(|entry| entry.tasks.clone()).collect();
        let mut description = record(&name, "tensors.json");
        let shape = [2, blueprint.config.hidden_size];
        let head = json!({"shape": shape, "dtype": "F32", "center": 0.0, "spread": 1.0});
        description["tensors"]["score.weight"] = head;
        let path = folder.write(
            "model.safetensors",
            safetensors(&description, str::to_owned),
        );
        let source = weights::open(&WeightFiles::Safetensors(vec![path])).unwrap();
        let (device, dtype) = (Device::Cpu, DType::F32);
        let decoder =
            Decoder::load_body(&blueprint, source.as_ref(), &device, dtype, false, &cancel);
        let decoder = decoder.unwrap();
        for (kind, task) in [
            (HeadKind::Sequence, "classifier"),
            (HeadKind::Token, "ner"),
            (HeadKind::MaskedLanguage, "masked_lm"),
        ] {
            let head = decoder
                .load_head(&blueprint, source.as_ref(), kind)
                .unwrap();
            let outputs = head.map(|head| head.outputs());
            if outputs != tasks.contains(&task).then_some(2) {
                failures.push(format!("{name}: {task} {outputs:?}, listed {tasks:?}"));
            }
        }
        if !["llm", "embedding"].iter().all(|task| tasks.contains(task)) {
            failures.push(format!("{name}: {tasks:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
