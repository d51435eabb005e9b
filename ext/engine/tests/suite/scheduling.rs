//! What tests of many texts at once share: models with room, and calls to them.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use base::runtime::stats::Reading;
use engine::generation::GenerationConfig;
use engine::models::decoder::KvPool;
use engine::serving::ContextOverflow;
use engine::tasks::{CacheOptions, Extras, Generation, LanguageModel, LoadOptions, Request};
use engine::CancelToken;
use formats::files::model_files::ModelFiles;
use kernels::paged::{KvType, PAGE};

use super::tiny_folder::tiny;

pub fn load(folder: &Path) -> LanguageModel {
    load_with(folder, &Extras::default()).unwrap()
}

pub fn load_with(folder: &Path, extras: &Extras<'_>) -> engine::Result<LanguageModel> {
    let cancel = CancelToken::new();
    let files = ModelFiles::open(folder.to_str().unwrap(), None, &cancel).unwrap();
    LanguageModel::load_with(&files, &LoadOptions::default(), extras, &cancel)
}

/// A tiny model, with changes to its configuration.
pub fn changed(name: &str, changes: &[(&str, serde_json::Value)]) -> LanguageModel {
    changed_with(name, changes, &Extras::default())
}

fn changed_with(
    name: &str,
    changes: &[(&str, serde_json::Value)],
    extras: &Extras<'_>,
) -> LanguageModel {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let own = format!("red-candle-changed-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(own);
    std::fs::create_dir_all(&directory).unwrap();
    for entry in std::fs::read_dir(tiny("decoders").join(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, directory.join(path.file_name().unwrap())).unwrap();
    }
    let path = directory.join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    std::fs::write(&path, config.to_string()).unwrap();
    let model = load_with(&directory, extras).unwrap();
    // A file that is mapped stays readable.
    std::fs::remove_dir_all(&directory).unwrap();
    model
}

/// A tiny model that reads texts of so many tokens.
pub fn roomy(name: &str, positions: usize) -> LanguageModel {
    roomy_with(name, positions, &Extras::default())
}

pub fn roomy_with(name: &str, positions: usize, extras: &Extras<'_>) -> LanguageModel {
    changed_with(
        name,
        &[("max_position_embeddings", positions.into())],
        extras,
    )
}

/// With so many bytes for keys and values.
pub fn limited<'a>(limit: usize) -> Extras<'a> {
    Extras {
        cache: CacheOptions {
            limit: Some(limit),
            kind: None,
        },
        ..Extras::default()
    }
}

/// The same with a KV cache of so many pages.
pub fn tight(name: &str, positions: usize, pages: usize) -> LanguageModel {
    let model = roomy(name, positions);
    let decoder = model.decoder();
    let kind = KvType::of(decoder.dtype());
    let page = KvPool::token_bytes(decoder.config(), kind) * PAGE;
    let model = roomy_with(name, positions, &limited(pages * page));
    assert_eq!(counted(&model, "pages_free"), pages as u64);
    model
}

/// Some text of so many tokens.
pub fn prompt(length: usize, seed: u32) -> Vec<u32> {
    let ids = 0..length as u32;
    ids.map(|at| 5 + (at * 7 + at * at * 3 + seed * 31) % 260)
        .collect()
}

pub fn begin(model: &Arc<LanguageModel>, prompt: &[u32], config: &GenerationConfig) -> Generation {
    let request = Request {
        prompt: prompt.to_vec(),
        instructions: 0,
        config: config.clone(),
        overflow: ContextOverflow::Error,
        adapter: None,
        constraint: None,
        afresh: false,
    };
    Generation::new(model.clone(), request).unwrap()
}

pub fn tokens(generation: &Generation) -> Vec<u32> {
    generation.finish(&CancelToken::new()).unwrap();
    generation.read(|run| run.choices().iter().map(|choice| choice.token).collect())
}

/// A number that a model counts.
pub fn counted(model: &LanguageModel, name: &str) -> u64 {
    let stats = model.stats();
    let found = stats.iter().find(|(key, _)| *key == name);
    match found {
        Some((_, Reading::Number(value))) => *value,
        _ => panic!("there is no number {name}"),
    }
}

/// The sum of a histogram that a model keeps.
pub fn distribution(model: &LanguageModel, name: &str) -> f64 {
    let stats = model.stats();
    let found = stats.iter().find(|(key, _)| *key == name);
    match found {
        Some((_, Reading::Distribution(spread))) => spread.sum,
        _ => panic!("there is no histogram {name}"),
    }
}
