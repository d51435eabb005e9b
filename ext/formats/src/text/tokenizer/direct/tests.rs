//! What is encoded directly is what the pipeline of the `tokenizers` crate encodes: a part of what
//! `rake fuzz:tokenizers` compares with real vocabularies.

use std::path::PathBuf;

use serde_json::{json, Value};

use super::patterns::{
    BAILING, DIGIT, GPT2, GPT4O, LLAMA3, MINICPM5, QWEN2, QWEN35, SEED, TEKKEN, UP_TO_THREE,
};
use crate::text::tokenizer::Tokenizer;

#[path = "../../../../../../bench/tokenizers/strings.rs"]
mod strings;

fn fixture(name: &str) -> PathBuf {
    let fixtures = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../spec/fixtures/tokenizers"
    );
    PathBuf::from(fixtures).join(name)
}

/// The tokenizer of a file whose parts are replaced.
fn with(name: &str, change: impl FnOnce(&mut Value)) -> Tokenizer {
    let text = std::fs::read_to_string(fixture(name).join("tokenizer.json")).unwrap();
    let mut file = serde_json::from_str(&text).unwrap();
    change(&mut file);
    let place = std::env::temp_dir().join(format!(
        "red-candle-direct-{}-{:?}.json",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::write(&place, file.to_string()).unwrap();
    let tokenizer = Tokenizer::from_file(&place);
    std::fs::remove_file(&place).unwrap();
    tokenizer.unwrap()
}

fn compare(what: &str, tokenizer: &Tokenizer, texts: usize) {
    assert!(tokenizer.is_direct(), "{what}");
    assert!(!tokenizer.by_pipeline().is_direct());
    let tokens = strings::added_tokens(tokenizer);
    let mut random = strings::Random(texts as u64);
    for _ in 0..texts {
        if let Some(difference) = strings::difference(tokenizer, &tokens, &mut random) {
            panic!("{what}: {difference}");
        }
    }
}

fn split(pattern: &str) -> Value {
    json!({
        "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false
    })
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true,
        "use_regex": use_regex
    })
}

#[test]
fn word_pieces_are_those_of_the_pipeline() {
    let plain = Tokenizer::from_directory(&fixture("wordpiece")).unwrap();
    compare("wordpiece", &plain, 4000);
    let lines = Tokenizer::from_directory(&fixture("vocab_txt")).unwrap();
    compare("vocab.txt", &lines, 1000);
    for (clean, chinese, accents, lower) in [
        (true, true, json!(false), true),
        (true, false, json!(null), false),
        (false, true, json!(true), false),
        (false, false, json!(true), true),
    ] {
        let tokenizer = with("wordpiece", |file| {
            file["normalizer"] = json!({
                "type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese,
                "strip_accents": accents, "lowercase": lower
            });
            file["model"]["max_input_chars_per_word"] = json!(10);
        });
        compare(
            &format!("{clean} {chinese} {accents} {lower}"),
            &tokenizer,
            1000,
        );
    }
}

#[test]
fn byte_pairs_are_those_of_the_pipeline() {
    let plain = Tokenizer::from_directory(&fixture("byte_level_bpe")).unwrap();
    compare("byte_level_bpe", &plain, 3000);
    let files = Tokenizer::from_directory(&fixture("vocab_json")).unwrap();
    compare("vocab.json", &files, 1000);
    for pattern in [
        BAILING, GPT2, GPT4O, LLAMA3, MINICPM5, QWEN2, QWEN35, SEED, TEKKEN,
    ] {
        let tokenizer = with("byte_level_bpe", |file| {
            let steps = [split(pattern), byte_level(false, false)];
            file["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": steps });
        });
        compare(pattern, &tokenizer, 1000);
    }
    let digits = |single: bool| json!({ "type": "Digits", "individual_digits": single });
    for first in [
        split(DIGIT),
        split(UP_TO_THREE),
        digits(true),
        digits(false),
    ] {
        let tokenizer = with("byte_level_bpe", |file| {
            let steps = [&first, &byte_level(false, true)];
            file["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": steps });
        });
        compare(&first.to_string(), &tokenizer, 1000);
    }
}

#[test]
fn flags_of_byte_pairs_are_followed() {
    for (prefix, regex) in [(true, true), (true, false), (false, false)] {
        let tokenizer = with("byte_level_bpe", |file| {
            file["pre_tokenizer"] = byte_level(prefix, regex);
            file["post_processor"] = byte_level(prefix, regex);
        });
        compare(&format!("{prefix} {regex}"), &tokenizer, 500);
    }
    let composing = with("byte_level_bpe", |file| {
        file["normalizer"] = json!({ "type": "NFC" });
        for token in file["added_tokens"].as_array_mut().unwrap() {
            token["normalized"] = json!(false);
        }
    });
    compare("NFC", &composing, 1000);
    let taking = with("byte_level_bpe", |file| {
        file["model"]["ignore_merges"] = json!(true);
        let tokens = file["added_tokens"].as_array_mut().unwrap().iter_mut();
        for (token, at) in tokens.zip(0..) {
            token["lstrip"] = json!(at % 2 == 0);
            token["rstrip"] = json!(at % 3 == 0);
            token["normalized"] = json!(at % 2 == 1);
        }
    });
    compare("ignore_merges", &taking, 1000);
}

#[test]
fn what_is_not_known_goes_through_the_pipeline() {
    type Change = fn(&mut Value);
    let changes: [(&str, &str, Change); 6] = [
        ("a normalizer", "wordpiece", |file| {
            file["normalizer"] = json!({ "type": "Lowercase" });
        }),
        ("a pre-tokenizer", "wordpiece", |file| {
            file["pre_tokenizer"] = json!({ "type": "Whitespace" });
        }),
        ("a pattern", "byte_level_bpe", |file| {
            let steps = [split(r"\w+|\W+"), byte_level(false, false)];
            file["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": steps });
        }),
        ("dropout", "byte_level_bpe", |file| {
            file["model"]["dropout"] = json!(0.5);
        }),
        ("an end of words", "byte_level_bpe", |file| {
            file["model"]["end_of_word_suffix"] = json!("</w>");
        }),
        ("single words", "wordpiece", |file| {
            file["added_tokens"][0]["single_word"] = json!(true);
        }),
    ];
    for (what, name, change) in changes {
        assert!(!with(name, change).is_direct(), "{what}");
    }
}
