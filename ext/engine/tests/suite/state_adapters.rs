//! LoRA adapters of decoders whose layers keep states, against checkpoints into which they were merged.

use std::collections::BTreeMap;

use engine::tasks::{AdapterFiles, LanguageModel, LoadOptions};
use engine::CancelToken;
use formats::files::model_files::ModelFiles;
use serde_json::{json, Map, Value};

use super::adapter_modules::LinearLayer;
use super::decoder::{numbers, read_checkpoint, worst};
use super::seeded_tensors::{elements, safetensors};
use super::seeded_weights::{checkpoint, names, record};
use super::weight_files::Folder;

const RANK: usize = 3;
/// alpha / rank
const SCALE: f32 = 1.5;
const TOLERANCE: f32 = 1e-4;

/// What of a layer cannot be adapted: experts, routers, what layers of a checkpoint add to a block that they share, and
/// the matrix that latent attention absorbs.
const LEFT_OUT: &[&str] = &[
    "expert",
    "router",
    ".mlp.gate.",
    ".feed_forward.gate.",
    ".block_sparse_moe.gate.",
    ".mixer.gate.",
    "shared_mlp",
    "adapter_list",
    "kv_b_proj",
    "latent_proj",
];

fn is_adapted(name: &str, tensor: &Value) -> bool {
    let in_layer = name.contains(".layers.") || name.contains(".blocks.");
    let matrix = tensor["shape"].as_array().unwrap().len() == 2 && name.ends_with(".weight");
    in_layer && matrix && !LEFT_OUT.iter().any(|part| name.contains(part))
}

/// The matrices of a fixture's layers that can be adapted.
pub fn adapted(name: &str) -> Vec<LinearLayer> {
    let description = record(name, "tensors.json");
    let tensors = description["tensors"].as_object().unwrap().iter();
    let tensors = tensors.filter(|(name, tensor)| is_adapted(name, tensor));
    let modules = tensors.map(|(name, tensor)| {
        let shape = <[u32; 2]>::try_from(numbers(&tensor["shape"])).unwrap();
        let module = name.strip_suffix(".weight").unwrap().to_owned();
        (module, shape.map(|size| size as usize))
    });
    modules.collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let numbers = bytes.chunks_exact(4);
    numbers
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    bytes.collect()
}

/// A safetensors file of f32 tensors.
fn file(tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, (shape, numbers)) in tensors {
        let start = data.len();
        data.extend(bytes(numbers));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &data,
    ]
    .concat()
}

/// An adapter of all that can be adapted, and the checkpoint with it merged.
fn adapter_and_merged(name: &str) -> (Folder, Folder, usize) {
    let description = record(name, "tensors.json");
    let seed = description["seed"].as_u64().unwrap();
    let (mut parts, mut merged, mut count) = (BTreeMap::new(), BTreeMap::new(), 0);
    for (tensor_name, tensor) in description["tensors"].as_object().unwrap() {
        let shape = tensor["shape"].as_array().unwrap().iter();
        let shape: Vec<usize> = shape.map(|size| size.as_u64().unwrap() as usize).collect();
        let mut weight = floats(&elements(tensor_name, seed, tensor));
        if is_adapted(tensor_name, tensor) {
            count += 1;
            let (outputs, inputs) = (shape[0], shape[1]);
            let module = tensor_name.strip_suffix(".weight").unwrap();
            let random = |part: &str, shape: [usize; 2]| {
                let spread = 0.8 / (shape[1] as f64).sqrt();
                let about =
                    json!({"dtype": "F32", "shape": shape, "center": 0.0, "spread": spread});
                floats(&elements(&format!("{module}{part}"), seed, &about))
            };
            let down = random("down", [RANK, inputs]);
            let up = random("up", [outputs, RANK]);
            for (row, weights) in weight.chunks_exact_mut(inputs).enumerate() {
                for (column, weight) in weights.iter_mut().enumerate() {
                    let products =
                        (0..RANK).map(|at| up[row * RANK + at] * down[at * inputs + column]);
                    *weight += SCALE * products.sum::<f32>();
                }
            }
            let lora = |part: &str| format!("base_model.model.{module}.lora_{part}.weight");
            parts.insert(lora("A"), (vec![RANK, inputs], down));
            parts.insert(lora("B"), (vec![outputs, RANK], up));
        }
        merged.insert(tensor_name.clone(), (shape, weight));
    }
    let (adapter, whole) = (Folder::new(), checkpoint(name));
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": SCALE * RANK as f32});
    adapter.write("adapter_config.json", config.to_string());
    adapter.write("adapter_model.safetensors", file(&parts));
    whole.write("model.safetensors", file(&merged));
    (adapter, whole, count)
}

fn open(folder: &Folder) -> ModelFiles {
    ModelFiles::open(folder.path("").to_str().unwrap(), None, &CancelToken::new()).unwrap()
}

fn load(folder: &Folder, adapter: Option<&Folder>) -> LanguageModel {
    let adapters: Vec<_> = adapter
        .into_iter()
        .map(|adapter| AdapterFiles {
            name: "own".to_owned(),
            files: open(adapter),
        })
        .collect();
    let options = LoadOptions::default();
    LanguageModel::load(&open(folder), &options, &adapters, &CancelToken::new()).unwrap()
}

#[test]
fn an_adapter_beside_the_weights_gives_what_merged_weights_give() {
    let mut checked = 0;
    for name in names() {
        let base = checkpoint(&name);
        let decoder = read_checkpoint(&base.path(""), candle_core::DType::F32).ok();
        if decoder.is_none_or(|decoder| decoder.config().state.is_none()) {
            continue;
        }
        let (adapter, merged, count) = adapter_and_merged(&name);
        let (base, merged) = (load(&base, Some(&adapter)), load(&merged, None));
        let ids: Vec<u32> = (0..33)
            .map(|at| 5 + (at * at * 3 + at * 11) % 260)
            .collect();
        let logprobs = |model: &LanguageModel, adapter| {
            model.logprobs(&ids, adapter, &CancelToken::new()).unwrap()
        };
        let expected = logprobs(&merged, None);
        let found = worst(&expected, &logprobs(&base, Some("own")));
        assert!(found < TOLERANCE, "{name}: {found}");
        let without = worst(&expected, &logprobs(&base, None));
        assert!(without > 100.0 * TOLERANCE, "{name}: {without}");
        assert!(count > 0, "{name}");
        checked += 1;
    }
    assert!(checked >= 20, "{checked}");
}

/// The weights that are merged are those of the fixture.
#[test]
fn a_file_of_numbers_equals_the_fixture() {
    let description = record("mamba", "tensors.json");
    let seed = description["seed"].as_u64().unwrap();
    let tensors = description["tensors"].as_object().unwrap().iter();
    let tensors = tensors.map(|(name, tensor)| {
        let shape = tensor["shape"].as_array().unwrap().iter();
        let shape = shape.map(|size| size.as_u64().unwrap() as usize).collect();
        (name.clone(), (shape, floats(&elements(name, seed, tensor))))
    });
    let length = |file: &[u8]| u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let (found, expected) = (
        file(&tensors.collect()),
        safetensors(&description, str::to_owned),
    );
    assert!(found[8 + length(&found)..] == expected[8 + length(&expected)..]);
}
