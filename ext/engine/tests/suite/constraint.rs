//! Constrained texts without a model: whatever is drawn among the allowed tokens must come out right.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use engine::generation::random::Random;
use engine::generation::{Constraint, Ending, Pattern, Vocabulary, WhiteSpace};
use engine::{CancelToken, Error};
use formats::text::tokenizer::Tokenizer;
use serde_json::Value;

const END: u32 = 1;

fn tokenizer(kind: &str) -> Tokenizer {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/tokenizers");
    Tokenizer::from_directory(&folder.join(kind)).unwrap()
}

fn vocabulary(kind: &str) -> Vocabulary {
    Vocabulary::new(&tokenizer(kind)).unwrap()
}

/// Draws evenly among the allowed tokens until the text ends; `None` when it is too long.
fn draw(vocabulary: &Vocabulary, pattern: &Pattern, ending: Ending, seed: u64) -> Option<String> {
    let mut constraint = vocabulary
        .compile(pattern, ending, &CancelToken::new())
        .unwrap();
    let mut random = Random::new(seed);
    let mut bytes = Vec::new();
    for _ in 0..3000 {
        let mask = constraint.allowed(&[END]).unwrap();
        let allowed: Vec<u32> = (0..mask.len() as u32 * 32)
            .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
            .collect();
        assert!(!allowed.is_empty(), "{:?}", String::from_utf8_lossy(&bytes));
        let token = allowed[(random.next_u64() % allowed.len() as u64) as usize];
        if token == END {
            assert!(constraint.may_end());
            return Some(String::from_utf8(bytes).unwrap());
        }
        bytes.extend_from_slice(constraint.bytes(token));
        constraint.accept(token).unwrap();
        if constraint.is_satisfied() {
            return Some(String::from_utf8(bytes).unwrap());
        }
    }
    None
}

fn schema(text: &str) -> Pattern {
    Pattern::Schema(text.to_owned(), WhiteSpace::Compact)
}

const KINDS: [&str; 2] = ["byte_level_bpe", "sentencepiece"];

#[test]
fn the_bytes_of_tokens_are_the_text() {
    for kind in ["byte_level_bpe", "sentencepiece"] {
        let tokenizer = tokenizer(kind);
        let tokens = tokenizer.token_bytes().unwrap();
        for text in ["the dog", "naïve café — 日本 🦀", "{\"a\": [1, 2]}\n\tx"] {
            let ids = tokenizer.ids(text, false).unwrap();
            let bytes: Vec<u8> = ids
                .iter()
                .flat_map(|&id| tokens[id as usize].bytes.clone())
                .collect();
            let written = String::from_utf8(bytes).unwrap();
            assert_eq!(
                written.strip_prefix(' ').unwrap_or(&written),
                text,
                "{kind}"
            );
        }
    }
}

#[test]
fn every_draw_is_valid_by_the_schema() {
    let pattern = schema(
        r##"{ "type": "object", "required": ["kind", "count", "tags", "place"],
             "properties": { "kind": { "enum": ["a", "日本"] }, "count": { "type": "integer", "minimum": 3, "maximum": 12 },
                             "tags": { "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 3 },
                             "place": { "$ref": "#/$defs/place" } },
             "$defs": { "place": { "type": "object", "required": ["code"], "properties": {
                        "code": { "type": "string", "pattern": "^[A-Z]{2}[0-9]$" },
                        "inside": { "anyOf": [{ "$ref": "#/$defs/place" }, { "type": "null" }] } } } } }"##,
    );
    for kind in KINDS {
        let vocabulary = vocabulary(kind);
        for seed in 0..60 {
            let Some(text) = draw(&vocabulary, &pattern, Ending::Complete, seed) else {
                continue;
            };
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(
                ["a", "日本"].contains(&value["kind"].as_str().unwrap()),
                "{text}"
            );
            assert!(
                (3..=12).contains(&value["count"].as_i64().unwrap()),
                "{text}"
            );
            assert!(
                (1..=3).contains(&value["tags"].as_array().unwrap().len()),
                "{text}"
            );
            assert_eq!(value.as_object().unwrap().len(), 4, "{text}");
            let code = value["place"]["code"].as_str().unwrap();
            assert!(
                code.len() == 3 && code.ends_with(|c: char| c.is_ascii_digit()),
                "{text}"
            );
        }
    }
}

#[test]
fn white_space_comes_to_an_end() {
    let vocabulary = vocabulary("byte_level_bpe");
    for seed in 0..40 {
        let text = draw(
            &vocabulary,
            &Pattern::Schema(
                r#"{ "type": "array", "maxItems": 0 }"#.to_owned(),
                WhiteSpace::Flexible,
            ),
            Ending::Complete,
            seed,
        )
        .unwrap();
        assert!(
            text.len() < 40 && text.starts_with('[') && text.ends_with(']'),
            "{text:?}"
        );
    }
}

#[test]
fn json_has_one_space_after_a_colon_or_comma_and_none_elsewhere() {
    let text = r#"{ "type": "object", "required": ["a", "b"], "properties": {
        "a": { "type": "array", "items": { "type": "boolean" }, "minItems": 2, "maxItems": 2 },
        "b": { "type": "object", "required": ["c"], "properties": { "c": { "type": "null" } } } } }"#;
    for kind in KINDS {
        let vocabulary = vocabulary(kind);
        for seed in 0..20 {
            let drawn = draw(&vocabulary, &schema(text), Ending::Complete, seed).unwrap();
            let bare: String = drawn.chars().filter(|c| !c.is_whitespace()).collect();
            let spaced = bare.replace(':', ": ").replace(',', ", ");
            assert_eq!(drawn, spaced, "{kind}");
        }
    }
}

#[test]
fn texts_end_where_they_shall() {
    let vocabulary = vocabulary("byte_level_bpe");
    let digits = Pattern::Regex("[0-9]{1,3}".to_owned());
    let lengths = |ending| -> Vec<usize> {
        (0..40)
            .map(|seed| draw(&vocabulary, &digits, ending, seed).unwrap())
            .inspect(|text| assert!(text.chars().all(|c| c.is_ascii_digit()), "{text}"))
            .map(|text| text.len())
            .collect()
    };
    // One token is a match already, and most have one digit.
    let first: usize = lengths(Ending::Match).iter().sum();
    let longest: usize = lengths(Ending::Complete).iter().sum();
    assert!(first < longest, "{first} against {longest}");
    for ending in [Ending::Complete, Ending::Model] {
        let lengths = lengths(ending);
        assert!(lengths.contains(&3) && lengths.iter().all(|length| (1..=3).contains(length)));
    }
}

#[test]
fn grammars_and_anchors() {
    let vocabulary = vocabulary("sentencepiece");
    let grammar =
        Pattern::Lark("start: word (\",\" word)~1..2\nword: /[a-c]{2}/ | \"é\"".to_owned());
    let anchored = Pattern::Regex(" ?(^ *|x)[a-c]$".to_owned());
    for seed in 0..30 {
        let text = draw(&vocabulary, &grammar, Ending::Complete, seed).unwrap();
        let words: Vec<&str> = text.split(',').collect();
        assert!((2..=3).contains(&words.len()), "{text}");
        assert!(words.iter().all(|w| *w == "é" || w.len() == 2), "{text}");
    }
    assert!(matches!(
        vocabulary.compile(&anchored, Ending::Complete, &CancelToken::new()),
        Err(Error::InvalidInput(_))
    ));
}

#[test]
fn control_tokens_are_no_text() {
    let vocabulary = vocabulary("byte_level_bpe");
    let mut constraint = vocabulary
        .compile(
            &Pattern::Regex("(?s:.){20}".to_owned()),
            Ending::Complete,
            &CancelToken::new(),
        )
        .unwrap();
    let mask = constraint.allowed(&[END]).unwrap();
    assert_eq!(mask[0] & 0b111, 0, "the three control tokens");
}

#[test]
fn a_vocabulary_that_can_not_write_the_text_is_an_error() {
    let without_braces = vocabulary("unigram");
    match without_braces.compile(
        &schema(r#"{ "type": "object" }"#),
        Ending::Complete,
        &CancelToken::new(),
    ) {
        Err(Error::InvalidInput(message)) => assert!(message.contains("vocabulary"), "{message}"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("there is no token for a brace"),
    }
}

#[test]
fn hostile_patterns_are_errors_and_soon() {
    let vocabulary = vocabulary("byte_level_bpe");
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = format!("{}{{}}{}", r#"{"items":"#.repeat(60), "}".repeat(60));
    let hostile = [
        schema(&nested),
        schema("{"),
        schema(r#"{ "type": "strin" }"#),
        schema(r#"{ "enum": [] }"#),
        schema(r#"{ "type": "string", "pattern": "(?=a)b" }"#),
        schema(r#"{ "type": "string", "format": "no-such" }"#),
        schema(r##"{ "$ref": "#/$defs/none" }"##),
        schema(r##"{ "$ref": "#" }"##),
        schema(r#"{ "type": "integer", "minimum": 5, "maximum": 4 }"#),
        schema(r#"{ "oneOf": [{ "type": "integer" }, { "minimum": 3 }] }"#),
        schema("false"),
        schema(r#"{ "type": "integer", "minimum": 1e300 }"#),
        Pattern::Regex("(".repeat(5000)),
        Pattern::Regex("[^\\s\\S]".to_owned()),
        Pattern::Regex("a\\b".to_owned()),
        Pattern::Regex("(?P<x".to_owned()),
        Pattern::Lark("start: start".to_owned()),
        Pattern::Lark("start: other".to_owned()),
        Pattern::Lark("start: \"a".to_owned()),
        Pattern::Lark(String::new()),
        Pattern::Lark("{".to_owned()),
        Pattern::Lark(format!(
            "start: {}\"a\"{}",
            "(".repeat(20_000),
            ")".repeat(20_000)
        )),
    ];
    for pattern in &hostile {
        let started = Instant::now();
        match vocabulary.compile(pattern, Ending::Complete, &CancelToken::new()) {
            Err(Error::InvalidInput(message)) => assert!(message.len() < 700, "{message}"),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("accepted {:?}", format!("{pattern:?}").get(..80)),
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{pattern:?}");
    }
    let large = [
        schema(&deep),
        schema(r#"{ "type": "array", "maxItems": 100000 }"#),
        schema(r#"{ "type": "string", "pattern": "((a{0,900}){0,900}){0,900}" }"#),
        Pattern::Regex("((((a{1000}){1000}){1000}){1000})".to_owned()),
    ];
    for pattern in &large {
        let started = Instant::now();
        vocabulary
            .compile(pattern, Ending::Complete, &CancelToken::new())
            .unwrap();
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

/// Patterns that would take more stack, or more time, than there is.
#[test]
fn large_patterns_are_compiled_or_refused() {
    let vocabulary = vocabulary("byte_level_bpe");
    let properties = |count: usize, kind: &str| {
        let names: Vec<String> = (0..count).map(|i| format!("\"p{i}\"")).collect();
        let all: Vec<String> = names.iter().map(|name| format!("{name}:{kind}")).collect();
        schema(&format!(
            r#"{{"properties":{{{}}},"required":[{}]}}"#,
            all.join(","),
            names.join(",")
        ))
    };
    let chain = |count: usize| {
        let rules: Vec<String> = (0..count)
            .map(|i| format!("r{i}: \"a\" r{}", i + 1))
            .collect();
        Pattern::Lark(format!("start: r0\n{}\nr{count}: \"b\"", rules.join("\n")))
    };
    let keyed: Vec<String> = (0..60)
        .map(|i| format!(r#""^(a|b)*{i}(c|d)*$": {{"type": "string"}}"#))
        .collect();
    let alternatives: Vec<String> = (0..20_000).map(|i| format!("x{i}.*y{i}")).collect();
    let patterns = [
        properties(5_000, r#"{"type":"integer"}"#),
        properties(10_000, "{}"),
        chain(700),
        chain(9_000),
        chain(50_000),
        schema(&format!(
            r#"{{"patternProperties": {{{}}}}}"#,
            keyed.join(",")
        )),
        Pattern::Regex(alternatives.join("|")),
        Pattern::Lark(format!("start: {}", vec!["\"a\""; 100_000].join(" "))),
    ];
    for pattern in &patterns {
        let started = Instant::now();
        let result = vocabulary.compile(pattern, Ending::Complete, &CancelToken::new());
        if let Err(error) = result {
            assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
            assert!(!error.to_string().contains("panic"), "{error}");
        }
        assert!(
            started.elapsed() < Duration::from_secs(15),
            "{:?}",
            started.elapsed()
        );
    }
}

#[test]
fn an_interrupt_ends_compiling_at_once() {
    let vocabulary = vocabulary("byte_level_bpe");
    let alternatives: Vec<String> = (0..20_000).map(|i| format!("x{i}.*y{i}.*")).collect();
    let pattern = Pattern::Regex(alternatives.join("|"));
    let cancel = CancelToken::new();
    std::thread::scope(|scope| {
        let compiling = scope.spawn(|| {
            let result = vocabulary.compile(&pattern, Ending::Complete, &cancel);
            (result.map(drop), Instant::now())
        });
        std::thread::sleep(Duration::from_millis(20));
        let cancelled = Instant::now();
        cancel.cancel();
        let (_, ended) = compiling.join().unwrap();
        let latency = ended.saturating_duration_since(cancelled);
        assert!(latency < Duration::from_millis(200), "{latency:?}");
    });
}
