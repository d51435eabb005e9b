//! Tokenizer files that multiply texts, and those whose parts contradict each other.

use std::time::{Duration, Instant};

use engine::{CancelToken, Error, Result};
use formats::text::tokenizer::{Detail, Tokenizer};
use serde_json::{json, Value};

use crate::allocation::peak_during;
use crate::tiny_folder::tiny;
use crate::weight_files::Folder;

/// The tokenizer of a tiny model with other values in it.
fn changed(changes: &[(&str, Value)]) -> Result<Tokenizer> {
    let text = std::fs::read_to_string(tiny("bert/tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    for (path, value) in changes {
        *tokenizer.pointer_mut(path).unwrap() = value.clone();
    }
    let folder = Folder::new();
    Tokenizer::from_file(&folder.write("tokenizer.json", tokenizer.to_string()))
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({ "type": "Replace", "pattern": pattern, "content": content })
}

#[track_caller]
fn refused(changes: &[(&str, Value)]) {
    let (result, peak) = peak_during(|| changed(changes));
    match result {
        Err(Error::CorruptModel(message)) => {
            assert!(message.contains("tokenizer.json"), "{message}");
        }
        Err(Error::UnsupportedModel(_)) => {}
        other => panic!("{changes:?} gave {other:?}"),
    }
    assert!(peak < 256 << 20, "{peak}");
}

#[test]
fn normalizers_that_multiply_a_text_are_refused() {
    let sequence = |step: Value| json!({ "type": "Sequence", "normalizers": vec![step; 40] });
    let empty = json!({ "String": "" });
    refused(&[("/normalizer", sequence(replace(empty, "ab")))]);
    let any = json!({ "Regex": "." });
    refused(&[("/normalizer", sequence(replace(any.clone(), "aa")))]);
    let long = "x".repeat(1 << 20);
    refused(&[("/normalizer", replace(any, &long))]);
}

#[test]
fn parts_that_contradict_each_other_are_refused() {
    let template = json!({
        "type": "TemplateProcessing", "special_tokens": {},
        "single": [{ "SpecialToken": { "id": "[NONE]", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }]
    });
    refused(&[("/post_processor", template)]);
    let fixed = json!({ "type": "FixedLength", "length": 0 });
    refused(&[("/pre_tokenizer", fixed)]);
    refused(&[
        ("/model/vocab", json!({})),
        ("/added_tokens", json!([])),
        ("/post_processor", Value::Null),
    ]);
}

/// Whatever a file asks for, a text gives tokens or an error, and never a panic.
#[test]
fn odd_normalizers_never_panic() {
    for normalizer in [
        replace(json!({ "Regex": "\\b" }), "x"),
        replace(json!({ "Regex": "" }), ""),
        replace(json!({ "String": "" }), ""),
        json!({ "type": "Prepend", "prepend": "" }),
        json!({ "type": "Sequence", "normalizers": [] }),
    ] {
        let Ok(tokenizer) = changed(&[("/normalizer", normalizer)]) else {
            continue;
        };
        for text in ["", " ", "the quick", "\u{301}", "漢字"] {
            tokenizer
                .encode(text, true, Detail::Offsets, &CancelToken::new())
                .ok();
        }
    }
}

#[test]
fn an_interrupt_ends_the_tokenizing_of_a_long_word_at_once() {
    let tokenizer = Tokenizer::from_file(&tiny("bert/tokenizer.json")).unwrap();
    let text = "e\u{301}".repeat(4 << 20);
    let cancel = CancelToken::new();
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let result = tokenizer.encode(&*text, true, Detail::Ids, &cancel);
            (result.map(drop), Instant::now())
        });
        std::thread::sleep(Duration::from_millis(100));
        let cancelled = Instant::now();
        cancel.cancel();
        let (_, ended) = work.join().unwrap();
        let latency = ended.saturating_duration_since(cancelled);
        assert!(latency < Duration::from_millis(200), "{latency:?}");
    });
}
