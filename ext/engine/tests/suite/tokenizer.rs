//! Tokenizers of every kind: streaming equals decoding, other files give the same ids, and damaged
//! files give errors.

use std::path::{Path, PathBuf};

use engine::{CancelToken, Error};
use formats::text::tokenizer::{Detail, Input, Tokenizer, Truncation};

use crate::seeded_gguf::encoded;
use crate::tiny_folder::tiny;
use crate::weight_files::{Folder, Gguf};

const KINDS: [&str; 4] = ["wordpiece", "byte_level_bpe", "sentencepiece", "unigram"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/tokenizers")
}

fn load(kind: &str) -> Tokenizer {
    Tokenizer::from_directory(&fixtures().join(kind)).unwrap()
}

/// Numerical Recipes' generator: plain, and the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit
    }
}

#[test]
fn streamed_pieces_concatenate_to_the_decoded_text() {
    let mut random = Random(42);
    for kind in KINDS {
        let tokenizer = load(kind);
        let size = tokenizer.vocab_size(true);
        for round in 0..2000 {
            let length = random.below(if round % 10 == 0 { 200 } else { 12 });
            let ids: Vec<u32> = (0..length).map(|_| random.below(size) as u32).collect();
            for skip in [true, false] {
                let mut stream = tokenizer.stream(skip);
                let mut text = String::new();
                for &id in &ids {
                    text.push_str(&stream.push(id).unwrap());
                }
                text.push_str(&stream.finish().unwrap());
                assert_eq!(
                    text,
                    tokenizer.decode(&ids, skip).unwrap(),
                    "{kind} {ids:?}"
                );
            }
        }
    }
}

#[test]
fn streaming_holds_back_only_unfinished_characters() {
    let tokenizer = load("byte_level_bpe");
    let ids = tokenizer.ids("a🙂b", false).unwrap();
    let mut stream = tokenizer.stream(true);
    let pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(pieces.concat(), "a🙂b");
    assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')));
    assert_eq!(pieces.first().map(String::as_str), Some("a"));
}

#[test]
fn unknown_ids_add_nothing_to_a_stream() {
    let tokenizer = load("byte_level_bpe");
    let mut stream = tokenizer.stream(true);
    assert_eq!(stream.push(u32::MAX).unwrap(), "");
    assert!(matches!(
        tokenizer.check_ids(&[u32::MAX]),
        Err(Error::InvalidInput(_))
    ));
}

#[test]
fn ids_without_detail_are_those_with_it() {
    let cancel = CancelToken::new();
    for kind in KINDS {
        let tokenizer = load(kind).with_truncation(Some(Truncation::new(7)));
        let inputs = [
            Input::from("The cat sat on the mat, didn't it?"),
            Input::from(("Größe", "the second text is the longer one")),
            Input::from(""),
        ];
        let plain = tokenizer
            .encode_batch(&inputs, true, Detail::Ids, &cancel)
            .unwrap();
        let detailed = tokenizer
            .encode_batch(&inputs, true, Detail::Offsets, &cancel)
            .unwrap();
        for (plain, detailed) in plain.iter().zip(&detailed) {
            assert_eq!(plain.get_ids(), detailed.get_ids());
            assert_eq!(plain.get_type_ids(), detailed.get_type_ids());
            assert_eq!(
                plain.get_special_tokens_mask(),
                detailed.get_special_tokens_mask()
            );
            assert!(plain.len() <= 7);
        }
    }
}

#[test]
fn a_cancelled_call_ends_with_interrupted() {
    let cancel = CancelToken::new();
    cancel.cancel();
    let result = load("wordpiece").encode("text", true, Detail::Ids, &cancel);
    assert!(matches!(result, Err(Error::Interrupted)));
}

#[test]
fn a_limit_below_the_special_tokens_is_refused() {
    let tokenizer = load("wordpiece").with_truncation(Some(Truncation::new(1)));
    assert!(matches!(
        tokenizer.ids("cat", true),
        Err(Error::InvalidInput(_))
    ));
    assert_eq!(tokenizer.ids("the cat", false).unwrap().len(), 1);
}

#[test]
fn end_ids_and_lengths_come_from_the_configuration() {
    let tokenizer = load("byte_level_bpe");
    assert_eq!(tokenizer.special_tokens().id("eos_token"), Some(2));
    assert_eq!(tokenizer.special_tokens().end_ids(), [2, 0]);
    assert_eq!(tokenizer.model_max_length(), None);
    assert_eq!(load("wordpiece").model_max_length(), Some(512));
}

#[test]
fn types_are_given_where_the_tokenizer_lists_them() {
    let json = std::fs::read_to_string(fixtures().join("wordpiece/tokenizer.json")).unwrap();
    for (config, kinds) in [
        (r#"{"tokenizer_class": "BertTokenizer"}"#, 2),
        (r#"{"tokenizer_class": "TokenizersBackend"}"#, 1),
        (
            r#"{"model_input_names": ["input_ids", "attention_mask"]}"#,
            1,
        ),
        (
            r#"{"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids"]}"#,
            2,
        ),
    ] {
        let folder = Folder::new();
        folder.write("tokenizer.json", json.clone());
        folder.write("tokenizer_config.json", config);
        let directory = folder.path("tokenizer.json").parent().unwrap().to_owned();
        let tokenizer = Tokenizer::from_directory(&directory).unwrap();
        let pair = Input::Pair("the cat", "sat");
        let encoding = tokenizer.encode(pair, true, Detail::Ids, &CancelToken::new());
        let mut types = encoding.unwrap().get_type_ids().to_vec();
        types.dedup();
        assert_eq!(types.len(), kinds, "{config}");
    }
}

#[test]
fn damaged_files_give_errors() {
    let source = std::fs::read(fixtures().join("byte_level_bpe/tokenizer.json")).unwrap();
    let directory =
        std::env::temp_dir().join(format!("red-candle-tokenizer-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("tokenizer.json");
    let mut random = Random(7);
    for round in 0..300 {
        let mut bytes = source.clone();
        if round % 2 == 0 {
            bytes.truncate(random.below(source.len()));
        } else {
            for _ in 0..3 {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        match Tokenizer::from_file(&path) {
            Ok(tokenizer) => drop(tokenizer.ids("the cat sat", true)),
            Err(Error::CorruptModel(message) | Error::UnsupportedModel(message)) => {
                assert!(message.contains("tokenizer.json"), "{message}");
            }
            Err(other) => panic!("unexpected error {other:?}"),
        }
    }
    for (open, close) in [
        ("[", "]"),
        (
            "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[",
            "]}}",
        ),
    ] {
        for depth in [60, 100_000] {
            std::fs::write(&path, open.repeat(depth) + &close.repeat(depth)).unwrap();
            let result = Tokenizer::from_file(&path);
            assert!(matches!(
                result,
                Err(Error::CorruptModel(_) | Error::UnsupportedModel(_))
            ));
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn clip_is_read_from_its_vocabulary_files_too() {
    let own = tiny("clip");
    let whole = Tokenizer::from_directory(&own).unwrap();
    let file = std::fs::read(own.join("tokenizer.json")).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let merges = file["model"]["merges"].as_array().unwrap().iter();
    let merges: Vec<String> = merges
        .map(|pair| {
            format!(
                "{} {}",
                pair[0].as_str().unwrap(),
                pair[1].as_str().unwrap()
            )
        })
        .collect();
    for class in ["{\"tokenizer_class\": \"CLIPTokenizer\"}", "{}"] {
        let folder = Folder::new();
        let directory = folder.write("vocab.json", file["model"]["vocab"].to_string());
        folder.write(
            "merges.txt",
            format!("#version: 0.2\n{}\n", merges.join("\n")),
        );
        folder.write("tokenizer_config.json", class);
        let tokenizer = Tokenizer::from_directory(directory.parent().unwrap()).unwrap();
        for text in [
            "a photo of the dog",
            "A  Photo\tof\na CAT, isn't it?",
            "",
            "Éclair 12 <|endoftext|> 東京",
        ] {
            let ids = tokenizer.ids(text, true).unwrap();
            assert_eq!(ids, whole.ids(text, true).unwrap(), "{text:?}");
            assert_eq!(
                tokenizer.decode(&ids, true).unwrap(),
                whole.decode(&ids, true).unwrap()
            );
        }
    }
    let folder = Folder::new();
    let directory = folder.write("vocab.json", "{\"a\": 0}");
    folder.write("merges.txt", "");
    folder.write(
        "tokenizer_config.json",
        "{\"tokenizer_class\": \"CLIPTokenizer\"}",
    );
    let error = Tokenizer::from_directory(directory.parent().unwrap()).unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
}

/// RWKV's vocabulary as GGUF files have it: bytes, and longer tokens, escaped as Python shows bytes.
fn world_vocabulary() -> Tokenizer {
    let longer = [
        "the",
        " the",
        "then",
        "\n\n",
        "  ",
        "    ",
        "é",
        "日本",
        "日",
        "the quick",
        " quick brown",
        "ab",
        "abc",
        "abcd",
        "bcde",
        "it's",
        "\\n",
        "\t\t",
        "🙂",
        " \n",
    ];
    let escaped = |bytes: &[u8]| -> String {
        let escaped = bytes.iter().map(|byte| match byte {
            b'\n' => "\\n".to_owned(),
            b'\t' => "\\t".to_owned(),
            b'\r' => "\\r".to_owned(),
            b'\\' => "\\\\".to_owned(),
            0x20..=0x7e => char::from(*byte).to_string(),
            other => format!("\\x{other:02x}"),
        });
        escaped.collect()
    };
    let bytes = (0..=255u8).map(|byte| escaped(&[byte]));
    let longer = longer.iter().map(|token| escaped(token.as_bytes()));
    let tokens: Vec<String> = ["<s>".to_owned()]
        .into_iter()
        .chain(bytes)
        .chain(longer)
        .collect();
    let kinds: Vec<u32> = (0..tokens.len())
        .map(|id| if id == 0 { 3 } else { 1 })
        .collect();
    gguf_tokenizer("rwkv", &tokens, &kinds, &[]).unwrap()
}

fn gguf_tokenizer(
    model: &str,
    tokens: &[String],
    kinds: &[u32],
    scores: &[f32],
) -> engine::Result<Tokenizer> {
    let mut keys = vec![
        ("general.architecture", "string", serde_json::json!("any")),
        ("tokenizer.ggml.model", "string", serde_json::json!(model)),
        (
            "tokenizer.ggml.tokens",
            "array string",
            serde_json::json!(tokens),
        ),
        (
            "tokenizer.ggml.token_type",
            "array int32",
            serde_json::json!(kinds),
        ),
    ];
    if !scores.is_empty() {
        let scores = serde_json::json!(scores);
        keys.push(("tokenizer.ggml.scores", "array float32", scores));
    }
    let mut file = Gguf::new();
    for (key, kind, value) in keys {
        let (kind, bytes) = encoded(kind, &value);
        file = file.key(key, kind, &bytes);
    }
    let folder = Folder::new();
    let path = folder.write("model.gguf", file.bytes());
    let source =
        formats::weights::open(&formats::files::model_files::WeightFiles::Gguf(path)).unwrap();
    Tokenizer::from_gguf(source.metadata())
}

/// The ids are those that llama.cpp gives for the same file.
#[test]
fn the_best_sum_of_scores_cuts_a_text_of_plamo() {
    let pieces = [
        (" ", -2.5),
        ("a", -3.0),
        ("b", -3.25),
        ("ab", -6.25),
        ("abc", -7.0),
        ("c", -4.0),
        ("the", -3.5),
        (" the", -4.0),
        ("then", -6.0),
        ("n", -3.0),
        ("\n", -3.0),
        ("\n\n", -5.5),
        ("日", -5.0),
        ("本", -5.0),
        ("日本", -7.5),
        ("本語", -6.0),
        ("é", -4.5),
        ("  ", -5.0),
        ("    ", -8.0),
        ("🙂", -9.0),
        ("0", -4.0),
        ("1", -4.0),
        ("10", -9.0),
    ];
    let special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>"].map(str::to_owned);
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let texts = pieces.iter().map(|(text, _)| (*text).to_owned());
    let tokens: Vec<String> = special.into_iter().chain(bytes).chain(texts).collect();
    let kinds: Vec<u32> = (0..tokens.len())
        .map(|id| match id {
            0 => 2,
            1 | 2 => 3,
            3..259 => 6,
            _ => 1,
        })
        .collect();
    let scores = std::iter::repeat_n(-2000.0, 259);
    let scores: Vec<f32> = scores
        .chain(pieces.iter().map(|(_, score)| *score))
        .collect();
    let tokenizer = gguf_tokenizer("plamo2", &tokens, &kinds, &scores).unwrap();
    let cases: [(&str, &[u32]); 5] = [
        ("the abcab then", &[265, 259, 263, 262, 266, 268]),
        (
            "ab abc  c\n\n\nthe",
            &[262, 259, 263, 276, 264, 270, 269, 265],
        ),
        (
            "日本語 é 🙂🙃",
            &[271, 274, 259, 275, 259, 278, 243, 162, 156, 134],
        ),
        (
            "    x <|plamo:eos|> 10 101",
            &[277, 123, 259, 2, 259, 280, 279, 259, 280, 279, 280],
        ),
        ("ab\u{feff}", &[262, 242, 190, 194]),
    ];
    for (text, expected) in cases {
        assert_eq!(tokenizer.ids(text, true).unwrap(), expected, "{text}");
        assert_eq!(tokenizer.decode(expected, false).unwrap(), text);
    }
    assert_eq!(tokenizer.ids("\u{feff}ab", true).unwrap(), [262]);
    let lacking = gguf_tokenizer("plamo2", &tokens[4..], &kinds[4..], &scores[4..]);
    let message = lacking.unwrap_err().to_string();
    assert!(message.contains("it has no token <0x00>"), "{message}");
}

/// The ids are those that llama.cpp gives for the same file.
#[test]
fn the_longest_tokens_of_a_world_vocabulary_are_taken_first() {
    let tokenizer = world_vocabulary();
    let cases: [(&str, &[u32]); 4] = [
        (
            "the quick brown then abcde",
            &[266, 33, 99, 115, 112, 120, 111, 258, 111, 33, 270, 102],
        ),
        (
            "it's\n\n\nthe  end\t\t\t",
            &[272, 260, 11, 257, 261, 102, 111, 101, 274, 10],
        ),
        (
            "日本語 é 🙂🙃 \\n \n",
            &[
                264, 233, 171, 159, 33, 263, 33, 275, 241, 160, 154, 132, 33, 273, 276,
            ],
        ),
        ("    x <s> abcabcd", &[262, 121, 33, 0, 33, 269, 270]),
    ];
    for (text, expected) in cases {
        assert_eq!(tokenizer.ids(text, true).unwrap(), expected, "{text}");
        assert_eq!(tokenizer.decode(expected, false).unwrap(), text);
    }
}
