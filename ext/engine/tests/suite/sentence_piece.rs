//! Tokenizers from SentencePiece's files, against transformers and SentencePiece itself, and files that
//! lie.

use std::path::Path;

use engine::Error;
use formats::text::tokenizer::Tokenizer;
use serde_json::Value;

use crate::allocation::peak_during;
use crate::decoder::numbers;
use crate::tiny_folder::tiny;
use crate::weight_files::Folder;

const KINDS: [&str; 5] = ["t5", "pegasus", "marian", "m2m100", "nllb"];
/// What reading a damaged file may hold at most: the text it is tried on may grow to a megabyte, of which
/// every byte is kept with its origin, twice over.
const MOST_BYTES: usize = 64 << 20;

fn expected(kind: &str) -> Value {
    let path = tiny("sentencepiece").join(kind).join("expected.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn ids_and_texts_equal_the_reference() {
    for kind in KINDS {
        let tokenizer = Tokenizer::from_directory(&tiny("sentencepiece").join(kind)).unwrap();
        let expected = expected(kind);
        let rows = expected["ids"].as_array().unwrap();
        let texts = expected["texts"].as_array().unwrap();
        let decoded = expected["decoded"].as_array().unwrap();
        for ((text, row), decoded) in texts.iter().zip(rows).zip(decoded) {
            let mut ids = numbers(row);
            let found = tokenizer.ids(text.as_str().unwrap(), true).unwrap();
            assert_eq!(
                tokenizer.decode(&ids, true).unwrap().trim(),
                decoded.as_str().unwrap().trim(),
                "{kind} {text}"
            );
            // The language before a text is a task's to put there.
            if ["m2m100", "nllb"].contains(&kind) {
                ids.remove(0);
            }
            assert_eq!(found, ids, "{kind} {text}");
        }
    }
}

#[test]
fn languages_have_the_ids_of_the_reference() {
    for (kind, token) in [("m2m100", "__fr__"), ("nllb", "fra_Latn")] {
        let tokenizer = Tokenizer::from_directory(&tiny("sentencepiece").join(kind)).unwrap();
        let french = expected(kind)["french"][0][0].as_u64().unwrap() as u32;
        assert_eq!(tokenizer.token_to_id(token), Some(french), "{kind}");
        assert!(tokenizer.is_special(token));
    }
    let marian = Tokenizer::from_directory(&tiny("sentencepiece").join("marian")).unwrap();
    let ids = marian.ids(">>fra<< a", true).unwrap();
    assert_eq!(ids[0], marian.token_to_id(">>fra<<").unwrap());
}

/// The files of a kind with one of them replaced.
fn changed(kind: &str, file: &str, content: &[u8]) -> Result<Tokenizer, Error> {
    let folder = Folder::new();
    for entry in std::fs::read_dir(tiny("sentencepiece").join(kind)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        folder.write(name, std::fs::read(&path).unwrap());
    }
    folder.write(file, content);
    Tokenizer::from_directory(&folder.path(""))
}

fn main_file(kind: &str) -> &'static str {
    match kind {
        "t5" | "pegasus" => "spiece.model",
        "marian" => "source.spm",
        _ => "sentencepiece.bpe.model",
    }
}

#[test]
fn damaged_models_are_refused_or_read_but_never_more() {
    for kind in KINDS {
        let file = main_file(kind);
        let sound = std::fs::read(tiny("sentencepiece").join(kind).join(file)).unwrap();
        let mut damaged: Vec<Vec<u8>> = (0..sound.len())
            .step_by(97)
            .map(|end| sound[..end].to_vec())
            .collect();
        damaged.extend((0..sound.len()).step_by(61).map(|at| {
            let mut bytes = sound.clone();
            bytes[at] ^= 0xff;
            bytes
        }));
        for bytes in damaged {
            let (result, peak) = peak_during(|| changed(kind, file, &bytes));
            assert!(peak < MOST_BYTES, "{kind}: {peak} bytes");
            match result {
                Err(Error::CorruptModel(message) | Error::UnsupportedModel(message)) => {
                    let named = [file, "vocab", "its tokenizer's parts"];
                    let says = named.iter().any(|word| message.contains(word));
                    assert!(says, "{message}");
                }
                Err(Error::Tokenizer(_)) => {}
                Err(other) => panic!("{kind}: {other:?}"),
                Ok(tokenizer) => {
                    // It may have become another tokenizer, but a text never takes it down.
                    let _ = tokenizer.ids("the ﬁne café 東京", true);
                }
            }
        }
    }
}

#[test]
fn files_beside_a_model_that_lie_are_refused_with_the_reason() {
    let cases: [(&str, &str, &[u8], &str); 7] = [
        ("t5", "spiece.model", b"", "no pieces"),
        (
            "t5",
            "tokenizer_config.json",
            br#"{"extra_ids": 4000000000}"#,
            "extra_ids",
        ),
        (
            "t5",
            "tokenizer_config.json",
            br#"{"tokenizer_class": "XLNetTokenizer"}"#,
            "XLNet",
        ),
        (
            "marian",
            "vocab.json",
            br#"{"</s>": 4000000000, "<unk>": 0}"#,
            "4000000000",
        ),
        ("marian", "vocab.json", br#"{"</s>": 0, "a": 1}"#, "<unk>"),
        ("m2m100", "vocab.json", b"[1, 2]", "vocabulary"),
        ("nllb", "tokenizer_config.json", b"{}", "languages"),
    ];
    for (kind, file, content, word) in cases {
        match changed(kind, file, content) {
            Err(Error::CorruptModel(message) | Error::UnsupportedModel(message)) => {
                assert!(message.contains(word), "{word:?} is not in {message:?}");
            }
            other => panic!("{kind} {file}: {:?}", other.map(drop)),
        }
    }
    let nothing = Tokenizer::from_directory(Path::new("src")).map(drop);
    assert!(matches!(nothing, Err(Error::Tokenizer(message)) if message.contains("spiece.model")));
}
