//! A sequence's logits are the same bit for bit alone, in a batch of any mixture, with its prompt
//! prefilled whole or in chunks, and from the prefix cache: for every family and every kind of weights.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use engine::generation::random::Random;
use engine::models::decoder::model::Reading;
use engine::models::decoder::{Blueprint, Decoder, KvPool, Sequence};
use engine::CancelToken;
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::weights;
use kernels::paged::KvType;

use super::decoder::folders;
use super::tiny_folder::tiny;

const LENGTH: usize = 90;

fn dense(folder: &Path, dtype: DType) -> Decoder {
    let raw = RawConfig::read(&folder.join("config.json")).unwrap();
    let blueprint = Blueprint::from_config(&raw).unwrap();
    let files = WeightFiles::Safetensors(vec![folder.join("model.safetensors")]);
    let source = weights::open(&files).unwrap();
    let cancel = CancelToken::new();
    Decoder::load(&blueprint, source.as_ref(), &Device::Cpu, dtype, &cancel).unwrap()
}

fn quantized(path: &Path) -> Decoder {
    let cancel = CancelToken::new();
    let files = ModelFiles::open(path.to_str().unwrap(), None, &cancel).unwrap();
    let source = weights::open(&files.weights(None, &cancel).unwrap()).unwrap();
    let blueprint = Blueprint::from_gguf(source.as_ref()).unwrap();
    Decoder::load(
        &blueprint,
        source.as_ref(),
        &Device::Cpu,
        DType::F32,
        &cancel,
    )
    .unwrap()
}

fn below(random: &mut Random, limit: usize) -> usize {
    (random.next_u64() % limit.max(1) as u64) as usize
}

fn pool(decoder: &Decoder, kind: KvType) -> KvPool {
    KvPool::new(decoder.config(), kind, decoder.stages(), 1 << 30).unwrap()
}

fn rows(logits: &Tensor) -> Vec<Vec<u32>> {
    let rows: Vec<Vec<f32>> = logits.to_vec2().unwrap();
    let bits = |row: &Vec<f32>| row.iter().map(|value| value.to_bits()).collect();
    rows.iter().map(bits).collect()
}

/// The logits of every token, read one after the other, nothing else being there.
fn alone(decoder: &Decoder, kind: KvType, ids: &[u32]) -> Vec<Vec<u32>> {
    let mut pool = pool(decoder, kind);
    let variant = decoder.rope_variant(ids.len());
    let mut sequence = pool.begin(None, variant, &[]).unwrap();
    let mut all = Vec::new();
    for part in ids.chunks(1) {
        assert!(pool.extend(&mut sequence, 1).unwrap());
        let reading = Reading {
            tokens: part,
            sequence: &mut sequence,
            wanted: 1,
        };
        let logits = decoder.forward_batch(&mut [reading], &mut pool, &CancelToken::new());
        all.extend(rows(&logits.unwrap().unwrap()));
    }
    all
}

/// Reads all of the texts in random parts and mixtures, some from a beginning that another has read.
/// Where a text's logits are not the expected ones, says which and where.
fn mixed(
    decoder: &Decoder,
    kind: KvType,
    texts: &[Vec<u32>],
    random: &mut Random,
    expected: &[Vec<Vec<u32>>],
) -> Result<(), String> {
    let mut pool = pool(decoder, kind);
    let mut waiting: Vec<usize> = (0..texts.len()).collect();
    let mut running: Vec<(usize, Sequence)> = Vec::new();
    while !(waiting.is_empty() && running.is_empty()) {
        if !waiting.is_empty() && (running.is_empty() || below(random, 3) == 0) {
            let text = waiting.remove(below(random, waiting.len()));
            let ids = &texts[text];
            let variant = decoder.rope_variant(ids.len());
            let sequence = pool.begin(None, variant, &ids[..ids.len() - 1]).unwrap();
            running.push((text, sequence));
        }
        let mut parts = Vec::new();
        for (text, sequence) in &mut running {
            let ids = &texts[*text];
            let left = ids.len() - sequence.length();
            let count = match below(random, 3) {
                0 => 1,
                1 => 1 + below(random, left.min(7)),
                _ => left,
            };
            assert!(pool.extend(sequence, count).unwrap());
            let start = sequence.length();
            parts.push((*text, start, &ids[start..start + count]));
        }
        let mut readings: Vec<Reading<'_>> = running
            .iter_mut()
            .zip(&parts)
            .map(|((_, sequence), (_, _, tokens))| Reading {
                tokens,
                sequence,
                wanted: tokens.len(),
            })
            .collect();
        let logits = decoder.forward_batch(&mut readings, &mut pool, &CancelToken::new());
        let mut found = rows(&logits.unwrap().unwrap()).into_iter();
        for (text, start, tokens) in parts {
            let wanted = &expected[text][start..start + tokens.len()];
            for (at, wanted) in wanted.iter().enumerate() {
                if found.next().as_ref() != Some(wanted) {
                    return Err(format!("text {text} differs at {}", start + at));
                }
            }
        }
        let (over, going): (Vec<_>, Vec<_>) = running
            .into_iter()
            .partition(|(text, sequence)| sequence.length() == texts[*text].len());
        over.into_iter()
            .for_each(|(_, sequence)| pool.release(sequence));
        running = going;
        running
            .iter_mut()
            .for_each(|(_, sequence)| pool.share(sequence));
    }
    assert_eq!(pool.book().used(), 0);
    Ok(())
}

/// Texts of which some share a prefix.
fn texts(decoder: &Decoder, random: &mut Random) -> Vec<Vec<u32>> {
    let vocabulary = decoder.config().vocab_size;
    let longest = LENGTH.min(decoder.max_positions());
    let mut texts: Vec<Vec<u32>> = Vec::new();
    for _ in 0..5 {
        let length = 2 + below(random, longest - 2);
        let mut ids: Vec<u32> = (0..length)
            .map(|_| below(random, vocabulary) as u32)
            .collect();
        if !texts.is_empty() && below(random, 2) == 0 {
            let other: &Vec<u32> = &texts[below(random, texts.len())];
            let common = below(random, other.len().min(length));
            ids[..common].copy_from_slice(&other[..common]);
        }
        texts.push(ids);
    }
    texts
}

/// What is not the same, if anything.
fn check(decoder: &Decoder, kind: KvType, runs: usize, name: &str) -> Option<String> {
    let mut random = Random::new(name.bytes().map(u64::from).sum());
    let texts = texts(decoder, &mut random);
    let expected: Vec<_> = texts.iter().map(|ids| alone(decoder, kind, ids)).collect();
    let mut failed = (0..runs).map(|_| mixed(decoder, kind, &texts, &mut random, &expected));
    let failure = failed.find_map(Result::err)?;
    Some(format!("{name}: {failure}"))
}

/// What a decoder in f32 says otherwise in some company, if anything.
pub fn in_any_company(decoder: &Decoder, runs: usize, name: &str) -> Option<String> {
    check(decoder, KvType::F32, runs, name)
}

fn named(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn every_family_says_the_same_in_any_company() {
    let folders = folders("decoders");
    let failures = folders
        .iter()
        .filter_map(|folder| check(&dense(folder, DType::F32), KvType::F32, 6, &named(folder)));
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_kind_of_weights_says_the_same_in_any_company() {
    let mut failures = Vec::new();
    for folder in ["llama", "gemma2", "qwen3", "mixtral"] {
        for dtype in [DType::BF16, DType::F16] {
            let decoder = dense(&tiny("decoders").join(folder), dtype);
            let name = format!("{folder} {dtype:?}");
            failures.extend(check(&decoder, KvType::of(dtype), 4, &name));
        }
    }
    for folder in folders("gguf-decoders") {
        failures.extend(check(&quantized(&folder), KvType::F32, 3, &named(&folder)));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_kind_of_keys_and_values_says_the_same_in_any_company() {
    let decoder = dense(&tiny("decoders/llama"), DType::F32);
    for kind in [KvType::F16, KvType::Bf16, KvType::Q8_0] {
        assert_eq!(check(&decoder, kind, 6, &format!("{kind:?}")), None);
    }
}
