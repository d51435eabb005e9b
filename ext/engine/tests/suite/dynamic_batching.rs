//! Calls of many threads are computed together, and nobody's result tells.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base::runtime::stats::Reading;
use engine::tasks::{EmbedOptions, EmbedSettings, EmbeddingModel, Embeddings, LoadOptions};
use engine::{CancelToken, Error};

use crate::encoder::files;

fn model() -> EmbeddingModel {
    let (options, settings) = (LoadOptions::default(), EmbedSettings::default());
    EmbeddingModel::load(
        &files("bert-sentence"),
        &options,
        &settings,
        &CancelToken::new(),
    )
    .unwrap()
}

fn text(number: usize) -> String {
    let words = [
        "the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog",
    ];
    let word = |at: usize| words[(number * 5 + at * 3) % words.len()];
    (0..=number % 13).map(word).collect::<Vec<_>>().join(" ")
}

fn embed(
    model: &EmbeddingModel,
    number: usize,
    cancel: &CancelToken,
) -> engine::Result<Embeddings> {
    let options = EmbedOptions {
        normalize: Some(number.is_multiple_of(2)),
        ..EmbedOptions::default()
    };
    model.embed(&[text(number)], &options, cancel)
}

fn bits(embeddings: &Embeddings) -> Vec<u32> {
    embeddings
        .values
        .iter()
        .map(|value| value.to_bits())
        .collect()
}

fn number(model: &EmbeddingModel, name: &str) -> u64 {
    let readings = model.stats();
    let found = readings.iter().find(|(own, _)| *own == name);
    match found.map(|(_, reading)| reading) {
        Some(Reading::Number(value)) => *value,
        other => panic!("{name}: {other:?}"),
    }
}

const THREADS: usize = 16;
const TEXTS: usize = 40;

#[test]
fn calls_that_meet_are_one_batch_with_the_results_of_each_alone() {
    let model = model();
    let alone: Vec<_> = (0..TEXTS)
        .map(|at| bits(&embed(&model, at, &CancelToken::new()).unwrap()))
        .collect();
    assert_eq!(number(&model, "batches"), TEXTS as u64);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (model, alone) = (&model, &alone);
            scope.spawn(move || {
                for turn in 0..TEXTS {
                    let at = (thread * 7 + turn) % TEXTS;
                    let found = embed(model, at, &CancelToken::new()).unwrap();
                    assert_eq!(bits(&found), alone[at], "{at}");
                }
            });
        }
    });
    let batches = number(&model, "batches") - TEXTS as u64;
    assert!(batches < (THREADS * TEXTS) as u64, "{batches} batches");
    assert_eq!(number(&model, "running"), 0);
    assert_eq!(number(&model, "waiting"), 0);
}

#[test]
fn who_is_interrupted_leaves_and_the_others_stay() {
    let model = model();
    let alone: Vec<_> = (0..TEXTS)
        .map(|at| bits(&embed(&model, at, &CancelToken::new()).unwrap()))
        .collect();
    let tokens: Vec<CancelToken> = (0..THREADS).map(|_| CancelToken::new()).collect();
    let (over, ended, interrupted) = (
        AtomicUsize::new(0),
        AtomicBool::new(false),
        AtomicUsize::new(0),
    );
    std::thread::scope(|scope| {
        for (thread, cancel) in tokens.iter().enumerate() {
            let (model, alone, over, interrupted) = (&model, &alone, &over, &interrupted);
            scope.spawn(move || {
                for turn in 0..3 * TEXTS {
                    let at = (thread * 7 + turn) % TEXTS;
                    match embed(model, at, cancel) {
                        Ok(found) => assert_eq!(bits(&found), alone[at], "{at}"),
                        Err(Error::Interrupted) => {
                            interrupted.fetch_add(1, Ordering::Relaxed);
                            cancel.reset();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                over.fetch_add(1, Ordering::Relaxed);
            });
        }
        let (tokens, ended, over) = (&tokens, &ended, &over);
        scope.spawn(move || {
            let mut state = 1usize;
            while over.load(Ordering::Relaxed) < THREADS {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                tokens[(state >> 33) % THREADS].cancel();
                std::thread::sleep(Duration::from_micros(300));
            }
            ended.store(true, Ordering::Relaxed);
        });
    });
    assert!(ended.load(Ordering::Relaxed) && interrupted.load(Ordering::Relaxed) > 0);
    assert_eq!(
        (number(&model, "running"), number(&model, "waiting")),
        (0, 0)
    );
    let found = embed(&model, 3, &CancelToken::new()).unwrap();
    assert_eq!(bits(&found), alone[3]);
}
