//! Sequences with several adapters, and with none, in one forward pass: each gives the bits that it gives alone.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use engine::generation::GenerationConfig;
use engine::models::decoder::model::Reading;
use engine::models::decoder::{Adapter, Decoder, KvPool, Sequence};
use engine::serving::ContextOverflow;
use engine::tasks::{AdapterFiles, Extras, Generation, LanguageModel, Request};
use engine::{CancelToken, Error};
use formats::files::model_files::ModelFiles;
use kernels::paged::KvType;

use super::adapter_modules::{linears, read_adapter, seeded_adapter, widest, LinearLayer};
use super::decoder::read_checkpoint;
use super::scheduling::{counted, distribution, load_with, prompt, tokens};
use super::seeded_weights::{checkpoint, names};
use super::state_adapters::adapted;
use super::tiny_folder::tiny;
use super::weight_files::Folder;

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
    // Some fixtures have a single one.
    let sets = if modules.len() > 1 {
        [every(1, 0), every(2, 1), every(3, 1)]
    } else {
        [every(1, 0), every(1, 0), every(1, 0)]
    };
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
    let mut pool = KvPool::new(decoder.config(), kind, decoder.stages(), 64 << 20).unwrap();
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
        instructions: 0,
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

#[test]
fn adapters_come_and_go_while_others_generate() {
    let model = with_adapters(&["llama"]);
    let cancel = CancelToken::new();
    let base = chosen(&begin(&model, None, 1));
    let one = chosen(&begin(&model, Some("llama"), 1));
    let attach = |name: &str, folder: &str| {
        let files = AdapterFiles {
            name: name.to_owned(),
            files: open(&tiny("adapters").join(folder)),
        };
        let adapter = model.read_adapter(&files, &cancel)?;
        model.attach_adapter(adapter)
    };
    attach("two", "llama-patterns").unwrap();
    let two = chosen(&begin(&model, Some("two"), 1));
    assert!(base != one && one != two && base != two);
    // Those that were begun end with what they were begun with.
    let running = [None, Some("llama"), Some("two")].map(|name| begin(&model, name, 1));
    for run in &running {
        run.step(&cancel).unwrap();
    }
    model.detach_adapter("two").unwrap();
    model.detach_adapter("llama").unwrap();
    assert!(model.adapters().is_empty());
    assert_eq!(
        running.each_ref().map(chosen),
        [base, one.clone(), two.clone()]
    );
    // Another adapter of the same name finds nothing of the one before in the prefix cache.
    attach("two", "llama").unwrap();
    assert_eq!(chosen(&begin(&model, Some("two"), 1)), one);
    let taken = attach("two", "llama-patterns").unwrap_err().to_string();
    assert!(taken.contains("already"), "{taken}");
    let unknown = model.detach_adapter("one").err().unwrap().to_string();
    assert!(unknown.contains("loaded are: two"), "{unknown}");
    for (folder, part) in [("llama-dora", "use_dora"), ("gpt2", "attn.c_attn")] {
        match attach("bad", folder) {
            Err(Error::UnsupportedModel(message)) => assert!(message.contains(part), "{message}"),
            other => panic!("{other:?}"),
        }
    }
    let names: Vec<_> = model
        .adapters()
        .iter()
        .map(|one| one.name.clone())
        .collect();
    assert_eq!(names, ["two"]);
    let before = model.adapter_inventory().unwrap().bytes();
    attach("three", "llama-patterns").unwrap();
    assert!(model.adapter_inventory().unwrap().bytes() > before);
    model.detach_adapter("three").unwrap();
    assert_eq!(model.adapter_inventory().unwrap().bytes(), before);
}

#[test]
fn an_adapter_that_gives_no_numbers_is_refused() {
    let model = with_adapters(&[]);
    let module = "model.layers.0.self_attn.q_proj";
    let config = std::fs::read_to_string(tiny("decoders/llama").join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let hidden = config["hidden_size"].as_u64().unwrap() as usize;
    let folder = Folder::new();
    let header = serde_json::json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1});
    folder.write("adapter_config.json", header.to_string());
    let (down, up) = (vec![f32::NAN; hidden], vec![1.0; hidden]);
    let tensors =
        [("A", [1, hidden], down), ("B", [hidden, 1], up)].map(|(kind, shape, values)| {
            let name = format!("base_model.model.{module}.lora_{kind}.weight");
            let tensor = Tensor::from_vec(values, &shape, &candle_core::Device::Cpu).unwrap();
            (name, tensor)
        });
    let tensors: std::collections::HashMap<_, _> = tensors.into_iter().collect();
    let path = folder.path("adapter_model.safetensors");
    candle_core::safetensors::save(&tensors, path).unwrap();
    let files = AdapterFiles {
        name: "bad".to_owned(),
        files: open(&folder.path("")),
    };
    match model.read_adapter(&files, &CancelToken::new()).err() {
        Some(Error::CorruptModel(message)) => assert!(message.contains("not numbers"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert!(model.adapters().is_empty());
    assert!(!tokens(&begin(&model, None, 1)).is_empty());
}
