//! Every decoder family against what transformers says of the same tiny checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engine::models::decoder::model::Logits;
use engine::models::decoder::{Blueprint, Decoder};
use engine::CancelToken;
use formats::files::model_files::WeightFiles;
use formats::files::raw_config::RawConfig;
use formats::weights::{self, WeightSource};

use super::tiny_folder::tiny;

const LOGPROB_TOLERANCE: f32 = 1e-3;

/// What the reference says of a checkpoint.
pub struct Expectations {
    pub sequences: Vec<Vec<u32>>,
    pub prompt_lengths: Vec<usize>,
    tensors: Arc<dyn WeightSource>,
}

struct Fixture {
    decoder: Decoder,
    expectations: Expectations,
}

pub fn folders(kind: &str) -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::fs::read_dir(tiny(kind))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    folders
}

impl Expectations {
    pub fn read(folder: &Path) -> Self {
        let record = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let sequences = record["sequences"].as_array().unwrap();
        let lengths = numbers(&record["prompt_lengths"]);
        Self {
            sequences: sequences.iter().map(numbers).collect(),
            prompt_lengths: lengths.into_iter().map(|n| n as usize).collect(),
            tensors: open(folder.join("expected.safetensors")),
        }
    }

    /// The log probabilities of all tokens but the first of a sequence.
    pub fn logprobs(&self, index: usize) -> Vec<f32> {
        let name = format!("logprobs.{index}");
        let tensor = self
            .tensors
            .tensor(&name, Some(DType::F32), &Device::Cpu)
            .unwrap();
        tensor.to_vec1().unwrap()
    }
}

pub fn numbers(value: &serde_json::Value) -> Vec<u32> {
    let values = value.as_array().unwrap().iter();
    values.map(|v| v.as_u64().unwrap() as u32).collect()
}

fn open(path: PathBuf) -> Arc<dyn WeightSource> {
    weights::open(&WeightFiles::Safetensors(vec![path])).unwrap()
}

/// The decoder of a folder with `config.json` and `model.safetensors`.
pub fn read_checkpoint(folder: &Path, dtype: DType) -> engine::Result<Decoder> {
    let raw = RawConfig::read(&folder.join("config.json"))?;
    let files = WeightFiles::Safetensors(vec![folder.join("model.safetensors")]);
    Decoder::load(
        &Blueprint::from_config(&raw)?,
        weights::unpacked(weights::open(&files)?, &raw)?.as_ref(),
        &Device::Cpu,
        dtype,
        &CancelToken::new(),
    )
}

fn load(folder: &Path, dtype: DType) -> Fixture {
    let decoder = read_checkpoint(folder, dtype);
    Fixture {
        decoder: decoder.unwrap_or_else(|error| panic!("{}: {error}", folder.display())),
        expectations: Expectations::read(folder),
    }
}

fn argmax(row: &[f32]) -> u32 {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as u32
}

pub fn logprobs(logits: &Tensor, next: &[u32]) -> Vec<f32> {
    let rows: Vec<Vec<f32>> = logits.to_vec2().unwrap();
    rows.iter()
        .zip(next)
        .map(|(row, &token)| row[token as usize] - engine::generation::sampler::log_sum_exp(row))
        .collect()
}

/// The logits of a whole sequence given in pieces of `chunk` tokens.
pub fn in_chunks(decoder: &Decoder, ids: &[u32], chunk: usize) -> Tensor {
    let mut cache = decoder.new_cache().unwrap();
    cache.clear(decoder.rope_variant(ids.len()));
    let cancel = CancelToken::new();
    let parts: Vec<Tensor> = ids
        .chunks(chunk)
        .map(|part| {
            decoder
                .forward(part, &mut cache, Logits::All, &cancel)
                .unwrap()
        })
        .collect();
    Tensor::cat(&parts, 0).unwrap()
}

pub fn worst(expected: &[f32], actual: &[f32]) -> f32 {
    let differences = expected.iter().zip(actual).map(|(a, b)| (a - b).abs());
    assert_eq!(expected.len(), actual.len());
    differences.fold(0.0, f32::max)
}

#[test]
fn logprobs_equal_the_reference_at_once_in_chunks_and_one_by_one() {
    for folder in folders("decoders") {
        let fixture = load(&folder, DType::F32);
        for (index, ids) in fixture.expectations.sequences.iter().enumerate() {
            let expected = fixture.expectations.logprobs(index);
            let whole = in_chunks(&fixture.decoder, ids, ids.len());
            let off = worst(&expected, &logprobs(&whole, &ids[1..]));
            assert!(off < LOGPROB_TOLERANCE, "{}: {off}", folder.display());
            for chunk in [1, 3, 8] {
                let chunked = in_chunks(&fixture.decoder, ids, chunk);
                let off = worst(&expected, &logprobs(&chunked, &ids[1..]));
                assert!(
                    off < LOGPROB_TOLERANCE,
                    "{} by {chunk}: {off}",
                    folder.display()
                );
            }
        }
    }
}

/// `length` tokens: those given and the likeliest ones after them, read once each.
pub fn greedy(decoder: &Decoder, prompt: &[u32], length: usize) -> Vec<u32> {
    let mut sequence = prompt.to_vec();
    let mut cache = decoder.new_cache().unwrap();
    while sequence.len() < length {
        let rope_variant = decoder.rope_variant(sequence.len());
        if cache.rope_variant() != rope_variant {
            cache.clear(rope_variant);
        }
        let new = &sequence[cache.length()..];
        let logits = decoder
            .forward(new, &mut cache, Logits::Last, &CancelToken::new())
            .unwrap();
        sequence.push(argmax(&logits.to_vec2::<f32>().unwrap()[0]));
    }
    sequence
}

#[test]
fn greedy_tokens_equal_the_reference() {
    for folder in folders("decoders") {
        let fixture = load(&folder, DType::F32);
        let expected = &fixture.expectations;
        for (ids, &length) in expected.sequences.iter().zip(&expected.prompt_lengths) {
            let sequence = greedy(&fixture.decoder, &ids[..length], ids.len());
            assert_eq!(&sequence, ids, "{}", folder.display());
        }
    }
}

#[test]
fn a_cancelled_forward_leaves_the_cache_usable() {
    let fixture = load(&tiny("decoders/mistral"), DType::F32);
    let ids = &fixture.expectations.sequences[4];
    let mut cache = fixture.decoder.new_cache().unwrap();
    let (cancel, running) = (CancelToken::new(), CancelToken::new());
    cancel.cancel();
    let decoder = &fixture.decoder;
    decoder
        .forward(&ids[..12], &mut cache, Logits::Last, &running)
        .unwrap();
    assert!(decoder
        .forward(&ids[12..], &mut cache, Logits::Last, &cancel)
        .is_err());
    assert_eq!(cache.length(), 12);
    let after = decoder
        .forward(&ids[12..], &mut cache, Logits::Last, &running)
        .unwrap();
    let whole = in_chunks(decoder, ids, ids.len());
    let last = whole.narrow(0, ids.len() - 1, 1).unwrap();
    let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(worst(&flat(&last), &flat(&after)) < 1e-4);
}

#[test]
fn half_precision_stays_close() {
    for dtype in [DType::BF16, DType::F16] {
        for name in ["llama", "gemma3", "gpt2"] {
            let folder = tiny("decoders").join(name);
            let fixture = load(&folder, dtype);
            let full = load(&folder, DType::F32);
            let ids = &fixture.expectations.sequences[4];
            let flat = |t: Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let (a, b) = (
                flat(in_chunks(&fixture.decoder, ids, 7)),
                flat(in_chunks(&full.decoder, ids, 7)),
            );
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
            let cosine = dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt();
            assert!(cosine > 0.999, "{name} {dtype:?}: {cosine}");
        }
    }
}

#[test]
fn caches_grow_page_by_page() {
    let bytes_after = |name: &str, tokens: usize| {
        let fixture = load(&tiny("decoders").join(name), DType::F32);
        let mut cache = fixture.decoder.new_cache().unwrap();
        let ids: Vec<u32> = (0..tokens as u32).map(|n| 4 + n % 200).collect();
        for part in ids.chunks(50) {
            fixture
                .decoder
                .hidden_states(part, &mut cache, &CancelToken::new())
                .unwrap();
        }
        assert_eq!(cache.length(), tokens);
        cache.bytes()
    };
    let first = bytes_after("llama", 1);
    assert!(first > 0);
    assert_eq!(bytes_after("llama", 200), first);
    assert!(bytes_after("llama", 600) >= 2 * first);
}
