//! While a long prompt is read, other texts go on: one pass for each of their tokens, with a part of the
//! prompt that grows slowly and takes no longer than they can bear.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::generation::GenerationConfig;
use engine::tasks::{Generation, LanguageModel};
use engine::CancelToken;

use super::scheduling::{begin, counted, distribution, prompt, roomy, tokens};

const LENGTH: usize = 4_000;

fn endless(model: &Arc<LanguageModel>, seed: u32) -> Generation {
    let config = GenerationConfig {
        max_new_tokens: 5_000,
        // The token that would end it.
        logit_bias: vec![(1, -100.0)].into(),
        ..Default::default()
    };
    begin(model, &prompt(5, seed), &config)
}

/// The next token of a text, and how long it took.
fn step(text: &Generation) -> Duration {
    let started = Instant::now();
    assert!(text.step(&CancelToken::new()).unwrap().is_some());
    started.elapsed()
}

/// The gaps of a text before and while a prompt is read, and how many tokens of it were read in each.
fn read_beside(model: &Arc<LanguageModel>) -> (Vec<Duration>, Vec<Duration>, Vec<u64>) {
    let stream = endless(model, 1);
    let mut usual: Vec<_> = (0..60).map(|_| step(&stream)).skip(10).collect();
    let config = GenerationConfig {
        max_new_tokens: 1,
        ..Default::default()
    };
    let long = begin(model, &prompt(LENGTH, 2), &config);
    let (mut gaps, mut parts) = (Vec::new(), Vec::new());
    while long.read(|run| run.finish_reason().is_none()) {
        let before = (
            counted(model, "batches"),
            distribution(model, "batch_tokens"),
        );
        gaps.push(step(&stream));
        let after = (
            counted(model, "batches"),
            distribution(model, "batch_tokens"),
        );
        assert_eq!(after.0, before.0 + 1, "one pass for each token");
        // Now and then it is measured what a pass takes without a part.
        parts.extend(Some((after.1 - before.1) as u64 - 1).filter(|&part| part > 0));
    }
    usual.extend((0..60).map(|_| step(&stream)));
    model.forget_idle().unwrap();
    (usual, gaps, parts)
}

/// Its layers see few tokens, so that one at the end of the prompt takes no longer than one at its
/// beginning. Other work on the machine may stretch any pass: that the gaps stay short must be seen once in several
/// attempts, that the parts do so in each.
#[test]
fn a_text_gets_its_tokens_while_a_long_prompt_is_read() {
    let model = Arc::new(roomy("mistral", 10_000));
    let mut seen = Vec::new();
    for _ in 0..5 {
        let (mut usual, mut gaps, parts) = read_beside(&model);
        assert_eq!(parts.iter().sum::<u64>(), LENGTH as u64);
        assert!(!seen.is_empty() || parts[0] <= 2, "{parts:?}");
        for pair in parts.windows(2) {
            assert!(pair[1] <= (pair[0] * 3 / 2).max(2), "{parts:?}");
        }
        let middle = |times: &mut Vec<Duration>| {
            times.sort();
            times[times.len() / 2].as_secs_f64()
        };
        let ratio = middle(&mut gaps) / middle(&mut usual);
        if ratio <= 3.0 {
            return;
        }
        seen.push((ratio, parts.len()));
    }
    panic!("the gaps were {seen:?} times the usual ones");
}

#[test]
fn a_prompt_that_is_read_beside_a_text_says_the_same() {
    let config = GenerationConfig {
        max_new_tokens: 5,
        ..Default::default()
    };
    let alone = Arc::new(roomy("mistral", 1024));
    let expected = tokens(&begin(&alone, &prompt(700, 2), &config));
    let model = Arc::new(roomy("mistral", 1024));
    let stream = endless(&model, 1);
    for _ in 0..5 {
        step(&stream);
    }
    let long = begin(&model, &prompt(700, 2), &config);
    step(&stream);
    assert_eq!(tokens(&long), expected);
}

#[test]
fn where_nobody_watches_a_prompt_is_read_in_longer_parts() {
    let model = Arc::new(roomy("mistral", 1024));
    let text = endless(&model, 1);
    for _ in 0..5 {
        step(&text);
    }
    let config = GenerationConfig {
        max_new_tokens: 1,
        ..Default::default()
    };
    let long = begin(&model, &prompt(640, 2), &config);
    let before = counted(&model, "batches");
    let first = Generation::finish_any(&[&text, &long], &CancelToken::new()).unwrap();
    assert_eq!(first, [1]);
    assert!(counted(&model, "batches") - before <= 640 / 64);
}

/// Streams that came at the same time take about as many steps as one of them, although the first was ahead.
#[test]
fn streams_that_begin_together_decode_together() {
    const TOKENS: usize = 24;
    let config = GenerationConfig {
        max_new_tokens: TOKENS,
        ..Default::default()
    };
    let alone = Arc::new(roomy("mistral", 1024));
    let prompts: Vec<_> = (0..8).map(|seed| prompt(30, seed)).collect();
    let expected: Vec<_> = prompts
        .iter()
        .map(|prompt| tokens(&begin(&alone, prompt, &config)))
        .collect();
    let model = Arc::new(roomy("mistral", 1024));
    let mut streams = vec![begin(&model, &prompts[0], &config)];
    step(&streams[0]);
    streams.extend(prompts[1..].iter().map(|one| begin(&model, one, &config)));
    let mut going_on = true;
    while going_on {
        let next = |stream: &Generation| stream.step(&CancelToken::new()).unwrap().is_some();
        going_on = streams.iter().filter(|stream| next(stream)).count() > 0;
    }
    let steps = counted(&model, "batches");
    assert!(steps <= TOKENS as u64 + 3, "{steps} steps");
    let found: Vec<_> = streams.iter().map(tokens).collect();
    assert_eq!(found, expected);
}

/// A stream that is under way does not wait for the prompts of those that come later.
#[test]
fn a_stream_under_way_does_not_wait_for_others_that_begin() {
    let model = Arc::new(roomy("mistral", 1024));
    let stream = endless(&model, 1);
    for _ in 0..10 {
        step(&stream);
    }
    let config = GenerationConfig {
        max_new_tokens: 4,
        ..Default::default()
    };
    let others: Vec<_> = (2..6)
        .map(|seed| begin(&model, &prompt(60, seed), &config))
        .collect();
    let before = distribution(&model, "batch_tokens");
    step(&stream);
    assert!(distribution(&model, "batch_tokens") - before <= 3.0);
    drop(others);
}
