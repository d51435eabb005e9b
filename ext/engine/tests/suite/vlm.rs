//! Language vision-language models against transformers.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Tensor;
use engine::models::decoder::model::Logits;
use engine::tasks::{ImageEmbeddings, ImageEncoder, LanguageModel, LoadOptions, Picture};
use engine::CancelToken;
use serde_json::Value;

use super::encoder::{difference, files, Expected};

const TOLERANCE: f32 = 1e-4;
const MODELS: [&str; 9] = [
    "llava",
    "llava-next",
    "llava-next-full",
    "llava-next-layers",
    "smolvlm",
    "qwen2-vl",
    "qwen2.5-vl",
    "gemma3-vision",
    "gemma3-pieces",
];
/// Those that are there as GGUF files too.
const GGUF: [&str; 6] = [
    "llava",
    "llava-next",
    "smolvlm",
    "qwen2-vl",
    "qwen2.5-vl",
    "gemma3-vision",
];

fn load(name: &str) -> (LanguageModel, ImageEncoder) {
    let (cancel, options) = (CancelToken::new(), LoadOptions::default());
    let language = LanguageModel::load(&files(name), &options, &[], &cancel).unwrap();
    let encoder = ImageEncoder::load(&language, &files(name), &options, &cancel).unwrap();
    (language, encoder)
}

pub fn pictures(question: &Value) -> Vec<Picture> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/images");
    let names = question["pictures"].as_array().unwrap().iter();
    names
        .map(|name| Picture::File(folder.join(name.as_str().unwrap())))
        .collect()
}

/// A prompt's ids, with those of the images where their markers stand.
pub fn prompt(
    language: &LanguageModel,
    encoder: &ImageEncoder,
    text: &str,
    seen: &[Arc<ImageEmbeddings>],
) -> Vec<u32> {
    let mut spelled = String::new();
    let mut parts = text.split(encoder.place());
    spelled.push_str(parts.next().unwrap());
    for (part, seen) in parts.zip(seen) {
        spelled.push_str(&seen.spelling);
        spelled.push_str(part);
    }
    let spelled = encoder.finish(&spelled);
    let mut parts = seen.iter().flat_map(|seen| &seen.parts);
    let mut ids = Vec::new();
    for (index, piece) in spelled.split(encoder.marker()).enumerate() {
        if index > 0 {
            ids.extend(parts.next().unwrap().ids());
        }
        ids.extend(language.tokenizer().ids(piece, false).unwrap());
    }
    ids
}

pub fn logits(language: &LanguageModel, ids: &[u32]) -> Vec<f32> {
    let mut cache = language.decoder().new_cache().unwrap();
    let cancel = CancelToken::new();
    let decoder = language.decoder();
    let row: Tensor = decoder
        .forward(ids, &mut cache, Logits::Last, &cancel)
        .unwrap();
    row.flatten_all().unwrap().to_vec1().unwrap()
}

/// What a model likes best behind a prompt, and then behind each of its choices in turn.
pub fn greedy(language: &LanguageModel, ids: &[u32], count: usize) -> Vec<u32> {
    let (decoder, cancel) = (language.decoder(), CancelToken::new());
    let mut cache = decoder.new_cache().unwrap();
    let mut pending = ids.to_vec();
    let mut chosen = Vec::new();
    while chosen.len() < count {
        let row = decoder.forward(&pending, &mut cache, Logits::Last, &cancel);
        let row: Vec<f32> = row.unwrap().flatten_all().unwrap().to_vec1().unwrap();
        pending = vec![likeliest(&row)];
        chosen.extend(&pending);
    }
    chosen
}

pub fn likeliest(logits: &[f32]) -> u32 {
    let pairs = logits.iter().enumerate();
    pairs.max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32
}

/// What the prompt of a question becomes.
pub fn asked(language: &LanguageModel, encoder: &ImageEncoder, question: &Value) -> Vec<u32> {
    let cancel = CancelToken::new();
    let seen = encoder
        .encode(language, &pictures(question), &cancel)
        .unwrap();
    let text = match question["prompt"].as_str() {
        Some(text) => text.to_owned(),
        None => {
            let images = "<image>\n".repeat(seen.len());
            let asked = question["question"].as_str().unwrap();
            format!("USER: {images}{asked} ASSISTANT:")
        }
    };
    prompt(language, encoder, &text, &seen)
}

/// Compares a model with what transformers made of the checkpoint `name`.
fn compare(name: &str, (language, encoder): &(LanguageModel, ImageEncoder)) {
    let expected = Expected::of(name);
    let rows = expected.rows("logits");
    let questions = expected.record["asked"].as_array().unwrap();
    for (question, row) in questions.iter().zip(rows) {
        let mut ids = asked(language, encoder, question);
        if let (Some(wanted), Some(marker)) = (question["ids"].as_array(), encoder.marker_id()) {
            let vocabulary = language.decoder().config().vocab_size as u32;
            let found: Vec<u64> = ids
                .iter()
                .map(|&id| if id < vocabulary { id } else { marker })
                .map(u64::from)
                .collect();
            let wanted: Vec<u64> = wanted.iter().map(|id| id.as_u64().unwrap()).collect();
            assert_eq!(found, wanted, "{name}");
        }
        let most = difference(&logits(language, &ids), &row);
        assert!(most <= TOLERANCE, "{name}: {most}");
        for token in question["tokens"].as_array().unwrap() {
            let next = likeliest(&logits(language, &ids));
            assert_eq!(u64::from(next), token.as_u64().unwrap(), "{name}");
            ids.push(next);
        }
    }
}

#[test]
fn prompts_and_logits_are_those_of_transformers() {
    for name in MODELS {
        compare(name, &load(name));
    }
}

#[test]
fn gguf_files_see_what_the_checkpoints_see() {
    for name in GGUF {
        compare(name, &load(&format!("gguf-vlms/{name}")));
    }
}

#[test]
fn a_quantized_decoder_sees_with_a_tower_of_sixteen_bits() {
    let (language, encoder) = load("gguf-vlms/quantized");
    let expected = Expected::of("smolvlm");
    let questions = expected.record["asked"].as_array().unwrap();
    for (question, row) in questions.iter().zip(expected.rows("logits")) {
        let found = logits(&language, &asked(&language, &encoder, question));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let cosine = dot(&found, &row) / (dot(&found, &found) * dot(&row, &row)).sqrt();
        assert!(cosine > 0.999, "{cosine}");
    }
}

#[test]
fn a_text_goes_on_as_if_it_were_read_at_once() {
    for name in MODELS {
        let (language, encoder) = load(name);
        let expected = Expected::of(name);
        let question = &expected.record["asked"][2];
        let cancel = CancelToken::new();
        let seen = encoder
            .encode(&language, &pictures(question), &cancel)
            .unwrap();
        let place = encoder.place();
        let text = format!("see {place} and {place} what is it?");
        let ids = prompt(&language, &encoder, &text, &seen);
        let whole = logits(&language, &ids);
        // Images whose tokens see each other are read in one piece.
        let decoder = language.decoder();
        for most in [1, 7, 40] {
            let mut cache = decoder.new_cache().unwrap();
            let mut rest = &ids[..];
            let mut row = Vec::new();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(decoder.piece_length(rest, most));
                let found = decoder.forward(piece, &mut cache, Logits::Last, &cancel);
                row = found.unwrap().flatten_all().unwrap().to_vec1().unwrap();
                rest = after;
            }
            let difference = difference(&row, &whole);
            assert!(difference <= 1e-4, "{name} by {most}: {difference}");
        }
    }
}

#[test]
fn images_are_looked_at_once() {
    let (language, encoder) = load("smolvlm");
    let expected = Expected::of("smolvlm");
    let cancel = CancelToken::new();
    let pictures = pictures(&expected.record["asked"][0]);
    let first = encoder.encode(&language, &pictures, &cancel).unwrap();
    let second = encoder.encode(&language, &pictures, &cancel).unwrap();
    assert_eq!(encoder.encodings(), 1);
    assert_eq!(first[0].parts[0].ids(), second[0].parts[0].ids());
    // Nine tiles and the whole.
    assert_eq!(first[0].parts.len(), 10);
}
