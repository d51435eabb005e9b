//! Tokenizers of encoders from the files of checkpoints without a `tokenizer.json`, against transformers; files that
//! are refused or damaged.

use std::path::{Path, PathBuf};

use engine::{CancelToken, Error};
use formats::text::tokenizer::{Detail, Tokenizer};
use serde_json::{json, Value};

use crate::decoder::numbers;
use crate::weight_files::Folder;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/tokenizers/encoders")
}

fn read(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn kinds() -> Vec<String> {
    let entries = std::fs::read_dir(root()).unwrap().map(|e| e.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut kinds: Vec<String> = folders
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    kinds.sort();
    kinds
}

/// The files of a kind, and others in place of some of them; empty ones are left out.
fn folder(kind: &str, others: &[(&str, &[u8])]) -> Folder {
    let folder = Folder::new();
    for entry in std::fs::read_dir(root().join(kind)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name != "expected.json" && others.iter().all(|(other, _)| *other != name) {
            folder.write(name, std::fs::read(&path).unwrap());
        }
    }
    for (name, content) in others.iter().filter(|(_, content)| !content.is_empty()) {
        folder.write(name, content);
    }
    folder
}

fn changed(kind: &str, others: &[(&str, &[u8])]) -> Result<Tokenizer, Error> {
    Tokenizer::from_directory(&folder(kind, others).path(""))
}

/// How many texts and pairs were compared.
fn compare(kind: &str, tokenizer: &Tokenizer) -> usize {
    let expected = read(root().join(kind).join("expected.json"));
    let texts = read(root().join("texts.json"));
    let texts: Vec<&str> = texts
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect();
    let mut compared = 0;
    let singles = expected["ids"].as_array().unwrap();
    for (text, ids) in texts.iter().zip(singles).filter(|(_, ids)| !ids.is_null()) {
        let found = tokenizer.ids(text, true).unwrap();
        assert_eq!(found, numbers(ids), "{kind} {text:?}");
        compared += 1;
    }
    let pairs = expected["pairs"].as_array().into_iter().flatten();
    let both = texts.iter().zip(&texts[1..]);
    for ((first, second), ids) in both.zip(pairs).filter(|(_, ids)| !ids.is_null()) {
        let cancel = CancelToken::new();
        let found = tokenizer.encode((*first, *second), true, Detail::Ids, &cancel);
        let found = found.unwrap();
        assert_eq!(found.get_ids(), numbers(ids), "{kind} {first:?} {second:?}");
        compared += 1;
    }
    compared
}

#[test]
fn ids_of_texts_and_pairs_equal_the_reference() {
    let kinds = kinds();
    assert_eq!(kinds.len(), 9);
    for kind in kinds {
        let tokenizer = Tokenizer::from_directory(&root().join(&kind)).unwrap();
        assert!(compare(&kind, &tokenizer) >= 40, "{kind}");
    }
}

#[test]
fn classes_and_types_of_models_that_read_the_same_files_give_the_same_ids() {
    for kind in kinds() {
        let also = read(root().join(&kind).join("expected.json"))["also"].take();
        let own = read(root().join(&kind).join("tokenizer_config.json"));
        let each = |key: &str| also[key].as_array().cloned().unwrap_or_default();
        for class in each("tokenizer_class") {
            let mut config = own.clone();
            config["tokenizer_class"] = class;
            let config = config.to_string();
            let tokenizer = changed(&kind, &[("tokenizer_config.json", config.as_bytes())]);
            assert!(compare(&kind, &tokenizer.unwrap()) >= 40, "{kind} {config}");
        }
        for model_type in each("model_type") {
            let mut config = own.clone();
            config.as_object_mut().unwrap().remove("tokenizer_class");
            let config = config.to_string();
            let model = json!({ "model_type": model_type }).to_string();
            let others = [
                ("tokenizer_config.json", config.as_bytes()),
                ("config.json", model.as_bytes()),
            ];
            let tokenizer = changed(&kind, &others).unwrap();
            assert!(compare(&kind, &tokenizer) >= 40, "{kind} {model}");
        }
    }
}

#[test]
fn pairs_have_the_types_their_models_were_trained_with() {
    for (kind, second) in [
        ("esm", 0),
        ("roberta", 0),
        ("xlm-roberta", 0),
        ("albert", 1),
        ("big_bird", 1),
        ("deberta", 1),
        ("rembert", 1),
    ] {
        let tokenizer = Tokenizer::from_directory(&root().join(kind)).unwrap();
        let pair = tokenizer.encode(("A", "A"), true, Detail::Ids, &CancelToken::new());
        let pair = pair.unwrap();
        assert_eq!(pair.get_type_ids()[0], 0, "{kind}");
        assert_eq!(pair.get_type_ids().last(), Some(&second), "{kind}");
    }
}

#[test]
fn residues_of_a_protein_are_tokens_with_places() {
    let tokenizer = Tokenizer::from_directory(&root().join("esm")).unwrap();
    let found = tokenizer.encode("MK xyT", true, Detail::Offsets, &CancelToken::new());
    let found = found.unwrap();
    let tokens: Vec<&str> = found.get_tokens().iter().map(String::as_str).collect();
    assert_eq!(tokens, ["<cls>", "M", "K", "<unk>", "T", "<eos>"]);
    assert_eq!(found.get_offsets()[1..5], [(0, 1), (1, 2), (3, 5), (5, 6)]);
    assert_eq!(tokenizer.special_tokens().id("mask_token"), Some(32));
    assert_eq!(tokenizer.decode(&[0, 20, 15, 2], true).unwrap(), "M K");
}

/// A vocabulary as XLM's are, with words' ends marked.
fn marked_vocabulary() -> String {
    let tokens = ["<s>", "</s>", "<pad>", "<unk>", "a</w>", "b</w>", "a", "b"];
    let ids = (0..)
        .zip(tokens)
        .map(|(id, token)| (token.to_owned(), json!(id)));
    Value::Object(ids.collect()).to_string()
}

#[test]
fn vocabularies_of_foreign_rules_are_refused_with_what_to_do() {
    let vocab = marked_vocabulary();
    let with = |config: &str, model: &str| {
        let others: [(&str, &[u8]); 4] = [
            ("vocab.json", vocab.as_bytes()),
            ("merges.txt", b"a b</w>\n"),
            ("tokenizer_config.json", config.as_bytes()),
            ("config.json", model.as_bytes()),
        ];
        changed("roberta", &others).map(drop)
    };
    for (config, model, word) in [
        (r#"{"tokenizer_class": "XLMTokenizer"}"#, "", "XLMTokenizer"),
        (
            r#"{"tokenizer_class": "FlaubertTokenizer"}"#,
            "",
            "FlaubertTokenizer",
        ),
        ("{}", r#"{"model_type": "xlm"}"#, "XLMTokenizer"),
        ("{}", r#"{"model_type": "flaubert"}"#, "FlaubertTokenizer"),
        ("{}", "", "</w>"),
    ] {
        match with(config, model) {
            Err(Error::UnsupportedModel(message)) => {
                assert!(message.contains(word), "{word:?} is not in {message:?}");
                assert!(message.contains("tokenizer:"), "{message}");
            }
            other => panic!("{config} {model}: {other:?}"),
        }
    }
    let chinese = br#"{"tokenizer_class": "RoFormerTokenizer"}"#;
    match changed("esm", &[("tokenizer_config.json", chinese)]).map(drop) {
        Err(Error::UnsupportedModel(message)) => {
            assert!(message.contains("Chinese"), "{message}");
            assert!(message.contains("tokenizer.json"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_that_miss_tokens_are_refused_with_their_names() {
    let cases: [(&str, &str, &[u8], &str); 5] = [
        ("esm", "vocab.txt", b"<cls>\nA\n<unk>\n", "<eos>"),
        (
            "roberta",
            "vocab.json",
            br#"{"a": 0, "</s>": 1}"#,
            "cls_token",
        ),
        (
            "albert",
            "tokenizer_config.json",
            br#"{"tokenizer_class": "XLNetTokenizer"}"#,
            "XLNet",
        ),
        (
            "rembert",
            "tokenizer_config.json",
            br#"{"tokenizer_class": "XLNetTokenizer"}"#,
            "XLNet",
        ),
        (
            "big_bird",
            "tokenizer_config.json",
            br#"{"tokenizer_class": "BigBirdTokenizer", "cls_token": "[NO]"}"#,
            "[NO]",
        ),
    ];
    for (kind, file, content, word) in cases {
        let mut others: Vec<(&str, &[u8])> = vec![(file, content)];
        if file == "vocab.json" {
            others.push(("merges.txt", b"#version: 0.2\n"));
        }
        match changed(kind, &others).map(drop) {
            Err(Error::CorruptModel(message) | Error::UnsupportedModel(message)) => {
                assert!(message.contains(word), "{word:?} is not in {message:?}");
            }
            other => panic!("{kind} {file}: {other:?}"),
        }
    }
}

#[test]
fn damaged_models_never_panic() {
    for (kind, file) in [
        ("xlm-roberta", "sentencepiece.bpe.model"),
        ("camembert", "sentencepiece.bpe.model"),
        ("albert", "spiece.model"),
        ("big_bird", "spiece.model"),
        ("rembert", "sentencepiece.model"),
        ("esm", "vocab.txt"),
    ] {
        let sound = std::fs::read(root().join(kind).join(file)).unwrap();
        for at in (0..sound.len()).step_by(89) {
            let mut bytes = sound.clone();
            bytes[at] ^= 0xff;
            for bytes in [&bytes[..], &sound[..at]] {
                match changed(kind, &[(file, bytes)]) {
                    Ok(tokenizer) => drop(tokenizer.ids("the ﬁne café 東京", true)),
                    Err(
                        Error::CorruptModel(_) | Error::UnsupportedModel(_) | Error::Tokenizer(_),
                    ) => {}
                    Err(other) => panic!("{kind}: {other:?}"),
                }
            }
        }
    }
}
