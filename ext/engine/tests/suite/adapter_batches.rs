//! Sequences with several adapters, and with none, in one forward pass: each gives the bits that it gives alone.

use std::sync::Arc;

use candle_core::DType;
use engine::generation::GenerationConfig;
use engine::models::decoder::model::Reading;
use engine::models::decoder::{Adapter, Decoder, KvPool, Sequence};
use engine::serving::ContextOverflow;
use engine::tasks::{AdapterFiles, Extras, Generation, LanguageModel, Request};
use engine::CancelToken;
use formats::files::model_files::ModelFiles;
use kernels::paged::KvType;

use super::adapter_modules::{linears, read_adapter, seeded_adapter, widest, LinearLayer};
use super::decoder::{read_checkpoint, tiny};
use super::scheduling::{counted, distribution, load_with, prompt};
use super::seeded_weights::{checkpoint, names};
use super::state_adapters::adapted;

/// Families of every kind of product, in the type that rounds after each of them.
const ROUNDED: &[&str] = &["deepseek_v3", "gpt_neo", "llama", "mamba2", "olmoe", "opt"];

/// How many tokens a sequence reads at first; then it reads one after the other.
const LENGTHS: [usize; 7] = [3, 5, 1, 2, 4, 1, 3];
const STEPS: usize = 3;

/// Three adapters: of all layers, of every other and of every third.
fn adapters(name: &str, decoder: &Decoder) -> Vec<Arc<Adapter>> {
    let modules = match decoder.config().state {
        Some(_) => adapted(name),
        None => widest(name, decoder, linears(name)).1,
    };
    let every = |step: usize, first: usize| -> Vec<LinearLayer> {
        let own = modules.iter().skip(first).step_by(step);
        own.cloned().collect()
    };
    let sets = [every(1, 0), every(2, 1), every(3, 1)];
    let seeds = ["one", "two", "three"];
    let read = sets.iter().zip(seeds).map(|(modules, seed)| {
        let folder = seeded_adapter(seed, modules);
        let adapter = read_adapter(name, decoder, &folder);
        Arc::new(adapter.unwrap_or_else(|error| panic!("{name}: {error}")))
    });
    read.collect()
}

struct Text {
    ids: Vec<u32>,
    sequence: Sequence,
    read: usize,
}

/// The logits of all texts in `STEPS` steps, computed `together` or each alone, as bits.
fn logits(decoder: &Decoder, of: &[Option<Arc<Adapter>>], together: bool) -> Vec<Vec<u32>> {
    let kind = KvType::of(decoder.dtype());
    let mut pool = KvPool::new(decoder.config(), kind, decoder.device(), 64 << 20).unwrap();
    let vocabulary = decoder.config().vocab_size as u32;
    let mut texts: Vec<Text> = of
        .iter()
        .enumerate()
        .map(|(number, adapter)| {
            let ids = prompt(LENGTHS[number] + STEPS - 1, number as u32);
            let ids: Vec<u32> = ids.into_iter().map(|id| id % vocabulary).collect();
            let variant = decoder.rope_variant(ids.len());
            let sequence = pool.begin(adapter.clone(), variant, &ids[..0]).unwrap();
            Text {
                ids,
                sequence,
                read: 0,
            }
        })
        .collect();
    let mut found: Vec<Vec<u32>> = vec![Vec::new(); texts.len()];
    for step in 0..STEPS {
        let size = if together { texts.len() } else { 1 };
        for (group, found) in texts.chunks_mut(size).zip(found.chunks_mut(size)) {
            let mut readings = Vec::new();
            for text in group {
                let count = match step {
                    0 => text.ids.len() + 1 - STEPS,
                    _ => 1,
                };
                assert!(pool.extend(&mut text.sequence, count).unwrap());
                readings.push(Reading {
                    tokens: &text.ids[text.read..text.read + count],
                    sequence: &mut text.sequence,
                    wanted: 1,
                });
                text.read += count;
            }
            let given = decoder
                .forward_batch(&mut readings, &mut pool, &CancelToken::new())
                .unwrap();
            let rows: Vec<Vec<f32>> = given.unwrap().to_vec2().unwrap();
            for (row, found) in rows.iter().zip(found) {
                assert!(row.iter().all(|logit| logit.is_finite()));
                found.extend(row.iter().map(|logit| logit.to_bits()));
            }
        }
    }
    found
}

fn check(name: &str, dtype: DType) -> Option<()> {
    let decoder = read_checkpoint(&checkpoint(name).path(""), dtype).ok()?;
    let [one, two, three] = <[Arc<Adapter>; 3]>::try_from(adapters(name, &decoder)).ok()?;
    let mixed = [
        None,
        None,
        Some(one.clone()),
        Some(two.clone()),
        Some(two),
        Some(three),
        Some(one),
    ];
    let (alone, together) = (
        logits(&decoder, &mixed, false),
        logits(&decoder, &mixed, true),
    );
    for (number, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert!(alone == together, "{name} in {dtype:?}: sequence {number}");
    }
    let plain = logits(&decoder, &[const { None }; 7], true);
    for (number, adapter) in mixed.iter().enumerate() {
        let changed = plain[number] != together[number];
        assert_eq!(changed, adapter.is_some(), "{name}: sequence {number}");
    }
    Some(())
}

/// Attention, MLPs, experts, latents, states, lanes, gates and heads of every family.
#[test]
fn every_family_gives_the_same_bits_with_other_adapters_beside() {
    let checked = names()
        .into_iter()
        .filter_map(|name| check(&name, DType::F32));
    assert!(checked.count() > 95);
}

#[test]
fn types_that_round_give_the_same_bits_with_other_adapters_beside() {
    for dtype in [DType::BF16, DType::F16] {
        for name in ROUNDED {
            check(name, dtype).unwrap_or_else(|| panic!("there is no fixture {name}"));
        }
    }
}

fn open(folder: &std::path::Path) -> ModelFiles {
    ModelFiles::open(folder.to_str().unwrap(), None, &CancelToken::new()).unwrap()
}

fn files(name: &str) -> AdapterFiles {
    AdapterFiles {
        name: name.to_owned(),
        files: open(&tiny("adapters").join(name)),
    }
}

fn with_adapters(names: &[&str]) -> Arc<LanguageModel> {
    let adapters: Vec<_> = names.iter().map(|name| files(name)).collect();
    let extras = Extras {
        adapters: &adapters,
        ..Extras::default()
    };
    Arc::new(load_with(&tiny("decoders/llama"), &extras).unwrap())
}

fn begin(model: &Arc<LanguageModel>, adapter: Option<&str>, seed: u32) -> Generation {
    let request = Request {
        prompt: prompt(6, seed),
        config: GenerationConfig {
            max_new_tokens: 8,
            temperature: 0.0,
            logprobs: Some(2),
            ..Default::default()
        },
        overflow: ContextOverflow::Error,
        adapter: model.adapter(adapter).unwrap(),
        constraint: None,
        afresh: true,
    };
    Generation::new(model.clone(), request).unwrap()
}

/// What was chosen, with the bits of its log probabilities.
fn chosen(generation: &Generation) -> Vec<(u32, u32)> {
    generation.finish(&CancelToken::new()).unwrap();
    generation.read(|run| {
        let choices = run.choices().iter();
        let pairs = choices.map(|one| (one.token, one.logprob.unwrap().to_bits()));
        pairs.collect()
    })
}

/// One adapter changes attention and MLPs, one layers by patterns, and one embeddings and the head in full.
#[test]
fn a_step_is_one_forward_pass_whatever_adapters_its_sequences_have() {
    let names = ["llama", "llama-patterns", "llama-embeddings"];
    let model = with_adapters(&names);
    let mut of: Vec<Option<&str>> = vec![None];
    of.extend(names.iter().map(|name| Some(*name)));
    of.extend([None, Some("llama")]);
    let alone: Vec<_> = of
        .iter()
        .enumerate()
        .map(|(seed, adapter)| chosen(&begin(&model, *adapter, seed as u32)))
        .collect();
    let (passes, size) = (
        counted(&model, "batches"),
        distribution(&model, "batch_size"),
    );
    let together: Vec<_> = of
        .iter()
        .enumerate()
        .map(|(seed, adapter)| begin(&model, *adapter, seed as u32))
        .collect();
    let all: Vec<&Generation> = together.iter().collect();
    Generation::finish_any(&all, &CancelToken::new()).unwrap();
    let found: Vec<_> = together.iter().map(chosen).collect();
    assert_eq!(found, alone);
    let passes = counted(&model, "batches") - passes;
    let longest = alone.iter().map(Vec::len).max().unwrap() as u64;
    assert_eq!(passes, longest, "forward passes");
    let size = distribution(&model, "batch_size") - size;
    let chosen: usize = alone.iter().map(Vec::len).sum();
    assert_eq!(size, chosen as f64, "sequences of all passes");
}
