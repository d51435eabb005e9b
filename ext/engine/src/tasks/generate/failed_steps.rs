//! Steps that fail after their forward pass: the sequences that survive say what they say alone.

use std::path::Path;
use std::sync::Arc;

use super::{AdapterFiles, Generation, LanguageModel, Request};
use crate::generation::GenerationConfig;
use crate::serving::ContextOverflow;
use crate::tasks::LoadOptions;
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;

/// Of the sequences, of which one step has two adapters and none.
const ADAPTERS: [Option<&str>; 4] = [None, Some("llama-embeddings"), Some("llama"), None];

fn load() -> Arc<LanguageModel> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/tiny");
    let cancel = CancelToken::new();
    let open = |name: &str| {
        let path = root.join(name);
        ModelFiles::open(path.to_str().unwrap(), None, &cancel).unwrap()
    };
    let adapters = ["llama", "llama-embeddings"].map(|name| AdapterFiles {
        name: name.to_owned(),
        files: open(&format!("adapters/{name}")),
    });
    let options = LoadOptions::default();
    let model = LanguageModel::load(&open("decoders/llama"), &options, &adapters, &cancel);
    Arc::new(model.unwrap())
}

fn begin(model: &Arc<LanguageModel>, number: u32) -> Generation {
    let request = Request {
        prompt: (0..4 + number)
            .map(|at| 5 + (at * 7 + number * 31) % 260)
            .collect(),
        instructions: 0,
        config: GenerationConfig {
            max_new_tokens: 12,
            temperature: if number.is_multiple_of(2) { 0.0 } else { 1.0 },
            seed: u64::from(number),
            ..Default::default()
        },
        overflow: ContextOverflow::Error,
        adapter: model.adapter(ADAPTERS[number as usize]).unwrap(),
        constraint: None,
        afresh: true,
    };
    Generation::new(model.clone(), request).unwrap()
}

fn tokens(generation: &Generation) -> Vec<u32> {
    generation.read(|run| run.choices().iter().map(|choice| choice.token).collect())
}

/// What each of several sequences comes to, one after the other and all together with such faults.
fn outcomes(before: usize, lost: usize) -> Vec<(Result<()>, Vec<u32>, Vec<u32>)> {
    let (model, cancel) = (load(), CancelToken::new());
    let alone = |number| {
        let generation = begin(&model, number);
        generation.finish(&cancel).unwrap();
        tokens(&generation)
    };
    let alone: Vec<_> = (0..4).map(alone).collect();
    let together: Vec<_> = (0..4).map(|number| begin(&model, number)).collect();
    model.scheduler().unwrap().faults.plan(before, lost);
    // Nobody reads pieces, so that all of them run to their ends.
    let all: Vec<&Generation> = together.iter().collect();
    Generation::finish_any(&all, &cancel).unwrap();
    let ends = together
        .iter()
        .map(|one| (one.finish(&cancel), tokens(one)));
    ends.zip(alone)
        .map(|((end, found), alone)| (end, found, alone))
        .collect()
}

#[test]
fn a_step_that_fails_is_computed_again_with_the_same_tokens() {
    for before in 0..12 {
        for (end, found, alone) in outcomes(before, 1) {
            end.unwrap();
            assert_eq!(found, alone, "after {before} steps");
        }
    }
}

#[test]
fn a_sequence_that_fails_twice_ends_and_the_others_go_on() {
    for before in [0, 1, 5] {
        for lost in 2..=5 {
            let outcomes = outcomes(before, lost);
            let failed = outcomes.iter().filter(|(end, ..)| end.is_err());
            assert_eq!(failed.count(), lost - 1);
            for (end, found, alone) in outcomes {
                match end {
                    Ok(()) => assert_eq!(found, alone, "{lost} lost after {before} steps"),
                    Err(error) => {
                        assert!(matches!(error, Error::Device(_)));
                        assert!(alone.starts_with(&found));
                    }
                }
            }
        }
    }
}
