//! Vision-language models against what transformers says of checkpoints with the same seeded weights.

use std::path::{Path, PathBuf};

use engine::models::decoder::model::Logits;
use engine::tasks::{ImageEncoder, LanguageModel, LoadOptions};
use engine::{CancelToken, Error};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::{FrameKind, Image, Processor, VideoProcessor, View};
use serde_json::Value;

use super::seeded_tensors::safetensors;
use super::vlm::{asked, greedy, logits, pictures, prompt};
use super::weight_files::Folder;

/// Absolute, and relative to the logit.
const TOLERANCE: f64 = 1e-4;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/seeded_vlms")
}

/// The names of all fixtures: model types, some with a variant after a dash.
fn names() -> Vec<String> {
    let folders = std::fs::read_dir(fixtures()).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

pub fn record(name: &str, file: &str) -> Value {
    let text = std::fs::read_to_string(fixtures().join(name).join(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A whole checkpoint.
fn checkpoint(name: &str) -> Folder {
    let folder = Folder::new();
    for entry in std::fs::read_dir(fixtures().join(name)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        folder.write(file, std::fs::read(&path).unwrap());
    }
    let weights = safetensors(&record(name, "tensors.json"), str::to_owned);
    folder.write("model.safetensors", weights);
    folder
}

pub fn open(folder: &Folder) -> engine::Result<(LanguageModel, ImageEncoder)> {
    let (cancel, options) = (CancelToken::new(), LoadOptions::default());
    let files = ModelFiles::open(folder.path("").to_str().unwrap(), None, &cancel)?;
    let language = LanguageModel::load(&files, &options, &[], &cancel)?;
    let encoder = ImageEncoder::load(&language, &files, &options, &cancel)?;
    Ok((language, encoder))
}

pub fn numbers(value: &Value) -> Vec<u32> {
    let values = value.as_array().unwrap().iter();
    values.map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The largest excess of a logit over its tolerance, as a multiple of it.
pub fn excess(found: &[f32], expected: &Value) -> f64 {
    let expected = expected.as_array().unwrap().iter();
    let off = |(&found, expected): (&f32, f64)| {
        (f64::from(found) - expected).abs() / (TOLERANCE + TOLERANCE * expected.abs())
    };
    let pairs = found
        .iter()
        .zip(expected.map(|value| value.as_f64().unwrap()));
    pairs.map(off).max_by(f64::total_cmp).unwrap()
}

/// What a model says otherwise than the reference, if anything.
pub fn difference(model: &(LanguageModel, ImageEncoder), question: &Value) -> Option<String> {
    compared(model, question, &asked(&model.0, &model.1, question))
}

/// The same of the ids of a question's prompt.
fn compared(
    (language, encoder): &(LanguageModel, ImageEncoder),
    question: &Value,
    ids: &[u32],
) -> Option<String> {
    let vocabulary = language.decoder().config().vocab_size as u32;
    let marker = encoder.marker_id().unwrap();
    let spelled = ids
        .iter()
        .map(|&id| if id < vocabulary { id } else { marker });
    let (spelled, wanted) = (spelled.collect::<Vec<_>>(), numbers(&question["ids"]));
    if spelled != wanted {
        return Some(format!("prompt {spelled:?} instead of {wanted:?}"));
    }
    let worst = excess(&logits(language, ids), &question["logits"]);
    if worst.is_nan() || worst >= 1.0 {
        return Some(format!("logits are off by {worst:.1} tolerances"));
    }
    let wanted = numbers(&question["tokens"]);
    let found = greedy(language, ids, wanted.len());
    (found != wanted).then(|| format!("greedy tokens are {found:?} instead of {wanted:?}"))
}

#[test]
fn prompts_logits_and_greedy_tokens_equal_the_reference() {
    let mut failures = Vec::new();
    for name in names() {
        let folder = checkpoint(&name);
        match open(&folder) {
            Ok(model) => {
                for question in record(&name, "expected.json")["asked"].as_array().unwrap() {
                    let found = difference(&model, question);
                    failures.extend(found.map(|found| format!("{name}: {found}")));
                }
            }
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The ids of a prompt with a video before its pictures.
fn watched((language, encoder): &(LanguageModel, ImageEncoder), question: &Value) -> Vec<u32> {
    let cancel = CancelToken::new();
    let frames = pictures(&serde_json::json!({"pictures": question["frames"]}));
    let rate = question["fps"].as_f64().unwrap();
    let video = encoder.encode_video(language, &frames, rate, &cancel);
    let pictures = encoder.encode(language, &pictures(question), &cancel);
    let seen = [vec![video.unwrap()], pictures.unwrap()].concat();
    let place = encoder.video_place().unwrap();
    let text = question["prompt"].as_str().unwrap();
    let text = text.replacen(place, encoder.place(), 1);
    prompt(language, encoder, &text, &seen)
}

#[test]
fn videos_are_read_as_the_reference_reads_them() {
    let (mut failures, mut count) = (Vec::new(), 0);
    for name in names() {
        let expected = record(&name, "expected.json");
        let Some(questions) = expected["watched"].as_array() else {
            continue;
        };
        let model = open(&checkpoint(&name)).unwrap();
        for question in questions {
            let ids = watched(&model, question);
            let found = compared(&model, question, &ids);
            failures.extend(found.map(|found| format!("{name}: {found}")));
            let looks = model.1.encodings();
            assert_eq!(watched(&model, question), ids, "{name}");
            assert_eq!(model.1.encodings(), looks, "{name}");
        }
        count += 1;
    }
    assert!(failures.is_empty() && count >= 8, "{failures:#?}");
}

#[test]
fn frames_are_those_of_the_python_processors_byte_by_byte() {
    let mut failures = Vec::new();
    for name in names() {
        let expected = record(&name, "expected.json");
        let Some(cases) = expected["framed"].as_array() else {
            continue;
        };
        let file = fixtures()
            .join(&name)
            .join("video_preprocessor_config.json");
        let raw = RawConfig::read(&file).unwrap();
        let kind = match raw.string("video_processor_type").unwrap() {
            "SmolVLMVideoProcessor" => FrameKind::Squares,
            "Qwen2VLVideoProcessor" => FrameKind::Pixels,
            "Qwen3VLVideoProcessor" => FrameKind::SharedPixels,
            "LlavaOnevisionVideoProcessor" => FrameKind::Exact,
            "MiniCPMV4_6VideoProcessor" => FrameKind::Slices,
            _ => FrameKind::PatchBlocks,
        };
        let processor = VideoProcessor::read(&raw, kind).unwrap();
        let channels = |key: &str| -> Vec<f64> {
            let values = expected[key].as_array().unwrap().iter();
            values.map(|value| value.as_f64().unwrap()).collect()
        };
        let (mean, deviation) = (channels("mean"), channels("deviation"));
        for case in cases {
            let size = numbers(&case["size"]);
            let image = computed(size[0] as usize, size[1] as usize);
            let mirror = mirrored(&image);
            let count = case["count"].as_u64().unwrap_or(3) as usize;
            let frames = [&image, &mirror].into_iter().cycle().take(count);
            let frames: Vec<&Image> = frames.collect();
            let rate = case["fps"].as_f64().unwrap_or(1.0);
            let frames = processor
                .frames(&frames, rate, &CancelToken::new())
                .unwrap();
            let mut found = Vec::new();
            for (number, view) in frames.views.iter().enumerate() {
                let pair = [Some(view), frames.behind.get(number)];
                found.extend(pair.into_iter().flatten().map(|view| {
                    let size = [view.width as u32, view.height as u32];
                    (size, hash(view, &mean, &deviation))
                }));
            }
            let wanted = case["frames"].as_array().unwrap().iter().map(|frame| {
                let size = numbers(&frame["size"]);
                (
                    [size[0], size[1]],
                    frame["hash"].as_str().unwrap().to_owned(),
                )
            });
            let wanted: Vec<_> = wanted.collect();
            if found != wanted {
                failures.push(format!("{name} {size:?}: {found:?} {wanted:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

fn mirrored(image: &Image) -> Image {
    let rows = image.pixels().chunks(3 * image.width());
    let pixels = rows.flat_map(|row| row.chunks(3).rev().flatten().copied());
    Image::new(image.width(), image.height(), pixels.collect()).unwrap()
}

#[test]
fn videos_that_make_no_sense_are_refused() {
    let cancel = CancelToken::new();
    let (language, encoder) = open(&checkpoint("qwen3_vl-video")).unwrap();
    let video = |names: &[&str], rate: f64| {
        let frames = pictures(&serde_json::json!({"pictures": names}));
        encoder.encode_video(&language, &frames, rate, &cancel)
    };
    for (names, rate, words) in [
        ("", 1.0, "at least one frame"),
        ("photo.png", 1.0, "at least two"),
        ("photo.png flower.png", 1.0, "of one size"),
        ("photo.png photo.png", 0.0, "fps must be"),
        ("photo.png photo.png", f64::NAN, "fps must be"),
    ] {
        let names: Vec<&str> = names.split_whitespace().collect();
        match video(&names, rate) {
            Err(Error::InvalidInput(reason)) => assert!(reason.contains(words), "{reason}"),
            other => panic!("{words}: {:?}", other.map(|seen| seen.spelling.clone())),
        }
    }
    let (language, encoder) = open(&checkpoint("idefics3")).unwrap();
    let frames = pictures(&serde_json::json!({"pictures": ["photo.png"]}));
    let found = encoder.encode_video(&language, &frames, 1.0, &cancel);
    assert!(matches!(found, Err(Error::InvalidInput(_))));
}

/// The prefix cache, chunked prefill and decode steps all read a prompt with images in pieces.
#[test]
fn a_prompt_in_pieces_is_read_as_at_once() {
    let mut failures = Vec::new();
    for name in names() {
        let folder = checkpoint(&name);
        let (language, encoder) = open(&folder).unwrap();
        let cancel = CancelToken::new();
        let question = &record(&name, "expected.json")["asked"][2];
        let pictures = pictures(question);
        let seen = encoder.encode(&language, &pictures, &cancel).unwrap();
        let place = encoder.place();
        let text = format!("see {place} and {place} what is it?");
        let ids = prompt(&language, &encoder, &text, &seen);
        let whole = logits(&language, &ids);
        let decoder = language.decoder();
        for most in [1, 7, 40] {
            let mut cache = decoder.new_cache().unwrap();
            let (mut rest, mut row) = (&ids[..], Vec::new());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(decoder.piece_length(rest, most));
                let found = decoder.forward(piece, &mut cache, Logits::Last, &cancel);
                row = found.unwrap().flatten_all().unwrap().to_vec1().unwrap();
                rest = after;
            }
            let worst = super::encoder::difference(&row, &whole);
            if worst > 1e-4 {
                failures.push(format!("{name} by {most}: {worst}"));
            }
        }
        // The tower ran once for each picture, and not again for one that it knows.
        encoder.encode(&language, &pictures, &cancel).unwrap();
        assert_eq!(encoder.encodings(), pictures.len(), "{name}");
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The picture that `seeded_models/vlm_writing.py` computes alike.
pub fn computed(width: usize, height: usize) -> Image {
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let pixels = places.flat_map(|(x, y)| {
        (0..3).map(move |channel| ((7 * x + 13 * y + 50 * channel + x * y % 31) % 256) as u8)
    });
    Image::new(width, height, pixels.collect()).unwrap()
}

/// The hash of a view's bytes, channel by channel.
pub fn hash(view: &View, mean: &[f64], deviation: &[f64]) -> String {
    let plane = view.width * view.height;
    let bytes = view.values.chunks(plane).enumerate();
    let bytes = bytes.flat_map(|(channel, values)| {
        let byte = move |value: &f32| {
            ((f64::from(*value) * deviation[channel] + mean[channel]) * 255.0).round() as u8
        };
        values.iter().map(byte)
    });
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
}

#[test]
fn views_are_those_of_the_python_processors_byte_by_byte() {
    let mut failures = Vec::new();
    for name in names() {
        let (file, expected) = ("preprocessor_config.json", record(&name, "expected.json"));
        let raw = RawConfig::read(&fixtures().join(&name).join(file)).unwrap();
        let processor = Processor::read(&raw).unwrap();
        let channels = |key: &str| -> Vec<f64> {
            let values = expected[key].as_array().unwrap().iter();
            values.map(|value| value.as_f64().unwrap()).collect()
        };
        let (mean, deviation) = (channels("mean"), channels("deviation"));
        for case in expected["cases"].as_array().unwrap() {
            let size = |value: &Value| {
                let size = numbers(value);
                (size[0] as usize, size[1] as usize)
            };
            let (width, height) = size(&case["size"]);
            let views = processor.views(&computed(width, height), &CancelToken::new());
            let found = views.unwrap().views.into_iter().map(|view| {
                let hash = hash(&view, &mean, &deviation);
                (view.width, view.height, hash)
            });
            let wanted = case["views"].as_array().unwrap().iter().map(|view| {
                let (width, height) = size(&view["size"]);
                (width, height, view["hash"].as_str().unwrap().to_owned())
            });
            let (found, wanted): (Vec<_>, Vec<_>) = (found.collect(), wanted.collect());
            if found != wanted {
                failures.push(format!("{name} {width}x{height}: {found:?} {wanted:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// `value` with another one in place of each number, text and list in turn.
pub fn changes(value: &Value, others: &[Value]) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let entries = value.as_object().unwrap();
    for (key, inner) in entries {
        let mut add = |key: String, changed: Value| {
            let mut copy = value.clone();
            copy[key.split('.').next().unwrap()] = changed;
            found.push((key, copy));
        };
        if inner.is_object() {
            for (rest, changed) in changes(inner, others) {
                add(format!("{key}.{rest}"), changed);
            }
        }
        for other in others {
            add(key.clone(), other.clone());
        }
    }
    found
}

/// A damaged configuration is refused or read somehow, and never ends in a panic.
#[test]
fn configurations_that_lie_are_errors() {
    let others = [
        Value::from(0),
        Value::from(-3),
        Value::from(1u64 << 40),
        Value::from("x"),
        Value::from(vec![1, 2, 3]),
    ];
    let (mut refused, mut read) = (0, 0);
    for name in names() {
        let folder = checkpoint(&name);
        let question = &record(&name, "expected.json")["asked"][0];
        for file in ["config.json", "preprocessor_config.json"] {
            let sound = record(&name, file);
            let mut changed = changes(&sound, &others);
            // The text part has tests of its own.
            changed.retain(|(key, _)| !key.starts_with("text_config") && !key.starts_with("vq_"));
            for (_, changed) in changed {
                folder.write(file, changed.to_string());
                let seen = open(&folder).and_then(|(language, encoder)| {
                    encoder.encode(&language, &pictures(question), &CancelToken::new())
                });
                match seen {
                    Ok(_) => read += 1,
                    Err(_) => refused += 1,
                }
            }
            folder.write(file, sound.to_string());
        }
    }
    assert!(refused > 100 && read > 100, "{refused} {read}");
}
