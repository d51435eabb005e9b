//! Models of pictures that take labels, points and boxes against transformers, and hostile ones that estimate depths.

use engine::tasks::{DepthModel, LoadOptions, Prompt, SegmentModel};
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
                        let wanted = mask.as_str().unwrap().bytes().map(|byte| byte == b'1');
                        let pixels = one.mask.pixels().iter().step_by(3).map(|&byte| byte > 0);
                        assert_eq!(one.mask.pixels().len(), 3 * mask.as_str().unwrap().len());
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
