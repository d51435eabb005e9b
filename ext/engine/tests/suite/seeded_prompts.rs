//! Models of pictures that take labels, points and boxes against transformers, and hostile ones that estimate depths.

use engine::tasks::{DepthModel, LoadOptions, Part, PartKind, Prompt, SegmentModel};
use engine::{CancelToken, Error};
use serde_json::{json, Value};

use super::seeded_pictures::{
    changed, checkpoint, detector, excess, files, names, numbers, picture, record, with_texts,
    BOX_TOLERANCE, TOLERANCE,
};

#[test]
fn named_things_are_those_of_transformers() {
    let cancel = CancelToken::new();
    let mut wrong = Vec::new();
    for name in names("open") {
        let model = match detector(&with_texts(&name)) {
            Ok(model) => model,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let expected = record(&name, "expected.json");
        let labels = expected["labels"].as_array().unwrap().iter();
        let labels: Vec<String> = labels.map(|it| it.as_str().unwrap().to_owned()).collect();
        let threshold = expected["threshold"].as_f64().unwrap() as f32;
        for case in expected["cases"].as_array().unwrap() {
            let picture = [picture(case)];
            let (image, found) = model.predict_labels(&picture[0], &labels, &cancel).unwrap();
            let boxes = found.boxes.concat();
            let off = excess(&found.logits, &numbers(&case["logits"]), TOLERANCE);
            let apart = excess(&boxes, &numbers(&case["boxes"]), BOX_TOLERANCE);
            if off > 1.0 || apart > 1.0 {
                wrong.push(format!("{name}: logits {off}, boxes {apart}"));
                continue;
            }
            let things = model
                .find(&picture, &labels, threshold, 0, &cancel)
                .unwrap();
            let wanted = case["things"].as_array().unwrap();
            assert_eq!(things[0].len(), wanted.len(), "{name}");
            let size = image.width().max(image.height()) as f64;
            for (thing, wanted) in things[0].iter().zip(wanted) {
                let corners = excess(&thing.corners, &numbers(&wanted[2]), BOX_TOLERANCE * size);
                assert!(
                    wanted[0] == json!(thing.label) && corners <= 1.0,
                    "{name} {thing:?}"
                );
            }
        }
        let error = model.detect(&[picture(&expected["cases"][0])], 0.5, 0, &cancel);
        assert!(matches!(error, Err(Error::InvalidInput(_))));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A mask from the lengths of its runs, the first outside of it.
fn pixels_of(runs: &str) -> Vec<bool> {
    let lengths = runs.split(' ').map(|length| length.parse().unwrap());
    let runs = lengths.enumerate();
    runs.flat_map(|(number, length)| vec![number % 2 == 1; length])
        .collect()
}

#[test]
fn masks_of_prompts_are_those_of_transformers() {
    let cancel = CancelToken::new();
    let mut wrong = Vec::new();
    for name in names("prompted") {
        let folder = checkpoint(&name);
        let model = match SegmentModel::load(&files(&folder), &LoadOptions::default(), &cancel) {
            Ok(model) => model,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for case in record(&name, "expected.json")["cases"].as_array().unwrap() {
            let edges = |value: &Value| {
                numbers(value)
                    .iter()
                    .map(|&it| it as f32)
                    .collect::<Vec<_>>()
            };
            let points = case["points"].as_array().unwrap().iter().map(|point| {
                let at = |number: usize| point[number].as_f64().unwrap() as f32;
                (at(0), at(1), point[2].as_bool().unwrap())
            });
            let points: Vec<_> = points.collect();
            let boxes = case["boxes"].as_array().unwrap().iter().map(edges);
            let boxes: Vec<[f32; 4]> = boxes.map(|it| it.try_into().unwrap()).collect();
            let prompt = |corners| Prompt {
                points: points.clone(),
                corners,
            };
            let mut prompts: Vec<_> = boxes.into_iter().map(|it| prompt(Some(it))).collect();
            if prompts.is_empty() {
                prompts.push(prompt(None));
            }
            let several = case["several"].as_bool().unwrap();
            let found = model.segment_prompts(&picture(case), &prompts, several, &cancel);
            let found = found.unwrap();
            let scores = case["scores"].as_array().unwrap();
            let masks = case["masks"].as_array().unwrap();
            assert_eq!(found.len(), scores.len());
            for ((found, scores), masks) in found.iter().zip(scores).zip(masks) {
                let own: Vec<f32> = found.iter().map(|one| one.score).collect();
                let off = excess(&own, &numbers(scores), TOLERANCE);
                let different = found
                    .iter()
                    .zip(masks.as_array().unwrap())
                    .map(|(one, mask)| {
                        let wanted = pixels_of(mask.as_str().unwrap());
                        let pixels = one.mask.pixels().iter().step_by(3).map(|&byte| byte > 0);
                        assert_eq!(one.mask.pixels().len(), 3 * wanted.len());
                        pixels.zip(wanted).filter(|(a, b)| a != b).count()
                    });
                let different: usize = different.sum();
                if off > 1.0 || different > 6 {
                    wrong.push(format!("{name}: scores {off}, {different} pixels"));
                }
            }
        }
        let case = &record(&name, "expected.json")["cases"][0];
        let error = model.segment(&[picture(case)], 0, &cancel);
        assert!(matches!(error, Err(Error::InvalidInput(_))));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn images_of_sam_2_for_videos_are_those_of_sam_2() {
    let cancel = CancelToken::new();
    let mut config = record("sam2", "config.json");
    config["model_type"] = json!("sam2_video");
    let found = [checkpoint("sam2"), changed("sam2", &config, str::to_owned)].map(|folder| {
        let model = SegmentModel::load(&files(&folder), &LoadOptions::default(), &cancel).unwrap();
        let prompt = Prompt {
            points: vec![(40.0, 30.0, true)],
            corners: None,
        };
        let case = &record("sam2", "expected.json")["cases"][0];
        let found = model.segment_prompts(&picture(case), &[prompt], true, &cancel);
        found.unwrap()
    });
    assert!(found[0] == found[1] && found[0][0].len() == 3);
}

/// Whether each pixel is in a part.
fn inside(part: &Part) -> impl Iterator<Item = bool> + '_ {
    part.mask.pixels().iter().step_by(3).map(|&byte| byte > 0)
}

/// Label, score and number of pixels of each part, the best first.
fn shown(parts: &[Part]) -> Vec<(usize, f32, usize)> {
    let pixels = |part: &Part| inside(part).filter(|&it| it).count();
    let shown = parts.iter().map(|it| (it.label, it.score, pixels(it)));
    let mut shown: Vec<_> = shown.collect();
    shown.sort_by(|a, b| b.1.total_cmp(&a.1));
    shown
}

/// A mask of runs of pixels, the first of them outside.
fn unpacked(runs: &Value) -> Vec<bool> {
    let runs = runs.as_array().unwrap().iter().enumerate();
    let run = |(number, length): (usize, &Value)| {
        let length = length.as_u64().unwrap() as usize;
        std::iter::repeat_n(number % 2 == 1, length)
    };
    runs.flat_map(run).collect()
}

fn same_parts(found: &[Part], wanted: &Value) -> bool {
    let mut wanted: Vec<&Value> = wanted.as_array().unwrap().iter().collect();
    wanted.sort_by(|a, b| b[1].as_f64().unwrap().total_cmp(&a[1].as_f64().unwrap()));
    let mut found: Vec<&Part> = found.iter().collect();
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    let same = |(part, wanted): (&&Part, &&Value)| {
        let mask = unpacked(&wanted[2]);
        assert_eq!(inside(part).count(), mask.len());
        let pairs = inside(part).zip(&mask);
        let different = pairs.filter(|(own, wanted)| own != *wanted).count();
        // Of 1000 pixels one may lie on the other side of an edge.
        json!(part.label) == wanted[0]
            && excess(&[part.score], &[wanted[1].as_f64().unwrap()], TOLERANCE) <= 1.0
            && different * 1000 <= mask.len()
    };
    found.len() == wanted.len() && found.iter().zip(&wanted).all(same)
}

#[test]
fn things_and_parts_are_those_of_transformers() {
    const THRESHOLD: f32 = 0.1;
    let cancel = CancelToken::new();
    let mut wrong = Vec::new();
    for name in names("masks") {
        let folder = checkpoint(&name);
        let model = match SegmentModel::load(&files(&folder), &LoadOptions::default(), &cancel) {
            Ok(model) => model,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let expected = record(&name, "expected.json");
        let cases = expected["cases"].as_array().unwrap();
        let pictures: Vec<_> = cases.iter().map(picture).collect();
        let labels = model.segment(&pictures, 0, &cancel).unwrap();
        for (case, found) in cases.iter().zip(&labels) {
            let wanted = case["segmentation"].as_array().unwrap();
            assert_eq!(found.labels.len(), wanted.len());
            let pairs = found.labels.iter().zip(wanted);
            let off = pairs.filter(|(found, wanted)| json!(found) != **wanted);
            let off = off.count();
            if off * 1000 > wanted.len() {
                wrong.push(format!("{name}: {off} of {} labels", wanted.len()));
            }
        }
        let merged: Vec<usize> = numbers(&cases[0]["merged"])
            .iter()
            .map(|&at| at as usize)
            .collect();
        let kinds = [
            ("things", PartKind::Instances),
            ("parts", PartKind::Panoptic { merged: Vec::new() }),
            ("together", PartKind::Panoptic { merged }),
        ];
        for (key, kind) in kinds {
            let all = model
                .parts(&pictures, &kind, THRESHOLD, 0, &cancel)
                .unwrap();
            for (case, found) in cases.iter().zip(&all) {
                if !same_parts(found, &case[key]) {
                    wrong.push(format!("{name} {key}: {:?}", shown(found)));
                }
            }
            let alone = model
                .parts(&pictures[1..], &kind, THRESHOLD, 1, &cancel)
                .unwrap();
            assert_eq!(alone[0], all[1], "{name}: alone and together");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let folder = checkpoint("segformer");
    let model = SegmentModel::load(&files(&folder), &LoadOptions::default(), &cancel).unwrap();
    let case = &record("segformer", "expected.json")["cases"][0];
    let found = model.parts(&[picture(case)], &PartKind::Instances, 0.5, 0, &cancel);
    assert!(matches!(found, Err(Error::InvalidInput(_))));
}

#[test]
fn hostile_models_that_take_prompts_are_errors() {
    let text = |name: &str, key: &str, value: Value| {
        let mut inner = record(name, "config.json")[key].clone();
        for (name, value) in value.as_object().unwrap() {
            inner[name] = value.clone();
        }
        inner
    };
    let vision = |value: Value| {
        let mut vision = record("sam2", "config.json")["vision_config"].clone();
        for (name, value) in value.as_object().unwrap() {
            vision["backbone_config"][name] = value.clone();
        }
        vision
    };
    let decoder = |value: Value| text("sam2", "mask_decoder_config", value);
    let changes = [
        ("grounding-dino", "two_stage", json!(false)),
        ("grounding-dino", "embedding_init_target", json!(false)),
        (
            "grounding-dino",
            "position_embedding_type",
            json!("learned"),
        ),
        ("grounding-dino", "num_queries", json!(1i64 << 40)),
        ("grounding-dino", "num_queries", json!(60_000)),
        ("grounding-dino", "num_feature_levels", json!(1)),
        ("grounding-dino", "encoder_attention_heads", json!(1)),
        ("grounding-dino", "encoder_attention_heads", json!(5)),
        ("grounding-dino", "encoder_n_points", json!(1i64 << 30)),
        ("grounding-dino", "d_model", json!(48)),
        ("grounding-dino", "decoder_layers", json!(0)),
        ("grounding-dino", "max_text_len", json!(3)),
        ("grounding-dino", "backbone_config", json!(null)),
        (
            "grounding-dino",
            "text_config",
            json!({"model_type": "roberta"}),
        ),
        (
            "grounding-dino",
            "text_config",
            text(
                "grounding-dino",
                "text_config",
                json!({"num_hidden_layers": 4000}),
            ),
        ),
        (
            "mask2former",
            "backbone_config",
            json!({"model_type": "vit"}),
        ),
        ("mask2former", "feature_strides", json!([])),
        ("mask2former", "feature_strides", json!([4, 8, 1, 32])),
        ("mask2former", "common_stride", json!(0)),
        ("mask2former", "num_attention_heads", json!(7)),
        ("mask2former", "num_queries", json!(1i64 << 40)),
        ("mask2former", "decoder_layers", json!(0)),
        ("mask2former", "decoder_layers", json!(3000)),
        ("mask2former", "feature_size", json!(-1)),
        ("mask2former", "hidden_dim", json!(1i64 << 40)),
        (
            "sam2",
            "vision_config",
            vision(json!({"blocks_per_stage": [1, 2]})),
        ),
        (
            "sam2",
            "vision_config",
            vision(json!({"blocks_per_stage": [1, 2, 4000, 1]})),
        ),
        (
            "sam2",
            "vision_config",
            vision(json!({"window_size_per_stage": [0, 4, 6, 3]})),
        ),
        (
            "sam2",
            "vision_config",
            vision(json!({"window_size_per_stage": [8, 1i64 << 40, 6, 3]})),
        ),
        (
            "sam2",
            "vision_config",
            vision(json!({"window_size_per_stage": [7, 4, 6, 3]})),
        ),
        (
            "sam2",
            "vision_config",
            vision(json!({"query_stride": [2, 3]})),
        ),
        (
            "sam2",
            "vision_config",
            vision(json!({"patch_stride": [0, 0]})),
        ),
        (
            "sam2",
            "vision_config",
            vision(json!({"num_attention_heads_per_stage": [1, 2, 5, 4]})),
        ),
        (
            "sam2",
            "vision_config",
            text("sam2", "vision_config", json!({"num_feature_levels": 2})),
        ),
        (
            "sam2",
            "vision_config",
            text("sam2", "vision_config", json!({"fpn_hidden_size": 20})),
        ),
        (
            "sam2",
            "prompt_encoder_config",
            text(
                "sam2",
                "prompt_encoder_config",
                json!({"image_size": 1i64 << 40}),
            ),
        ),
        (
            "sam2",
            "prompt_encoder_config",
            text("sam2", "prompt_encoder_config", json!({"patch_size": 8})),
        ),
        (
            "sam2",
            "mask_decoder_config",
            decoder(json!({"num_attention_heads": 7})),
        ),
        (
            "sam2",
            "mask_decoder_config",
            decoder(json!({"num_hidden_layers": 60})),
        ),
    ];
    let cancel = CancelToken::new();
    for (name, key, value) in changes {
        let mut config = record(name, "config.json");
        config[key] = value.clone();
        let folder = changed(name, &config, str::to_owned);
        let case = &record(name, "expected.json")["cases"][0];
        let options = LoadOptions::default();
        let found = match name {
            "grounding-dino" => {
                for file in ["tokenizer.json", "tokenizer_config.json"] {
                    folder.write(file, record(name, file).to_string());
                }
                let labels = ["a lazy dog".to_owned()];
                detector(&folder)
                    .and_then(|model| model.find(&[picture(case)], &labels, 0.5, 0, &cancel))
                    .map(drop)
            }
            "sam2" => SegmentModel::load(&files(&folder), &options, &cancel)
                .and_then(|model| {
                    let prompt = Prompt {
                        points: vec![(1.0, 2.0, true)],
                        corners: None,
                    };
                    model.segment_prompts(&picture(case), &[prompt], true, &cancel)
                })
                .map(drop),
            _ => SegmentModel::load(&files(&folder), &options, &cancel)
                .and_then(|model| model.segment(&[picture(case)], 0, &cancel))
                .map(drop),
        };
        let expected = matches!(
            found,
            Err(Error::CorruptModel(_) | Error::UnsupportedModel(_) | Error::InvalidInput(_))
        );
        assert!(expected, "{name} {key} {value}: {found:?}");
    }
}

#[test]
fn hostile_depth_estimators_are_errors() {
    let changes = [
        ("depth_anything", "backbone_config", json!(null)),
        (
            "depth_anything",
            "backbone_config",
            json!({"model_type": "vit"}),
        ),
        ("depth_anything", "reassemble_factors", json!([4, 2])),
        ("depth_anything", "reassemble_factors", json!([0, 0, 0, 0])),
        ("depth_anything", "head_in_index", json!(9)),
        ("depth_anything", "depth_estimation_type", json!("far")),
        ("dpt", "readout_type", json!("guess")),
        ("dpt", "is_hybrid", json!(true)),
        ("dpt", "backbone_out_indices", json!([0, 1])),
        ("dpt", "backbone_out_indices", json!([])),
        ("dpt", "add_projection", json!(true)),
    ];
    for (name, key, value) in changes {
        let mut config = record(name, "config.json");
        config[key] = value.clone();
        let folder = changed(name, &config, str::to_owned);
        let cancel = CancelToken::new();
        let found = DepthModel::load(&files(&folder), &LoadOptions::default(), &cancel).map(drop);
        let expected = matches!(
            found,
            Err(Error::CorruptModel(_) | Error::UnsupportedModel(_) | Error::InvalidInput(_))
        );
        assert!(expected, "{name} {key} {value}: {found:?}");
    }
}
