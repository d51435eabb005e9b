//! How the tokenizers of GGUF files cut texts, against llama.cpp on the same vocabulary.

use formats::text::tokenizer::Tokenizer;
use serde_json::Value;

use super::weight_files::{Folder, Gguf};

/// Names whose checkpoints compose characters first, which llama.cpp does not.
const COMPOSING: [&str; 9] = [
    "mpt",
    "olmo",
    "qwen2",
    "deepseek-r1-qwen",
    "megrez",
    "stablelm2",
    "kormo",
    "f2llmv2",
    "qwen35",
];
/// Names whose patterns tell capital letters from small ones, and count combining marks to either. llama.cpp has
/// patterns of its own instead, which do so for some letters only; ours are those of the checkpoints.
const BY_CASE: [&str; 10] = [
    "tekken",
    "gpt-4o",
    "llama4",
    "kanana2",
    "talkie",
    "minimax-m2",
    "tiny_aya",
    "cohere2moe",
    "youtu",
    "kimi-k2",
];

/// Whether llama.cpp may cut this text otherwise.
fn is_left_out(name: &str, text: &str) -> bool {
    let contains = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    COMPOSING.contains(&name) && contains(&["\u{301}"])
        || BY_CASE.contains(&name) && contains(&["CamelCase", "\u{94d}"])
}

fn record() -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../spec/fixtures/tokenizers/pre_tokenizers.json"
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn strings(value: &Value) -> Vec<&str> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_str().unwrap()).collect()
}

/// A file that is nothing but a vocabulary.
fn vocabulary(model: &str, pre: Option<&str>, given: &Value) -> (Folder, Tokenizer) {
    let list = |kind: u32, bytes: Vec<Vec<u8>>| {
        let mut array = kind.to_le_bytes().to_vec();
        array.extend((bytes.len() as u64).to_le_bytes());
        array.extend(bytes.concat());
        array
    };
    let text = |values: Vec<&str>| list(8, values.into_iter().map(Gguf::string).collect());
    let tokens = strings(&given["tokens"]);
    let kind = |token: &&str| match *token {
        "<s>" | "</s>" => 3u32,
        byte if byte.starts_with("<0x") => 6,
        _ => 1,
    };
    let kinds = tokens
        .iter()
        .map(|token| kind(token).to_le_bytes().to_vec());
    let mut file = Gguf::new()
        .key("tokenizer.ggml.model", 8, &Gguf::string(model))
        .key("tokenizer.ggml.token_type", 9, &list(5, kinds.collect()))
        .key("tokenizer.ggml.tokens", 9, &text(tokens))
        .key("tokenizer.ggml.merges", 9, &text(strings(&given["merges"])))
        .key("tokenizer.ggml.bos_token_id", 4, &0u32.to_le_bytes());
    if let Some(pre) = pre {
        file = file.key("tokenizer.ggml.pre", 8, &Gguf::string(pre));
    }
    let folder = Folder::new();
    let path = folder.write("vocabulary.gguf", file.bytes());
    let source = formats::weights::open(&formats::files::model_files::WeightFiles::Gguf(path));
    let tokenizer = Tokenizer::from_gguf(source.unwrap().metadata()).unwrap();
    (folder, tokenizer)
}

/// The texts that a tokenizer cuts otherwise than it should.
fn differing(tokenizer: &Tokenizer, name: &str, texts: &[&str], expected: &Value) -> Vec<String> {
    let pairs = texts.iter().zip(expected.as_array().unwrap());
    pairs
        .filter(|(text, _)| !is_left_out(name, text))
        .filter_map(|(text, expected)| {
            let ids = tokenizer.ids(text, false).unwrap();
            let expected: Vec<u32> = serde_json::from_value(expected.clone()).unwrap();
            (ids != expected).then(|| format!("{name}: {text:?}: {ids:?} instead of {expected:?}"))
        })
        .collect()
}

#[test]
fn texts_are_cut_as_llama_cpp_cuts_them() {
    let record = record();
    let texts = strings(&record["texts"]);
    let mut failures = Vec::new();
    for cut in record["cuts"].as_array().unwrap() {
        for name in strings(&cut["names"]) {
            let (_folder, tokenizer) = vocabulary("gpt2", Some(name), &record);
            failures.extend(differing(&tokenizer, name, &texts, &cut["ids"]));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn marked_spaces_and_merges_make_a_vocabulary_too() {
    let record = record();
    let given = &record["gemma4"];
    let (_folder, tokenizer) = vocabulary("gemma4", None, given);
    let texts = strings(&record["texts"]);
    let failures = differing(&tokenizer, "gemma4", &texts, &given["ids"]);
    assert!(failures.is_empty(), "{failures:#?}");
    for text in texts {
        let ids = tokenizer.ids(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    }
}
