//! Speculative decoding with a draft model changes no text.

use std::sync::Arc;

use engine::generation::{Ending, GenerationConfig, Pattern, Speculative, WhiteSpace};
use engine::models::decoder::model::Logits;
use engine::serving::ContextOverflow;
use engine::tasks::{Extras, Generation, LanguageModel, LoadOptions, Request};
use engine::{CancelToken, Error};
use formats::text::tokenizer::Tokenizer;

use super::scheduling::{
    begin, counted, limited, load, load_with, prompt, roomy, roomy_with, tokens,
};
use super::tiny_folder::tiny;

/// Greedy and sampled ones, with and without what else decides about tokens.
fn configs(speculative: Speculative) -> Vec<GenerationConfig> {
    let greedy = GenerationConfig {
        max_new_tokens: 40,
        speculative,
        ..Default::default()
    };
    let sampled = GenerationConfig {
        temperature: 1.0,
        seed: 5,
        ..greedy.clone()
    };
    let penalized = GenerationConfig {
        top_k: Some(20),
        top_p: Some(0.9),
        repetition_penalty: 1.2,
        frequency_penalty: 0.3,
        seed: 6,
        ..sampled.clone()
    };
    let biased = GenerationConfig {
        logit_bias: vec![(7, 2.0), (40, 3.5), (41, -100.0)].into(),
        ..greedy.clone()
    };
    vec![greedy, sampled, penalized, biased]
}

fn drafting(draft: &Arc<LanguageModel>) -> Extras<'_> {
    Extras {
        draft: Some(draft),
        ..Extras::default()
    }
}

/// The tiny llama with a draft model.
fn llama_with(draft: &Arc<LanguageModel>) -> Arc<LanguageModel> {
    Arc::new(load_with(&tiny("decoders/llama"), &drafting(draft)).unwrap())
}

fn drafted_by(draft: &Arc<LanguageModel>) -> Arc<LanguageModel> {
    let model = roomy_with("llama", 512, &drafting(draft));
    assert!(model.has_draft());
    Arc::new(model)
}

fn no_pages(model: &LanguageModel) {
    let pages = ["running", "waiting", "pages_used", "draft_pages_used"];
    assert_eq!(pages.map(|name| counted(model, name)), [0; 4]);
}

#[test]
fn texts_are_the_same_whoever_drafts() {
    let plain = Arc::new(roomy("llama", 512));
    let twin = Arc::new(roomy("llama", 512));
    let stranger = Arc::new(roomy("qwen2", 512));
    for (draft, likes) in [(&twin, true), (&stranger, false)] {
        let model = drafted_by(draft);
        for (number, length) in [(1, 3), (2, 63), (3, 64), (4, 65), (5, 300)] {
            let prompt = prompt(length, number);
            let pairs = configs(Speculative::None).into_iter();
            for (without, with) in pairs.zip(configs(Speculative::Draft)) {
                let expected = tokens(&begin(&plain, &prompt, &without));
                assert_eq!(tokens(&begin(&model, &prompt, &with)), expected);
                no_pages(&model);
            }
        }
        let (drafted, accepted) = (counted(&model, "drafted"), counted(&model, "accepted"));
        assert!(drafted > 50, "{drafted}");
        if likes {
            // By equal logits and equal random numbers everything is accepted.
            assert_eq!(accepted, drafted);
        } else {
            assert!(accepted < drafted / 2, "{accepted} of {drafted}");
        }
    }
}

#[test]
fn drafting_pauses_while_few_are_accepted() {
    let stranger = Arc::new(roomy("qwen2", 512));
    let model = drafted_by(&stranger);
    let config = GenerationConfig {
        max_new_tokens: 60,
        speculative: Speculative::Draft,
        ..Default::default()
    };
    tokens(&begin(&model, &prompt(10, 1), &config));
    assert!((1..=50).contains(&counted(&model, "drafted")));
}

#[test]
fn sequences_with_draft_tokens_share_steps_with_others() {
    let plain = Arc::new(roomy("llama", 512));
    let twin = Arc::new(roomy("llama", 512));
    let model = drafted_by(&twin);
    let ways = [Speculative::Draft, Speculative::None, Speculative::Lookup];
    let text = |model: &Arc<LanguageModel>, at: usize| {
        let mut config = configs(ways[at % 3]).swap_remove(at % 2);
        if !model.has_draft() {
            config.speculative = Speculative::None;
        }
        begin(model, &prompt(5 + 29 * at, at as u32), &config)
    };
    let expected: Vec<_> = (0..8).map(|at| tokens(&text(&plain, at))).collect();
    for _ in 0..3 {
        let texts: Vec<_> = (0..8).map(|at| text(&model, at)).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = texts
                .iter()
                .map(|text| scope.spawn(move || tokens(text)))
                .collect();
            for (thread, expected) in threads.into_iter().zip(&expected) {
                assert_eq!(&thread.join().unwrap(), expected);
            }
        });
        drop(texts);
        no_pages(&model);
        model.forget_idle().unwrap();
    }
    assert!(counted(&model, "drafted") > 0);
}

#[test]
fn draft_tokens_follow_a_constraint() {
    let twin = Arc::new(load(&tiny("decoders/llama")));
    let model = llama_with(&twin);
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string","maxLength":8}},
                     "required":["a","b"],"additionalProperties":false}"#;
    let patterns = [
        Pattern::Schema(schema.to_owned(), WhiteSpace::Compact),
        Pattern::Regex("[a-z]{20,30}".to_owned()),
    ];
    for pattern in patterns {
        let text = |speculative| {
            let cancel = CancelToken::new();
            let constraint = model.constraint(&pattern, Ending::Complete, &cancel);
            let request = Request {
                prompt: prompt(6, 1),
                instructions: 0,
                config: GenerationConfig {
                    max_new_tokens: 50,
                    speculative,
                    ..Default::default()
                },
                overflow: ContextOverflow::Roll,
                adapter: None,
                constraint: Some(constraint.unwrap()),
                afresh: false,
            };
            tokens(&Generation::new(model.clone(), request).unwrap())
        };
        let expected = text(Speculative::None);
        let before = counted(&model, "drafted");
        assert_eq!(text(Speculative::Draft), expected);
        assert!(counted(&model, "drafted") > before);
        no_pages(&model);
    }
}

#[test]
fn a_text_that_is_interrupted_goes_on_where_it_was() {
    let twin = Arc::new(roomy("llama", 512));
    let model = drafted_by(&twin);
    let config = configs(Speculative::Draft).swap_remove(1);
    let expected = tokens(&begin(&model, &prompt(200, 1), &config));
    let text = begin(&model, &prompt(200, 1), &config);
    let mut steps = 0;
    loop {
        let cancel = CancelToken::new();
        let stopper = cancel.clone();
        let interrupting = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_micros(300 * (steps % 7)));
            stopper.cancel();
        });
        let stepped = text.step(&cancel);
        interrupting.join().unwrap();
        match stepped {
            Ok(None) => break,
            Ok(Some(_)) | Err(Error::Interrupted) => steps += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(tokens(&text), expected);
    drop(text);
    no_pages(&model);
}

#[test]
fn a_context_that_rolls_is_read_anew() {
    let twin = Arc::new(load(&tiny("decoders/llama")));
    let model = llama_with(&twin);
    let text = |speculative| {
        let request = Request {
            prompt: prompt(40, 1),
            instructions: 0,
            config: GenerationConfig {
                max_new_tokens: 100,
                speculative,
                ..Default::default()
            },
            overflow: ContextOverflow::Roll,
            adapter: None,
            constraint: None,
            afresh: false,
        };
        tokens(&Generation::new(model.clone(), request).unwrap())
    };
    let expected = text(Speculative::None);
    assert_eq!(text(Speculative::Draft), expected);
    no_pages(&model);
}

#[test]
fn requests_go_on_when_the_draft_model_is_closed() {
    let twin = Arc::new(roomy("llama", 512));
    let model = drafted_by(&twin);
    let config = configs(Speculative::Draft).swap_remove(0);
    let expected = tokens(&begin(&model, &prompt(20, 1), &config));
    let text = begin(&model, &prompt(20, 1), &config);
    for _ in 0..10 {
        text.step(&CancelToken::new()).unwrap();
    }
    let weights = Arc::downgrade(&twin);
    drop(twin);
    assert!(weights.upgrade().is_none());
    let before = counted(&model, "drafted");
    assert_eq!(tokens(&text), expected);
    assert_eq!(tokens(&begin(&model, &prompt(20, 1), &config)), expected);
    assert_eq!(counted(&model, "drafted"), before);
    drop(text);
    no_pages(&model);
}

#[test]
fn little_memory_is_no_reason_to_fail() {
    let twin = Arc::new(roomy("llama", 512));
    let plain = Arc::new(roomy("llama", 512));
    let token = 2 * 2 * 2 * 8 * 4;
    // Six pages for each of both.
    let extras = Extras {
        draft: Some(&twin),
        ..limited(2 * 6 * 64 * token)
    };
    let model = Arc::new(roomy_with("llama", 512, &extras));
    assert_eq!(counted(&model, "pages_free"), 6);
    let config = configs(Speculative::Draft).swap_remove(1);
    let plainly = configs(Speculative::None).swap_remove(1);
    let texts: Vec<_> = (0..4)
        .map(|at| begin(&model, &prompt(150, at), &config))
        .collect();
    for (at, text) in (0..).zip(&texts) {
        let expected = tokens(&begin(&plain, &prompt(150, at), &plainly));
        assert_eq!(tokens(text), expected);
    }
    drop(texts);
    no_pages(&model);
}

#[test]
fn another_vocabulary_is_refused() {
    let tokenizer = Tokenizer::from_directory(&tiny("bert")).unwrap();
    let options = LoadOptions {
        tokenizer: Some(tokenizer),
        ..Default::default()
    };
    let cancel = CancelToken::new();
    let folder = tiny("decoders/qwen2");
    let files =
        formats::files::model_files::ModelFiles::open(folder.to_str().unwrap(), None, &cancel);
    let other = LanguageModel::load(&files.unwrap(), &options, &[], &cancel).unwrap();
    let refused = load_with(&tiny("decoders/llama"), &drafting(&Arc::new(other)));
    let message = refused.err().unwrap().to_string();
    assert!(message.contains("same vocabulary"), "{message}");
    assert!(message.contains("tiny/bert"), "{message}");
}

/// Pearson's statistic of pairs of tokens, against what the model's own logits say. The bound is the
/// 99.99 % point of chi-square with fifteen degrees of freedom; seeds are fixed.
#[test]
fn sampled_texts_keep_their_distribution() {
    const DRAWS: u64 = 3_000;
    const TOP: usize = 4;
    let stranger = Arc::new(load(&tiny("decoders/qwen2")));
    let model = llama_with(&stranger);
    let prompt = prompt(5, 2);
    let likeliest = |ids: &[u32]| -> Vec<(u32, f64)> {
        let mut cache = model.decoder().new_cache().unwrap();
        let cancel = CancelToken::new();
        let logits = model
            .decoder()
            .forward(ids, &mut cache, Logits::Last, &cancel);
        let row = logits.unwrap().to_vec2::<f32>().unwrap().swap_remove(0);
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
        order.truncate(TOP);
        let weights: Vec<f64> = order
            .iter()
            .map(|id| f64::from(row[*id as usize]).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        let shares = weights.iter().map(|weight| weight / total);
        order.iter().copied().zip(shares).collect()
    };
    let mut expected = Vec::new();
    for (first, share) in likeliest(&prompt) {
        let ids = [&prompt[..], &[first]].concat();
        for (second, next) in likeliest(&ids) {
            expected.push(([first, second], share * next));
        }
    }
    let mut counts = vec![0u64; expected.len()];
    for seed in 0..DRAWS {
        let config = GenerationConfig {
            max_new_tokens: 2,
            temperature: 1.0,
            top_k: Some(TOP),
            seed: seed * 7919,
            speculative: Speculative::Draft,
            ..Default::default()
        };
        let found = tokens(&begin(&model, &prompt, &config));
        let at = expected.iter().position(|(pair, _)| found == pair);
        counts[at.unwrap()] += 1;
    }
    assert!(counted(&model, "drafted") > DRAWS / 2);
    let parts = counts.iter().zip(&expected).map(|(count, (_, share))| {
        let wanted = share * DRAWS as f64;
        (*count as f64 - wanted).powi(2) / wanted
    });
    let statistic: f64 = parts.sum();
    assert!(statistic < 44.3, "{statistic}: {counts:?} of {expected:?}");
}
