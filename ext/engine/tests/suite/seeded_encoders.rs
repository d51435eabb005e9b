//! Every encoder type against what transformers says of a checkpoint with the same seeded weights, bare and with each
//! of its heads.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engine::models::encoder::{Blueprint, Encoder};
use engine::models::heads::HeadKind;
use engine::nn::PackedSequences;
use engine::CancelToken;
use formats::files::model_files::WeightFiles;
use formats::files::raw_config::RawConfig;
use formats::weights::{self, WeightSource};
use serde_json::{json, Map, Value};

use super::seeded_tensors::safetensors;
use super::weight_files::Folder;

/// Absolute, and relative to the number.
const TOLERANCE: f64 = 1e-4;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/seeded_encoders")
}

/// The names of all fixtures: model types, some with a variant after a dash.
fn names() -> Vec<String> {
    let folders = std::fs::read_dir(root()).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn record(name: &str, file: &str) -> Value {
    let text = std::fs::read_to_string(root().join(name).join(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A checkpoint with one of its heads, or bare.
struct Checkpoint {
    blueprint: Blueprint,
    source: Arc<dyn WeightSource>,
    _folder: Folder,
}

impl Checkpoint {
    fn new(name: &str, head: &str) -> Result<Self, String> {
        let expected = record(name, "expected.json");
        let prefix = expected[head]["prefix"].as_str().unwrap_or("");
        let mut tensors = Map::new();
        for (name, tensor) in expected["body"]["tensors"].as_object().unwrap() {
            tensors.insert(format!("{prefix}{name}"), tensor.clone());
        }
        tensors.extend(expected[head]["tensors"].as_object().unwrap().clone());
        let folder = Folder::new();
        folder.write("config.json", record(name, "config.json").to_string());
        let description = json!({"seed": expected["seed"], "tensors": tensors});
        let bytes = safetensors(&description, str::to_owned);
        folder.write("model.safetensors", bytes);
        let raw = RawConfig::read(&folder.path("config.json")).unwrap();
        let blueprint = Blueprint::from_config(&raw).map_err(|error| error.to_string())?;
        let files = WeightFiles::Safetensors(vec![folder.path("model.safetensors")]);
        Ok(Self {
            blueprint,
            source: weights::open(&files).unwrap(),
            _folder: folder,
        })
    }

    fn load(&self) -> Result<Encoder, String> {
        let (device, cancel) = (Device::Cpu, CancelToken::new());
        let source = self.source.as_ref();
        Encoder::load(&self.blueprint, source, &device, DType::F32, false, &cancel)
            .map_err(|error| error.to_string())
    }
}

fn numbers(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn pushed(sequences: &mut PackedSequences, case: &Value) {
    let types = case.get("types").map(numbers);
    let ids = numbers(&case["ids"]);
    sequences.push(&ids, types.as_deref()).unwrap();
}

/// The largest difference of rows from those that are expected, as a multiple of the tolerance.
fn excess(found: &[Vec<f32>], expected: &Value) -> f64 {
    let mut worst = 0f64;
    for (row, expected) in expected.as_object().unwrap() {
        let found = &found[row.parse::<usize>().unwrap()];
        for (found, expected) in found.iter().zip(expected.as_array().unwrap()) {
            let expected = expected.as_f64().unwrap();
            let off = (f64::from(*found) - expected).abs();
            let off = off / (TOLERANCE + TOLERANCE * expected.abs());
            worst = if off.is_nan() {
                f64::INFINITY
            } else {
                worst.max(off)
            };
        }
    }
    worst
}

const HEADS: [(&str, Option<HeadKind>); 5] = [
    ("body", None),
    ("masked", Some(HeadKind::MaskedLanguage)),
    ("sequence", Some(HeadKind::Sequence)),
    ("token", Some(HeadKind::Token)),
    ("question", Some(HeadKind::Question)),
];

/// How far all cases of a head are off, each alone and all in one batch.
fn compare(name: &str, (head, kind): (&str, Option<HeadKind>)) -> Result<f64, String> {
    let expected = record(name, "expected.json");
    let cases = expected[head]["cases"].as_array().unwrap();
    let checkpoint = Checkpoint::new(name, head)?;
    let mut encoder = checkpoint.load()?;
    let top = match kind {
        Some(kind) => {
            let head = encoder.load_head(&checkpoint.blueprint, checkpoint.source.as_ref(), kind);
            let head = head.map_err(|error| error.to_string())?;
            Some(head.ok_or_else(|| format!("has no {}", kind.name()))?)
        }
        None => None,
    };
    let rows = |sequences: &PackedSequences| -> Result<Tensor, String> {
        let hidden = encoder.forward(sequences, &CancelToken::new());
        let hidden = hidden.map_err(|error| error.to_string())?;
        let rows = match (&top, kind) {
            (Some(top), Some(HeadKind::Sequence)) => top.sequence_logits(&hidden, sequences),
            (Some(top), _) => top.logits(&hidden),
            (None, _) => Ok(hidden),
        };
        rows.map_err(|error| error.to_string())
    };
    let mut together = PackedSequences::new();
    cases.iter().for_each(|case| pushed(&mut together, case));
    let all: Vec<Vec<f32>> = rows(&together)?.to_vec2().unwrap();
    let (mut first, mut worst) = (0, 0f64);
    for case in cases {
        let mut alone = PackedSequences::new();
        pushed(&mut alone, case);
        let found: Vec<Vec<f32>> = rows(&alone)?.to_vec2().unwrap();
        worst = worst.max(excess(&found, &case["rows"]));
        worst = worst.max(excess(&all[first..first + found.len()], &case["rows"]));
        first += found.len();
    }
    Ok(worst)
}

#[test]
fn states_and_logits_equal_the_reference_alone_and_in_a_batch() {
    let mut failures = Vec::new();
    for name in names() {
        let expected = record(&name, "expected.json");
        for (head, kind) in HEADS {
            if expected.get(head).is_none() {
                continue;
            }
            match compare(&name, (head, kind)) {
                Ok(worst) if worst < 1.0 => println!("{name}, {head}: {worst:.3} tolerances"),
                Ok(worst) => failures.push(format!("{name}, {head}: off by {worst:.1} tolerances")),
                Err(error) => failures.push(format!("{name}, {head}: {error}")),
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_type_passes_its_self_check() {
    let mut failures = Vec::new();
    for name in names() {
        let checkpoint = Checkpoint::new(&name, "body").unwrap();
        let encoder = checkpoint.load().unwrap();
        let source = checkpoint.source.as_ref();
        let verdict = encoder.verify(&checkpoint.blueprint, source, &CancelToken::new());
        failures.extend(verdict.err().map(|error| format!("{name}: {error}")));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
