//! Where every layer sees a window alone, what lies before it takes no memory.

use std::sync::Arc;

use engine::generation::GenerationConfig;
use engine::tasks::LanguageModel;
use engine::CancelToken;
use kernels::paged::PAGE;

use super::scheduling::{begin, changed, counted, limited, prompt, roomy, roomy_with, tokens};

fn config() -> GenerationConfig {
    GenerationConfig {
        max_new_tokens: 40,
        temperature: 1.0,
        seed: 3,
        ..Default::default()
    }
}

/// The most pages that a text of so many tokens has at a time.
fn most_pages(model: &Arc<LanguageModel>, length: usize) -> u64 {
    let text = begin(model, &prompt(length, 1), &config());
    let mut most = 0;
    while text.step(&CancelToken::new()).unwrap().is_some() {
        most = most.max(counted(model, "pages_used"));
    }
    drop(text);
    assert_eq!(counted(model, "pages_used"), 0);
    most
}

#[test]
fn only_the_window_takes_pages() {
    // Its window has 8 tokens in every layer.
    let windowed = Arc::new(roomy("mistral", 2048));
    assert!(most_pages(&windowed, 1000) <= 2);
    let wider = Arc::new(changed(
        "mistral",
        &[
            ("max_position_embeddings", 2048.into()),
            ("sliding_window", (2 * PAGE).into()),
        ],
    ));
    assert_eq!(most_pages(&wider, 1000), 3);
    // A layer that sees everything needs everything.
    for name in ["llama", "gemma2-even"] {
        let model = Arc::new(roomy(name, 2048));
        let all = (1000 + 40_usize).div_ceil(PAGE) as u64;
        assert!(
            (all - 1..=all).contains(&most_pages(&model, 1000)),
            "{name}"
        );
    }
}

#[test]
fn what_was_passed_is_found_until_the_memory_is_wanted() {
    let model = Arc::new(roomy("mistral", 2048));
    let expected = tokens(&begin(&model, &prompt(300, 1), &config()));
    let again = begin(&model, &prompt(300, 1), &config());
    assert_eq!(tokens(&again), expected);
    assert_eq!(again.cached_length(), 299);
    drop(again);
    model.forget_idle().unwrap();
    assert_eq!(counted(&model, "pages_idle"), 0);
    let afresh = begin(&model, &prompt(300, 1), &config());
    assert_eq!(tokens(&afresh), expected);
    assert_eq!(afresh.cached_length(), 0);
}

#[test]
fn texts_stay_the_same_when_passed_pages_go_to_others() {
    let ample = Arc::new(roomy("mistral", 2048));
    let token = 2 * 2 * 2 * 12 * 4;
    let tight = Arc::new(roomy_with("mistral", 2048, &limited(8 * PAGE * token)));
    assert_eq!(counted(&tight, "pages_free"), 8);
    for round in 0..3 {
        let lengths = [400, 130, 65, 300];
        let prompts = lengths
            .iter()
            .zip(0..)
            .map(|(&length, at)| prompt(length, at + round));
        let prompts: Vec<_> = prompts.collect();
        let texts: Vec<_> = prompts
            .iter()
            .map(|prompt| begin(&tight, prompt, &config()))
            .collect();
        for (text, prompt) in texts.iter().zip(&prompts) {
            assert_eq!(tokens(text), tokens(&begin(&ample, prompt, &config())));
        }
    }
    assert_eq!(counted(&tight, "pages_used"), 0);
}
