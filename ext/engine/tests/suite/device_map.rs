//! Layers on several devices: the same answers as on one, how many fit, and what can't be split.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device};
use engine::generation::GenerationConfig;
use engine::models::decoder::stages::{obstacle, Home};
use engine::models::decoder::{Blueprint, Decoder, Stages};
use engine::tasks::{AdapterFiles, DeviceMap, Extras, LanguageModel};
use engine::{CancelToken, Error, Result};
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::weights;

use super::decoder::{folders, in_chunks};
use super::scheduling::{begin, load_with, prompt, tokens};
use super::seeded_weights::{checkpoint, names};
use super::tiny_folder::tiny;

const LENGTH: usize = 20;

/// With the first layers at one place, and the others at another of the same kind.
fn read(folder: &Path, first: Option<usize>) -> Result<Decoder> {
    let raw = RawConfig::read(&folder.join("config.json"))?;
    let files = WeightFiles::Safetensors(vec![folder.join("model.safetensors")]);
    let blueprint = Blueprint::from_config(&raw)?;
    let config = &blueprint.config;
    let home = || Home {
        device: Device::Cpu,
        dtype: DType::F32,
    };
    let stages = match first {
        Some(first) => {
            let counts = [(home(), first), (home(), config.layer_count - first)];
            Stages::new(home(), &counts, config)?
        }
        None => Stages::whole(config, &Device::Cpu, DType::F32),
    };
    let source = weights::unpacked(weights::open(&files)?, &raw)?;
    let cancel = CancelToken::new();
    Decoder::load_in_stages(&blueprint, source.as_ref(), stages, &cancel)
}

fn bits(decoder: &Decoder) -> Vec<Vec<u32>> {
    let vocabulary = decoder.config().vocab_size as u32;
    let ids: Vec<u32> = prompt(LENGTH, 3).iter().map(|id| id % vocabulary).collect();
    let logits: Vec<Vec<f32>> = in_chunks(decoder, &ids, 7).to_vec2().unwrap();
    let bits = |row: &Vec<f32>| row.iter().map(|value| value.to_bits()).collect();
    logits.iter().map(bits).collect()
}

/// Whether a checkpoint can be split after each of its layers, which then must give the same bits.
fn is_split(name: &str, folder: &Path) -> bool {
    let whole = read(folder, None).unwrap_or_else(|error| panic!("{name}: {error}"));
    let config = whole.config();
    let expected = bits(&whole);
    let mut any = false;
    for first in 1..config.layer_count {
        match (read(folder, Some(first)), obstacle(config, first)) {
            (Ok(split), None) => {
                assert!(split.stages().is_split());
                assert!(bits(&split) == expected, "{name} after {first} layers");
                any = true;
            }
            (Err(Error::UnsupportedModel(message)), Some(reason)) => {
                assert!(message.ends_with(&reason), "{name}: {message}");
            }
            (Err(error), _) => panic!("{name} after {first} layers: {error}"),
            (Ok(_), Some(reason)) => panic!("{name} was split although {reason}"),
        }
    }
    any
}

#[test]
fn models_give_the_same_bits_wherever_they_are_cut() {
    let split = folders("decoders").into_iter().filter(|folder| {
        let name = folder.file_name().unwrap().to_str().unwrap();
        is_split(name, folder)
    });
    assert!(split.count() > 25);
}

#[test]
fn seeded_models_give_the_same_bits_or_say_what_keeps_their_layers_together() {
    let (mut split, mut kept) = (0, 0);
    for name in names() {
        let folder = checkpoint(&name);
        match read(&folder.path(""), None) {
            Ok(_) if is_split(&name, &folder.path("")) => split += 1,
            Ok(_) => kept += 1,
            Err(Error::UnsupportedModel(_)) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    assert!(split > 60 && kept > 10, "{split} {kept}");
}

fn load(name: &str, map: &DeviceMap) -> Result<LanguageModel> {
    let extras = Extras {
        device_map: Some(map),
        ..Extras::default()
    };
    load_with(&tiny(name), &extras)
}

fn layers(model: &LanguageModel) -> Vec<usize> {
    let stages = model.decoder().stages().all().iter();
    stages.map(|stage| stage.layers.len()).collect()
}

#[test]
fn a_language_model_writes_the_same_with_layers_elsewhere() {
    let config = GenerationConfig {
        max_new_tokens: 12,
        temperature: 0.0,
        ..Default::default()
    };
    let write = |map: &DeviceMap, name: &str| {
        let model = Arc::new(load(name, map).unwrap());
        let runs: Vec<_> = (0..3)
            .map(|seed| begin(&model, &prompt(9 + seed, seed as u32), &config))
            .collect();
        runs.iter().map(tokens).collect::<Vec<_>>()
    };
    for name in [
        "decoders/llama",
        "decoders/qwen3-moe",
        "gguf-decoders/quantized",
    ] {
        let expected = write(&DeviceMap::Whole, name);
        assert_eq!(write(&DeviceMap::First(1), name), expected, "{name}");
        assert_eq!(write(&DeviceMap::First(0), name), expected, "{name}");
        assert_eq!(write(&DeviceMap::First(99), name), expected, "{name}");
    }
}

#[test]
fn as_many_layers_stay_as_the_memory_holds() {
    let fitting = |bytes: usize| load("decoders/llama", &DeviceMap::Fitting(Some(bytes)));
    let mut counts: Vec<Vec<usize>> = (0..256)
        .filter_map(|step| Some(layers(&fitting(step * 2048).ok()?)))
        .collect();
    counts.dedup();
    // Both are CPUs here, so that none at all looks like all.
    assert_eq!(counts, [vec![2], vec![1, 1], vec![2]]);
    let error = fitting(10).err().unwrap();
    assert!(
        matches!(&error, Error::OutOfMemory(message) if message.contains("embeddings and the head"))
    );
}

#[test]
fn a_map_names_all_layers() {
    let cpu = base::runtime::device::Device::Cpu;
    let map =
        |counts: &[usize]| DeviceMap::Counts(counts.iter().map(|&count| (cpu, count)).collect());
    let model = load("decoders/llama", &map(&[1, 0, 1])).unwrap();
    assert_eq!(layers(&model), [1, 1]);
    assert_eq!(model.layers_by_device(), [(cpu, 2)]);
    for counts in [&[1][..], &[2, 1], &[], &[usize::MAX, 2]] {
        let error = load("decoders/llama", &map(counts)).err().unwrap();
        assert!(
            matches!(&error, Error::InvalidInput(message) if message.contains("the model has 2"))
        );
    }
}

#[test]
fn adapters_go_where_the_layers_are() {
    let files = |name: &str| {
        let path = tiny("adapters").join(name);
        let files = ModelFiles::open(path.to_str().unwrap(), None, &CancelToken::new());
        [AdapterFiles {
            name: name.to_owned(),
            files: files.unwrap(),
        }]
    };
    let logprobs = |map: &DeviceMap| {
        let adapters = files("llama");
        let extras = Extras {
            adapters: &adapters,
            device_map: Some(map),
            ..Extras::default()
        };
        let model = load_with(&tiny("decoders/llama"), &extras).unwrap();
        let name = Some("llama");
        model.logprobs(&prompt(LENGTH, 1), name, &CancelToken::new())
    };
    let whole = logprobs(&DeviceMap::Whole).unwrap();
    assert_eq!(logprobs(&DeviceMap::First(1)).unwrap(), whole);
}
