//! Calls of several threads on one encoder-decoder, which are computed in one batch.

use std::time::Duration;

use base::runtime::stats::Reading;
use base::runtime::threads;
use engine::models::seq2seq::{Cache, Memory, Rows, Seq2Seq};
use engine::tasks::{Seq2SeqGeneration, Seq2SeqModel};
use engine::{CancelToken, Error};

use crate::seq2seq::{bare, generated, packed, plain, values, Fixture};

/// Rows that have so many tokens, and the token that comes next.
struct Begun {
    memory: Memory,
    cache: Cache,
    ids: Vec<u32>,
}

fn begun(model: &Seq2Seq, sources: &[Vec<u32>], beams: usize, length: usize) -> Begun {
    let cancel = CancelToken::new();
    let memory = model.read(&packed(sources), &cancel).unwrap();
    let ids = |place: usize| -> Vec<u32> {
        let rows = 0..sources.len() * beams;
        rows.map(|row| 3 + ((7 * place + 5 * row) % 20) as u32)
            .collect()
    };
    let mut cache = Cache::default();
    for place in 0..length {
        cache = model
            .decode(&ids(place), &cache, &memory, &cancel)
            .unwrap()
            .1;
    }
    Begun {
        memory,
        cache,
        ids: ids(length),
    }
}

#[test]
fn rows_of_all_lengths_in_one_pass_are_those_of_passes_alone() {
    for fixture in Fixture::all() {
        let name = fixture.folder.display();
        let model = bare(&fixture.folder);
        let cancel = CancelToken::new();
        let sources = fixture.sources();
        let groups = [
            begun(&model, &sources[1..2], 1, 0),
            begun(&model, &sources[..3], 2, 5),
            begun(&model, &sources[2..3], 1, 9),
            begun(&model, &sources[1..3], 1, 1),
        ];
        let rows: Vec<Rows<'_>> = groups
            .iter()
            .map(|Begun { memory, cache, ids }| Rows { ids, cache, memory })
            .collect();
        let (together, caches) = model.write_together(&rows, &cancel).unwrap();
        let mut together = together.to_vec2::<f32>().unwrap().into_iter();
        for (group, cache) in groups.iter().zip(&caches) {
            let (logits, alone) = model
                .decode(&group.ids, &group.cache, &group.memory, &cancel)
                .unwrap();
            assert_eq!(alone.length(), cache.length());
            // What was kept serves the next token as well.
            let next = |cache| model.decode(&group.ids, cache, &group.memory, &cancel);
            assert_eq!(
                values(&next(&alone).unwrap().0),
                values(&next(cache).unwrap().0)
            );
            for row in logits.to_vec2::<f32>().unwrap() {
                assert_eq!(together.next(), Some(row), "{name}");
            }
        }
        assert!(together.next().is_none());
    }
}

fn number(model: &Seq2SeqModel, name: &str) -> u64 {
    let stats = model.stats();
    match stats.iter().find(|(known, _)| *known == name) {
        Some((_, Reading::Number(number))) => *number,
        _ => panic!("no {name}"),
    }
}

#[test]
fn calls_of_many_threads_are_computed_together_each_as_alone() {
    for name in ["t5", "bart", "nllb"] {
        let fixture = Fixture::named(name);
        let model = fixture.load();
        let sources = fixture.sources();
        let calls: Vec<_> = (0..12)
            .map(|number| {
                let mut settings = plain(&model, 40);
                settings.num_beams = [1, 1, 3][number % 3];
                settings.rules.min_new_tokens = 28 + number;
                if number % 3 == 1 {
                    settings.config.temperature = 1.0;
                    settings.config.seed = number as u64;
                }
                let first = number % (sources.len() - 1);
                let texts = sources[first..][..1 + number % 2].to_vec();
                (texts, settings)
            })
            .collect();
        let number = |name| number(&model, name);
        let alone: Vec<_> = calls
            .iter()
            .map(|(texts, settings)| generated(&model, texts, settings))
            .collect();
        let passes = number("batches");
        let together: Vec<_> = std::thread::scope(|scope| {
            let model = &model;
            let threads: Vec<_> = calls
                .iter()
                .map(|(texts, settings)| scope.spawn(move || generated(model, texts, settings)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(together, alone, "{name}");
        let shared = number("batches") - passes;
        assert!(4 * shared < 3 * passes, "{name}: {shared} beside {passes}");
        assert_eq!([number("running"), number("waiting")], [0, 0]);
    }
}

#[test]
fn interrupts_at_any_time_are_one_calls_own() {
    let fixture = Fixture::named("t5");
    let model = fixture.load();
    let sources = fixture.sources();
    let mut short = plain(&model, 20);
    short.rules.min_new_tokens = 20;
    let mut long = plain(&model, 200);
    long.rules.min_new_tokens = 200;
    long.num_beams = 2;
    let expected = generated(&model, &sources[1..2], &short);
    let mut interrupted = 0;
    for round in 0..60 {
        std::thread::scope(|scope| {
            let (model, sources, short, long) = (&model, &sources, &short, &long);
            let stopped = CancelToken::new();
            let cancel = stopped.clone();
            let victim = scope.spawn(move || {
                let generation =
                    Seq2SeqGeneration::new(model.clone(), sources.clone(), long.clone(), None);
                matches!(generation.unwrap().finish(&cancel), Err(Error::Interrupted))
            });
            let others: Vec<_> = (0..6)
                .map(|_| scope.spawn(move || generated(model, &sources[1..2], short)))
                .collect();
            std::thread::sleep(Duration::from_micros(137 * round));
            stopped.cancel();
            for other in others {
                assert_eq!(other.join().unwrap(), expected);
            }
            interrupted += usize::from(victim.join().unwrap());
        });
        assert_eq!(
            ["running", "waiting"].map(|name| number(&model, name)),
            [0, 0]
        );
    }
    assert!(interrupted > 0);
}

#[test]
fn threads_of_the_pool_do_not_wait_for_texts() {
    let fixture = Fixture::named("t5");
    let model = fixture.load();
    let sources = fixture.sources()[1..2].to_vec();
    let settings = plain(&model, 4);
    let generation = Seq2SeqGeneration::new(model.clone(), sources, settings, None).unwrap();
    let cancel = CancelToken::new();
    let refused = threads::install(|| generation.finish(&cancel)).unwrap();
    assert!(matches!(refused, Err(Error::Internal(_))));
    generation.finish(&cancel).unwrap();
}
