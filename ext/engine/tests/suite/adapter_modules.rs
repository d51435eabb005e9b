//! Adapters of every linear layer of every decoder family, against checkpoints into which they are merged.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use engine::models::decoder::config::RowOrder;
use engine::models::decoder::model::Logits;
use engine::models::decoder::{peft, Adapter, Blueprint, Decoder};
use engine::{CancelToken, Error};
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::weights;
use serde_json::{json, Map, Value};

use super::decoder::{numbers, read_checkpoint};
use super::seeded_gguf::{converted, gguf, read};
use super::seeded_tensors::elements;
use super::seeded_weights::{checkpoint, names, record, unread};
use super::weight_files::{f32_bytes, Folder};

/// A linear layer's name, and the shape of its weight.
pub type LinearLayer = (String, [usize; 2]);

const RANK: usize = 3;
const ALPHA: f32 = 6.0;
/// Absolute, and relative to the logit.
const TOLERANCE: f32 = 2e-4;

/// Parts of the names of modules of which transformers makes no linear layer, or which are not of the decoder.
#[rustfmt::skip]
const NO_LINEAR: &[&str] = &[
    "embed", "wte", "wpe", "norm", "ln_", "conv", "router", "altup_", "vision", "multi_modal",
];

/// A matrix as `[rows, columns]`.
struct Matrix {
    shape: [usize; 2],
    values: Vec<f32>,
}

impl Matrix {
    fn seeded(name: &str, shape: [usize; 2], spread: f64) -> Self {
        let tensor = json!({"shape": shape, "dtype": "F32", "center": 0.0, "spread": spread});
        Self {
            shape,
            values: floats(&elements(name, 5, &tensor)),
        }
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.values[row * self.shape[1] + column]
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// A safetensors file.
fn file(tensors: &[(String, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &data].concat()
}

/// The names of a fixture's linear layers, with the shapes of their weights.
pub fn linears(name: &str) -> Vec<LinearLayer> {
    let description = record(name, "tensors.json");
    let tensors = description["tensors"].as_object().unwrap().iter();
    let matrices = tensors.filter_map(|(tensor, entry)| {
        let module = tensor.strip_suffix(".weight")?;
        let shape = <[u32; 2]>::try_from(numbers(&entry["shape"])).ok()?;
        let named = NO_LINEAR.iter().any(|word| module.contains(word));
        let linear = !named && !unread(name, tensor);
        linear.then(|| (module.to_owned(), shape.map(|size| size as usize)))
    });
    matrices.collect()
}

/// The two matrices of a module: A `[rank, in]` and B `[out, rank]`.
fn factors(module: &str, [outputs, inputs]: [usize; 2]) -> [Matrix; 2] {
    [
        Matrix::seeded(&format!("{module}.lora_A"), [RANK, inputs], 0.6),
        Matrix::seeded(&format!("{module}.lora_B"), [outputs, RANK], 0.6),
    ]
}

fn adapter_folder(modules: &[LinearLayer]) -> Folder {
    seeded_adapter("", modules)
}

/// An adapter whose numbers are a function of the seed and the modules' names.
pub fn seeded_adapter(seed: &str, modules: &[LinearLayer]) -> Folder {
    let folder = Folder::new();
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA});
    folder.write("adapter_config.json", config.to_string());
    let tensors = modules.iter().flat_map(|(module, shape)| {
        let named = factors(&format!("{seed}{module}"), *shape);
        let named = named.into_iter().zip(["A", "B"]);
        named.map(move |(matrix, kind)| {
            let name = format!("base_model.model.{module}.lora_{kind}.weight");
            (name, matrix.shape.to_vec(), f32_bytes(&matrix.values))
        })
    });
    let tensors: Vec<_> = tensors.collect();
    folder.write("adapter_model.safetensors", file(&tensors));
    folder
}

/// The fixture's checkpoint with the updates of these modules added to their weights.
fn merged(name: &str, modules: &[(String, [usize; 2])]) -> Folder {
    let folder = checkpoint(name);
    let description = record(name, "tensors.json");
    let seed = description["seed"].as_u64().unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (tensor, entry) in description["tensors"].as_object().unwrap() {
        let mut bytes = elements(tensor, seed, entry);
        let own = tensor.strip_suffix(".weight");
        let found = modules.iter().find(|(module, _)| Some(&module[..]) == own);
        if let Some((module, shape)) = found {
            let [down, up] = factors(module, *shape);
            let mut weight = floats(&bytes);
            for (place, value) in weight.iter_mut().enumerate() {
                let (row, column) = (place / shape[1], place % shape[1]);
                let sum: f32 = (0..RANK)
                    .map(|at| up.at(row, at) * down.at(at, column))
                    .sum();
                *value += ALPHA / RANK as f32 * sum;
            }
            bytes = f32_bytes(&weight);
        }
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry =
            json!({"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": offsets});
        header.insert(tensor.clone(), entry);
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    let bytes = [&length[..], header.as_bytes(), &data].concat();
    folder.write("model.safetensors", bytes);
    folder
}

pub fn read_adapter(name: &str, decoder: &Decoder, folder: &Folder) -> Result<Adapter, Error> {
    let base = checkpoint(name);
    let raw = RawConfig::read(&base.path("config.json")).unwrap();
    let blueprint = Blueprint::from_config(&raw).unwrap();
    let cancel = CancelToken::new();
    let files = ModelFiles::open(folder.path("").to_str().unwrap(), None, &cancel).unwrap();
    peft::load(decoder, &blueprint.modules, "own", &files, &cancel)
}

/// The adapter of all these modules that it may have, and those modules.
pub fn widest(
    name: &str,
    decoder: &Decoder,
    mut modules: Vec<LinearLayer>,
) -> (Adapter, Vec<LinearLayer>) {
    loop {
        match read_adapter(name, decoder, &adapter_folder(&modules)) {
            Ok(adapter) => return (adapter, modules),
            Err(Error::UnsupportedModel(message)) => {
                let words = message.split("it changes ").nth(1);
                let refused = words.and_then(|words| words.split(',').next());
                let before = modules.len();
                modules.retain(|(module, _)| Some(&module[..]) != refused);
                assert!(modules.len() < before, "{name}: {message}");
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// The logits of a prompt and of single tokens after it.
fn logits(decoder: &Decoder, adapter: Option<Arc<Adapter>>, ids: &[u32]) -> Vec<f32> {
    let mut cache = decoder.new_cache().unwrap();
    cache.clear(decoder.rope_variant(ids.len()));
    cache.adapt(adapter);
    let cancel = CancelToken::new();
    let (prompt, rest) = ids.split_at(ids.len() - 2);
    let parts = [prompt, &rest[..1], &rest[1..]];
    let parts = parts.map(|part| {
        decoder
            .forward(part, &mut cache, Logits::All, &cancel)
            .unwrap()
    });
    let all = Tensor::cat(&parts, 0).unwrap();
    all.flatten_all().unwrap().to_vec1().unwrap()
}

fn off(found: &[f32], expected: &[f32]) -> f32 {
    let pairs = found.iter().zip(expected);
    let off = pairs.map(|(a, b)| (a - b).abs() / (1.0 + b.abs()));
    // NaN compares as the largest.
    off.max_by(f32::total_cmp).unwrap()
}

/// What of a fixture's linear layers an adapter can't change, and by how much its results are off.
fn compared(name: &str) -> Option<(Vec<String>, f32, f32)> {
    let folder = checkpoint(name);
    let decoder = read_checkpoint(&folder.path(""), DType::F32).ok()?;
    if decoder.config().state.is_some() {
        return None;
    }
    let all = linears(name);
    let (adapter, taken) = widest(name, &decoder, all.clone());
    let left = all.into_iter().filter(|module| !taken.contains(module));
    let left = left.map(|(module, _)| module).collect();
    let merged = read_checkpoint(&merged(name, &taken).path(""), DType::F32).unwrap();
    let ids = numbers(&record(name, "expected.json")["cases"][1]["prompt"]);
    let expected = logits(&merged, None, &ids);
    let found = logits(&decoder, Some(Arc::new(adapter)), &ids);
    let plain = logits(&decoder, None, &ids);
    Some((left, off(&found, &expected), off(&plain, &expected)))
}

/// Multi-head latent attention, fused matrices, experts, gates: an adapter of all of them at once gives what the
/// checkpoint gives whose weights it is added to.
#[test]
fn adapters_of_all_linear_layers_equal_merged_weights() {
    let (mut failures, mut count) = (Vec::new(), 0);
    for name in names() {
        let Some((left, off, plain)) = compared(&name) else {
            continue;
        };
        count += 1;
        if !left.is_empty() {
            failures.push(format!("{name}: an adapter can't change {left:?}"));
        }
        // The update must matter, or the comparison would show nothing.
        if off.is_nan() || off > TOLERANCE || plain < 10.0 * TOLERANCE {
            failures.push(format!("{name}: off by {off}, without the adapter {plain}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(count > 80, "{count}");
}

/// Files of llama.cpp's converter have other rows, other orders of rows and other matrices than the checkpoint that an
/// adapter was made for.
#[test]
fn adapters_give_the_same_on_gguf_files() {
    let (mut failures, mut count) = (Vec::new(), 0);
    for name in converted() {
        // Files that stand for other settings have no checkpoint to compare with.
        if record(&name, "gguf.json").get("cases").is_some() {
            continue;
        }
        let folder = checkpoint(&name);
        let decoder = read_checkpoint(&folder.path(""), DType::F32).unwrap();
        let (file, cancel) = (gguf(&name), CancelToken::new());
        let path = file.path("model.gguf");
        let converted = read(&path).unwrap();
        let source = weights::open(&WeightFiles::Gguf(path)).unwrap();
        let blueprint = Blueprint::from_gguf(source.as_ref()).unwrap();
        let (adapter, taken) = widest(&name, &decoder, linears(&name));
        let own = adapter_folder(&taken);
        let files = ModelFiles::open(own.path("").to_str().unwrap(), None, &cancel).unwrap();
        let changed = converted.config().row_order == RowOrder::Changed;
        let other = match peft::load(&converted, &blueprint.modules, "own", &files, &cancel) {
            Ok(_) if changed => {
                failures.push(format!("{name}: loads beside weights that it does not fit"));
                continue;
            }
            Ok(other) => other,
            Err(Error::UnsupportedModel(_)) if changed => continue,
            Err(error) => {
                failures.push(format!("{name}: {error}"));
                continue;
            }
        };
        count += 1;
        let ids = numbers(&record(&name, "expected.json")["cases"][1]["prompt"]);
        let expected = logits(&decoder, Some(Arc::new(adapter)), &ids);
        let found = logits(&converted, Some(Arc::new(other)), &ids);
        let off = off(&found, &expected);
        if off.is_nan() || off > TOLERANCE {
            failures.push(format!("{name}: off by {off}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(count > 30, "{count}");
}

/// Where transformers keeps all experts of a layer as one parameter, PEFT stacks their matrices, and wraps one parameter
/// around the other.
#[test]
fn adapters_of_stacked_experts_equal_those_of_single_ones() {
    for name in ["olmoe", "deepseek_v3"] {
        let folder = checkpoint(name);
        let decoder = read_checkpoint(&folder.path(""), DType::F32).unwrap();
        let experts = linears(name).into_iter();
        let experts: Vec<_> = experts
            .filter(|(name, _)| name.contains(".experts."))
            .collect();
        assert!(!experts.is_empty());
        let single = read_adapter(name, &decoder, &adapter_folder(&experts)).unwrap();
        let stacked = read_adapter(name, &decoder, &stacked_folder(&experts)).unwrap();
        let ids = numbers(&record(name, "expected.json")["cases"][1]["prompt"]);
        let [single, stacked] =
            [single, stacked].map(|adapter| logits(&decoder, Some(Arc::new(adapter)), &ids));
        let plain = logits(&decoder, None, &ids);
        assert!(off(&stacked, &single) < TOLERANCE, "{name}");
        assert!(off(&plain, &single) > 10.0 * TOLERANCE, "{name}");
    }
}

/// Llama 4 keeps the weights of its experts as `[experts, in, out]`, which PEFT takes for `[experts, out, in]`.
#[test]
fn adapters_of_llama_4s_experts_equal_merged_weights() {
    let name = "llama4_text";
    let description = record(name, "tensors.json");
    let seed = description["seed"].as_u64().unwrap();
    let (mut adapter, mut merged) = (Vec::new(), Vec::new());
    for (tensor, entry) in description["tensors"].as_object().unwrap() {
        let mut weight = floats(&elements(tensor, seed, entry));
        let shape: Vec<usize> = numbers(&entry["shape"])
            .iter()
            .map(|&n| n as usize)
            .collect();
        if let [count, rows, columns] = shape[..] {
            let [down, up] = [("A", [count * RANK, columns]), ("B", [rows, RANK * count])]
                .map(|(kind, shape)| Matrix::seeded(&format!("{tensor}.{kind}"), shape, 0.4));
            for (place, value) in weight.iter_mut().enumerate() {
                let (expert, rest) = (place / (rows * columns), place % (rows * columns));
                let (row, column) = (rest / columns, rest % columns);
                let products = (0..RANK).map(|at| {
                    up.at(row, at * count + expert) * down.at(expert * RANK + at, column)
                });
                *value += ALPHA / RANK as f32 * products.sum::<f32>();
            }
            let (layer, part) = tensor.rsplit_once('.').unwrap();
            let wrapped = if part == "gate_up_proj" {
                ".base_layer"
            } else {
                ""
            };
            for (kind, matrix) in [("A", down), ("B", up)] {
                let name = format!("base_model.model.{layer}{wrapped}.lora_{kind}.weight");
                adapter.push((name, matrix.shape.to_vec(), f32_bytes(&matrix.values)));
            }
        }
        merged.push((tensor.clone(), shape, f32_bytes(&weight)));
    }
    assert!(adapter.len() >= 4);
    let (base, own, whole) = (checkpoint(name), Folder::new(), checkpoint(name));
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA});
    own.write("adapter_config.json", config.to_string());
    own.write("adapter_model.safetensors", file(&adapter));
    whole.write("model.safetensors", file(&merged));
    let decoder = read_checkpoint(&base.path(""), DType::F32).unwrap();
    let adapter = Arc::new(read_adapter(name, &decoder, &own).unwrap());
    let ids = numbers(&record(name, "expected.json")["cases"][1]["prompt"]);
    let merged = read_checkpoint(&whole.path(""), DType::F32).unwrap();
    let expected = logits(&merged, None, &ids);
    let found = off(&logits(&decoder, Some(adapter), &ids), &expected);
    assert!(found < TOLERANCE, "{found}");
    assert!(off(&logits(&decoder, None, &ids), &expected) > 10.0 * TOLERANCE);
}

/// The adapter of `adapter_folder` as one of the parameters `gate_up_proj` and `down_proj` of all experts. Gate and up
/// of an expert have their own matrices A, so that the rank of the stack is twice as large.
fn stacked_folder(experts: &[(String, [usize; 2])]) -> Folder {
    let mut layers: Vec<&str> = experts
        .iter()
        .map(|(name, _)| name.split(".experts.").next().unwrap())
        .collect();
    layers.dedup();
    let mut tensors = Vec::new();
    for layer in layers {
        let own = experts
            .iter()
            .filter(|(name, _)| name.starts_with(&format!("{layer}.experts.")));
        let shape = |part: &str| {
            let found = own.clone().find(|(name, _)| name.ends_with(part));
            found.unwrap().1
        };
        let ([inner, hidden], [out, width]) = (shape("gate_proj"), shape("down_proj"));
        let count = own
            .clone()
            .filter(|(name, _)| name.ends_with("gate_proj"))
            .count();
        let both = [("gate_proj", 0), ("up_proj", 1)];
        let mut stack = |ending: &str, parts: &[(&str, usize)], [outputs, inputs]: [usize; 2]| {
            let rank = parts.len() * RANK;
            let mut down = vec![0f32; count * rank * inputs];
            let mut up = vec![0f32; outputs * rank * count];
            for number in 0..count {
                for &(part, place) in parts {
                    let rows = outputs / parts.len();
                    let module = format!("{layer}.experts.{number}.{part}");
                    let [a, b] = factors(&module, [rows, inputs]);
                    for at in 0..RANK {
                        let row = number * rank + place * RANK + at;
                        for column in 0..inputs {
                            down[row * inputs + column] = a.at(at, column);
                        }
                        for output in 0..rows {
                            let place = (place * rows + output) * rank + place * RANK + at;
                            up[place * count + number] = b.at(output, at);
                        }
                    }
                }
            }
            let name =
                |kind: &str| format!("base_model.model.{layer}.experts{ending}.lora_{kind}.weight");
            tensors.push((name("A"), vec![count * rank, inputs], f32_bytes(&down)));
            tensors.push((name("B"), vec![outputs, rank * count], f32_bytes(&up)));
        };
        stack(".base_layer", &both, [2 * inner, hidden]);
        stack("", &[("down_proj", 0)], [out, width]);
    }
    let folder = Folder::new();
    let config = json!({
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA,
        "alpha_pattern": {".*\\.gate_up_proj": 2.0 * ALPHA},
    });
    folder.write("adapter_config.json", config.to_string());
    folder.write("adapter_model.safetensors", file(&tensors));
    folder
}
