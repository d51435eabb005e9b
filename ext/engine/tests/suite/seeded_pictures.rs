//! Models of pictures against what transformers says of checkpoints with the same seeded weights.

use std::path::{Path, PathBuf};

use engine::tasks::{
    ClipModel, DepthModel, DetectModel, ImageClassifyModel, ImageEmbeddingModel,
    LateInteractionModel, LateOptions, LateSettings, LoadOptions, Picture, SegmentModel, TextTask,
};
use engine::{CancelToken, Error};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::{Image, Processor};
use serde_json::{json, Value};

use super::seeded_tensors::safetensors;
use super::weight_files::Folder;

/// Absolute, and relative to the number.
pub(super) const TOLERANCE: f64 = 1e-4;
/// Of boxes, as parts of a picture.
pub(super) const BOX_TOLERANCE: f64 = 1e-3;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures")
}

/// The names of all fixtures of a kind: model types, some with a variant after a dash.
pub(super) fn names(kind: &str) -> Vec<String> {
    let folders = std::fs::read_dir(fixtures().join("seeded_pictures")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter(|name| record(name, "expected.json")["kind"] == kind)
        .collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

pub(super) fn record(name: &str, file: &str) -> Value {
    let path = fixtures().join("seeded_pictures").join(name).join(file);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(super) fn picture(case: &Value) -> Picture {
    Picture::File(
        fixtures()
            .join("images")
            .join(case["picture"].as_str().unwrap()),
    )
}

/// A whole checkpoint, with another configuration and other names of tensors.
pub(super) fn changed(name: &str, config: &Value, renamed: impl Fn(&str) -> String) -> Folder {
    let folder = Folder::new();
    folder.write("config.json", config.to_string());
    let processor = record(name, "preprocessor_config.json").to_string();
    folder.write("preprocessor_config.json", processor);
    let weights = safetensors(&record(name, "tensors.json"), renamed);
    folder.write("model.safetensors", weights);
    folder
}

pub(super) fn checkpoint(name: &str) -> Folder {
    changed(name, &record(name, "config.json"), str::to_owned)
}

pub(super) fn files(folder: &Folder) -> ModelFiles {
    ModelFiles::open(folder.path("").to_str().unwrap(), None, &CancelToken::new()).unwrap()
}

pub(super) fn detector(folder: &Folder) -> engine::Result<DetectModel> {
    DetectModel::load(&files(folder), &LoadOptions::default(), &CancelToken::new())
}

pub(super) fn numbers(value: &Value) -> Vec<f64> {
    let values = value.as_array().unwrap().iter();
    values.map(|number| number.as_f64().unwrap()).collect()
}

/// The largest difference, as a multiple of what is allowed.
pub(super) fn excess(found: &[f32], expected: &[f64], tolerance: f64) -> f64 {
    assert_eq!(found.len(), expected.len());
    let off = |(&found, expected): (&f32, &f64)| {
        let off = (f64::from(found) - expected).abs() / (tolerance + tolerance * expected.abs());
        if off.is_nan() {
            f64::INFINITY
        } else {
            off
        }
    };
    found.iter().zip(expected).map(off).fold(0.0, f64::max)
}

/// How far a detector is off, if it is.
fn difference(name: &str, folder: &Folder) -> Option<String> {
    let cancel = CancelToken::new();
    let model = match detector(folder) {
        Ok(model) => model,
        Err(error) => return Some(format!("{name}: {error}")),
    };
    let expected = record(name, "expected.json");
    let cases = expected["cases"].as_array().unwrap();
    let threshold = expected["threshold"].as_f64().unwrap() as f32;
    let pictures: Vec<_> = cases.iter().map(picture).collect();
    let things = match model.detect(&pictures, threshold, 0, &cancel) {
        Ok(things) => things,
        Err(error) => return Some(format!("{name}: {error}")),
    };
    for ((case, picture), things) in cases.iter().zip(&pictures).zip(&things) {
        let (image, found) = model.predict(picture, &cancel).unwrap();
        let logits = excess(&found.logits, &numbers(&case["logits"]), TOLERANCE);
        let boxes = excess(
            &found.boxes.concat(),
            &numbers(&case["boxes"]),
            BOX_TOLERANCE,
        );
        if logits > 1.0 || boxes > 1.0 {
            return Some(format!("{name}: logits {logits}, boxes {boxes}"));
        }
        let wanted = case["things"].as_array().unwrap();
        if things.len() != wanted.len() {
            return Some(format!(
                "{name}: {} things, not {}",
                things.len(),
                wanted.len()
            ));
        }
        let size = image.width().max(image.height()) as f64;
        for (thing, wanted) in things.iter().zip(wanted) {
            let corners = excess(&thing.corners, &numbers(&wanted[2]), BOX_TOLERANCE * size);
            let score = excess(&[thing.score], &[wanted[1].as_f64().unwrap()], TOLERANCE);
            if wanted[0] != json!(thing.label) || corners > 1.0 || score > 1.0 {
                return Some(format!("{name}: {thing:?} is not {wanted}"));
            }
        }
    }
    None
}

#[test]
fn detectors_are_those_of_transformers() {
    let names = names("detector");
    let wrong: Vec<_> = names
        .iter()
        .filter_map(|name| difference(name, &checkpoint(name)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// As timm calls what transformers' ResNet has.
fn timm(name: &str) -> String {
    let Some((before, inside)) = name.split_once(".model.") else {
        return name.to_owned();
    };
    let mut inside = inside
        .replace("embedder.embedder.convolution", "conv1")
        .replace("embedder.embedder.normalization", "bn1")
        .replace("shortcut.convolution", "downsample.0")
        .replace("shortcut.normalization", "downsample.1");
    for number in 0..4 {
        let stage = format!("encoder.stages.{number}.layers");
        inside = inside.replace(&stage, &format!("layer{}", number + 1));
        let place = |what: &str| format!("layer.{number}.{what}");
        inside = inside
            .replace(&place("convolution"), &format!("conv{}", number + 1))
            .replace(&place("normalization"), &format!("bn{}", number + 1));
    }
    format!("{before}.model.{inside}")
}

#[test]
fn backbones_under_the_names_of_timm_are_the_same() {
    let mut config = record("detr", "config.json");
    let whole = config.as_object_mut().unwrap();
    whole.remove("backbone_config");
    whole.insert("backbone".into(), json!("resnet50"));
    whole.insert("use_timm_backbone".into(), json!(true));
    assert_eq!(difference("detr", &changed("detr", &config, timm)), None);
}

#[test]
fn names_of_newer_files_are_known() {
    let newer = |name: &str| {
        name.replace("out_proj", "o_proj")
            .replace("backbone.conv_encoder", "backbone")
            .replace("encoder.encoder.0.", "encoder.aifi.0.")
            .replace(".fc1.", ".mlp.fc1.")
            .replace(".fc2.", ".mlp.fc2.")
    };
    for name in ["detr", "rt_detr"] {
        let config = record(name, "config.json");
        assert_eq!(difference(name, &changed(name, &config, newer)), None);
    }
}

#[test]
fn classifiers_are_those_of_transformers() {
    let cancel = CancelToken::new();
    for name in names("classifier") {
        let folder = checkpoint(&name);
        let (files, options) = (files(&folder), LoadOptions::default());
        let classifier = ImageClassifyModel::load(&files, &options, &cancel).unwrap();
        let embedder = ImageEmbeddingModel::load(&files, &options, &cancel).unwrap();
        for case in record(&name, "expected.json")["cases"].as_array().unwrap() {
            let found = classifier.classify(&[picture(case)], 0, &cancel).unwrap();
            let off = excess(&found.values, &numbers(&case["logits"]), TOLERANCE);
            assert!(off <= 1.0, "{name}: logits {off}");
            if case["pooled"].is_null() {
                continue;
            }
            let found = embedder.embed(&[picture(case)], false, 0, &cancel).unwrap();
            let off = excess(&found.values, &numbers(&case["pooled"]), TOLERANCE);
            assert!(off <= 1.0, "{name}: vectors {off}");
        }
    }
}

#[test]
fn vectors_are_those_of_transformers() {
    let cancel = CancelToken::new();
    for name in names("embedder") {
        let folder = checkpoint(&name);
        let (files, options) = (files(&folder), LoadOptions::default());
        let embedder = ImageEmbeddingModel::load(&files, &options, &cancel);
        let embedder = embedder.unwrap_or_else(|error| panic!("{name}: {error}"));
        for case in record(&name, "expected.json")["cases"].as_array().unwrap() {
            let found = embedder.embed(&[picture(case)], false, 0, &cancel).unwrap();
            let off = excess(&found.values, &numbers(&case["pooled"]), TOLERANCE);
            assert!(off <= 1.0, "{name}: vectors {off}");
        }
        let error = ImageClassifyModel::load(&files, &options, &cancel).err();
        assert!(matches!(error, Some(Error::UnsupportedModel(_))), "{name}");
    }
}

#[test]
fn depths_are_those_of_transformers() {
    let cancel = CancelToken::new();
    let mut wrong = Vec::new();
    for name in names("depth") {
        let folder = checkpoint(&name);
        let model = match DepthModel::load(&files(&folder), &LoadOptions::default(), &cancel) {
            Ok(model) => model,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for case in record(&name, "expected.json")["cases"].as_array().unwrap() {
            let found = &model.estimate(&[picture(case)], 0, &cancel).unwrap()[0];
            assert_eq!(json!([found.width, found.height]), case["size"]);
            let every: Vec<f32> = found.values.iter().step_by(7).copied().collect();
            let off = excess(&every, &numbers(&case["logits"]), TOLERANCE);
            if off > 1.0 {
                wrong.push(format!("{name}: {off}"));
            }
            let image = found.image().unwrap();
            assert_eq!(image.pixels().iter().max(), Some(&255));
            assert_eq!(image.pixels().iter().min(), Some(&0));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn segmenters_are_those_of_transformers() {
    let cancel = CancelToken::new();
    for name in names("segmenter") {
        let folder = checkpoint(&name);
        let model = SegmentModel::load(&files(&folder), &LoadOptions::default(), &cancel).unwrap();
        for case in record(&name, "expected.json")["cases"].as_array().unwrap() {
            let found = model.segment(&[picture(case)], 0, &cancel).unwrap();
            let wanted = case["segmentation"].as_array().unwrap();
            assert_eq!(found[0].labels.len(), wanted.len());
            let pairs = found[0].labels.iter().zip(wanted);
            let off = pairs
                .filter(|(found, wanted)| json!(found) != **wanted)
                .count();
            // Of 1000 pixels one may lie on the other side of an edge.
            assert!(
                off * 1000 <= wanted.len(),
                "{name}: {off} of {}",
                wanted.len()
            );
        }
    }
}

/// A whole checkpoint with its tokenizer.
pub(super) fn with_texts(name: &str) -> Folder {
    let folder = checkpoint(name);
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        folder.write(file, record(name, file).to_string());
    }
    folder
}

#[test]
fn pairs_of_texts_and_pictures_are_those_of_transformers() {
    let cancel = CancelToken::new();
    for name in names("pair") {
        let folder = with_texts(&name);
        let model = ClipModel::load(&files(&folder), &LoadOptions::default(), &cancel).unwrap();
        let expected = record(&name, "expected.json");
        let cases = expected["cases"].as_array().unwrap().iter();
        let (texts, pictures): (Vec<_>, Vec<_>) = cases.partition(|case| case["text"].is_string());
        let vectors = |cases: &[&Value]| -> Vec<f64> {
            let rows = cases.iter().map(|case| numbers(&case["vector"]));
            rows.flatten().collect()
        };
        let labels: Vec<_> = texts
            .iter()
            .map(|case| case["text"].as_str().unwrap())
            .collect();
        let shown: Vec<_> = pictures.iter().map(|case| picture(case)).collect();
        let found = model.embed_texts(&labels, &cancel).unwrap();
        let off = excess(&found.values, &vectors(&texts), TOLERANCE);
        assert!(off <= 1.0, "{name}: texts {off}");
        let found = model.embed_images(&shown, 0, &cancel).unwrap();
        let off = excess(&found.values, &vectors(&pictures), TOLERANCE);
        assert!(off <= 1.0, "{name}: pictures {off}");
        let scores = model.match_texts(&shown, 0, &labels, &cancel).unwrap();
        for (case, scores) in pictures.iter().zip(&scores) {
            let off = excess(scores, &numbers(&case["scores"]), TOLERANCE);
            assert!(off <= 1.0, "{name}: scores {off}");
        }
    }
}

#[test]
fn retrievers_are_those_of_transformers() {
    let cancel = CancelToken::new();
    let mut wrong = Vec::new();
    for name in names("retriever") {
        let folder = with_texts(&name);
        let (options, own) = (LoadOptions::default(), LateSettings::default());
        let model = match LateInteractionModel::load(&files(&folder), &options, own, &cancel) {
            Ok(model) => model,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for case in record(&name, "expected.json")["cases"].as_array().unwrap() {
            let found = match case["query"].as_str() {
                Some(query) => {
                    let options = LateOptions::default();
                    model.embed(&[query], TextTask::Query, &options, &cancel)
                }
                None => model.embed_images(&[picture(case)], 0, &cancel),
            };
            let found: Vec<f32> = found.unwrap()[0].flatten_all().unwrap().to_vec1().unwrap();
            let wanted = numbers(&case["vectors"]);
            if found.len() != wanted.len() || excess(&found, &wanted, TOLERANCE) > 1.0 {
                wrong.push(format!("{name}: {} {}", case["query"], case["picture"]));
            }
        }
        let error = model.embed(&["a"], TextTask::Document, &LateOptions::default(), &cancel);
        assert!(matches!(error, Err(Error::InvalidInput(_))));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The picture that the reference computes alike.
fn computed(width: usize, height: usize) -> Image {
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            pixels.extend((0..3).map(|c| ((7 * x + 13 * y + 50 * c + x * y % 31) % 256) as u8));
        }
    }
    Image::new(width, height, pixels).unwrap()
}

fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

#[test]
fn processors_are_those_of_transformers() {
    let kinds = [
        "detector",
        "classifier",
        "segmenter",
        "embedder",
        "depth",
        "open",
        "prompted",
        "masks",
    ];
    let all = kinds.map(names).concat();
    for name in all {
        let text = record(&name, "preprocessor_config.json").to_string();
        let raw = RawConfig::parse(Path::new("preprocessor_config.json"), &text).unwrap();
        let processor = Processor::read(&raw).unwrap();
        let expected = record(&name, "expected.json");
        let (mean, deviation) = (numbers(&expected["mean"]), numbers(&expected["deviation"]));
        for case in expected["prepared"].as_array().unwrap() {
            let [width, height] = numbers(&case["size"])[..] else {
                panic!("{case}")
            };
            let image = computed(width as usize, height as usize);
            let view = processor.process(&image, &CancelToken::new()).unwrap();
            assert_eq!(json!([view.width, view.height]), case["view"], "{name}");
            if case["hash"].is_null() {
                let every: Vec<f32> = view.values.iter().step_by(97).copied().collect();
                let off = excess(&every, &numbers(&case["values"]), TOLERANCE);
                assert!(off <= 1.0, "{name}: pixels {off}");
                continue;
            }
            let plane = view.width * view.height;
            let bytes = view.values.iter().enumerate().map(|(at, &value)| {
                let channel = at / plane;
                let byte = (f64::from(value) * deviation[channel] + mean[channel]) * 255.0;
                byte.round() as u8
            });
            assert_eq!(
                format!("{:016x}", fnv1a(bytes)),
                case["hash"],
                "{name} {case}"
            );
        }
    }
}

#[test]
fn hostile_configurations_are_errors() {
    let changes = [
        ("rt_detr", "num_queries", json!(60_000)),
        ("rt_detr", "num_queries", json!(-3)),
        ("rt_detr", "decoder_layers", json!(4000)),
        ("rt_detr", "decoder_n_points", json!(200)),
        ("rt_detr", "decoder_n_points", json!([1, 2])),
        ("rt_detr", "decoder_attention_heads", json!(7)),
        ("rt_detr", "encode_proj_layers", json!([9])),
        ("rt_detr", "d_model", json!(64)),
        ("rt_detr", "backbone_config", json!({"model_type": "swin"})),
        ("rt_detr", "backbone_config", json!(null)),
        ("rt_detr", "anchor_image_size", json!([640, 640])),
        ("rt_detr_v2", "decoder_method", json!("magic")),
        ("d_fine", "max_num_bins", json!(1i64 << 40)),
        ("d_fine", "eval_idx", json!(-9)),
        ("d_fine", "top_prob_values", json!(99)),
        ("detr", "num_queries", json!(8)),
        ("detr", "dilation", json!(true)),
        ("detr", "activation_function", json!("softsign")),
        ("detr", "encoder_layers", json!("six")),
        ("yolos", "num_detection_tokens", json!(1i64 << 40)),
        ("yolos", "image_size", json!([1i64 << 40, 16])),
        ("yolos", "image_size", json!([1, 2, 3])),
        ("resnet", "depths", json!([1, 1, 1, 4000])),
        ("resnet", "num_channels", json!(1)),
        ("resnet", "layer_type", json!("tunnel")),
        ("hgnet_v2", "stage_numb_of_layers", json!([1])),
        ("convnext", "depths", json!([1, 1, 3, 1])),
        ("swin", "depths", json!([1, 1, 4000])),
        ("swin", "num_heads", json!([5, 3, 4])),
        ("swin", "window_size", json!(1i64 << 40)),
        ("swin", "window_size", json!(0)),
        ("swinv2", "use_absolute_embeddings", json!(true)),
        ("swinv2", "image_size", json!(8)),
        ("beit", "image_size", json!(1i64 << 50)),
        ("beit", "image_size", json!(-4)),
        ("beit", "num_attention_heads", json!(7)),
        ("deit", "hidden_size", json!(1i64 << 40)),
        ("deit", "num_hidden_layers", json!(40_000_000)),
        ("mobilenet_v2", "hidden_act", json!("softsign")),
        ("efficientnet", "depth_coefficient", json!(1e30)),
        ("efficientnet", "strides", json!([1, 3, 2])),
        ("efficientnet", "pooling_type", json!("sum")),
        ("metaclip_2", "vision_config", json!({"hidden_size": -1})),
    ];
    for (name, key, value) in changes {
        let mut config = record(name, "config.json");
        config[key] = value.clone();
        let folder = changed(name, &config, str::to_owned);
        let found = if record(name, "expected.json")["kind"] == "detector" {
            detector(&folder).and_then(|model| {
                let case = &record(name, "expected.json")["cases"][0];
                model
                    .detect(&[picture(case)], 0.5, 0, &CancelToken::new())
                    .map(drop)
            })
        } else {
            let (files, options) = (files(&folder), LoadOptions::default());
            ImageClassifyModel::load(&files, &options, &CancelToken::new()).map(drop)
        };
        let expected = matches!(
            found,
            Err(Error::CorruptModel(_) | Error::UnsupportedModel(_) | Error::InvalidInput(_))
        );
        assert!(expected, "{name} {key} {value}: {found:?}");
    }
}

#[test]
fn a_picture_that_can_not_be_read_is_named() {
    let model = detector(&checkpoint("yolos")).unwrap();
    let case = &record("yolos", "expected.json")["cases"][0];
    let pictures = [picture(case), Picture::Encoded(b"no picture".to_vec())];
    let error = model
        .detect(&pictures, 0.5, 3, &CancelToken::new())
        .unwrap_err();
    assert!(
        error.to_string().starts_with("the image at index 4: "),
        "{error}"
    );
}
