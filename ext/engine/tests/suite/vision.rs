//! CLIP, SigLIP, ViT and DINOv2 against transformers.

use std::path::PathBuf;

use engine::tasks::{
    ClipModel, EmbedSettings, EmbeddingModel, ImageClassifyModel, ImageEmbeddingModel, LoadOptions,
    Picture,
};
use engine::{CancelToken, Error};

use super::encoder::{difference, files, Expected};

const TOLERANCE: f32 = 1e-4;
const BATCH_TOLERANCE: f32 = 1e-5;

fn picture(name: &str) -> Picture {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/images");
    Picture::File(folder.join(name))
}

fn pictures(expected: &Expected) -> Vec<Picture> {
    let names: Vec<String> = serde_json::from_value(expected.record["pictures"].clone()).unwrap();
    names.iter().map(|name| picture(name)).collect()
}

fn options() -> LoadOptions {
    LoadOptions {
        verify: Some(true),
        ..LoadOptions::default()
    }
}

#[test]
fn texts_and_images_are_those_of_transformers() {
    for name in ["clip", "siglip", "siglip2"] {
        let cancel = CancelToken::new();
        let model = ClipModel::load(&files(name), &options(), &cancel).unwrap();
        let expected = Expected::of(name);
        let texts = expected.texts();
        let found = model.embed_texts(&texts, &cancel).unwrap();
        let most = difference(&found.values, &expected.rows("texts").concat());
        assert!(most <= TOLERANCE, "{name}: texts {most}");
        let pictures = pictures(&expected);
        let found = model.embed_images(&pictures, 0, &cancel).unwrap();
        let most = difference(&found.values, &expected.rows("pictures").concat());
        assert!(most <= TOLERANCE, "{name}: pictures {most}");
        let scores = model.match_texts(&pictures, 0, &texts, &cancel).unwrap();
        let most = difference(&scores.concat(), &expected.rows("scores").concat());
        assert!(most <= TOLERANCE, "{name}: scores {most}");
        for (index, text) in texts.iter().enumerate() {
            let alone = model.embed_texts(&[text], &cancel).unwrap();
            let together = model.embed_texts(&texts, &cancel).unwrap();
            let row = &together.values[index * model.dimension()..][..model.dimension()];
            assert!(difference(&alone.values, row) <= BATCH_TOLERANCE, "{name}");
        }
    }
}

#[test]
fn images_alone_are_those_of_transformers() {
    for name in ["vit", "dinov2", "dinov2-registers"] {
        let cancel = CancelToken::new();
        let model = ImageEmbeddingModel::load(&files(name), &options(), &cancel).unwrap();
        let expected = Expected::of(name);
        let pictures = pictures(&expected);
        let found = model.embed(&pictures, false, 0, &cancel).unwrap();
        let rows = expected.rows("first");
        let most = difference(&found.values, &rows.concat());
        assert!(most <= TOLERANCE, "{name}: {most}");
        for (picture, row) in pictures.iter().zip(found.values.chunks(model.dimension())) {
            let alone = model
                .embed(std::slice::from_ref(picture), false, 0, &cancel)
                .unwrap();
            assert!(difference(&alone.values, row) <= BATCH_TOLERANCE, "{name}");
        }
        let unit = model.embed(&pictures, true, 0, &cancel).unwrap();
        for row in unit.values.chunks(model.dimension()) {
            let length: f32 = row.iter().map(|value| value * value).sum();
            assert!((length - 1.0).abs() < 1e-5);
        }
    }
}

#[test]
fn classifiers_are_those_of_transformers() {
    for name in ["vit-classifier", "dinov2-classifier"] {
        let cancel = CancelToken::new();
        let model = ImageClassifyModel::load(&files(name), &options(), &cancel).unwrap();
        assert_eq!(model.labels(), ["tabby", "temple", "flower"]);
        let expected = Expected::of(name);
        let found = model.classify(&pictures(&expected), 0, &cancel).unwrap();
        let most = difference(&found.values, &expected.rows("logits").concat());
        assert!(most <= TOLERANCE, "{name}: {most}");
    }
}

#[test]
fn a_picture_that_can_not_be_read_is_named() {
    let cancel = CancelToken::new();
    let model = ImageEmbeddingModel::load(&files("vit"), &options(), &cancel).unwrap();
    let pictures = [
        picture("photo.png"),
        Picture::Encoded(b"no picture".to_vec()),
    ];
    let error = model.embed(&pictures, true, 10, &cancel).unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)));
    assert!(
        error.to_string().starts_with("the image at index 11: "),
        "{error}"
    );
    let error = model.embed(&pictures[1..], true, 0, &cancel).unwrap_err();
    assert!(
        error.to_string().starts_with("this is not an image"),
        "{error}"
    );
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let error = model
        .embed(&pictures[..1], true, 0, &cancelled)
        .unwrap_err();
    assert!(matches!(error, Error::Interrupted));
}

#[test]
fn other_models_say_what_they_are() {
    let cancel = CancelToken::new();
    let error = |result: engine::Result<()>| result.unwrap_err().to_string();
    let clip = ClipModel::load(&files("bert"), &options(), &cancel).map(drop);
    assert!(error(clip).contains("Supported are clip, siglip, siglip2 and metaclip_2"));
    let image = ImageEmbeddingModel::load(&files("bert"), &options(), &cancel).map(drop);
    assert!(error(image).contains("is not a vision model"));
    let classifier = ImageClassifyModel::load(&files("vit"), &options(), &cancel).map(drop);
    assert!(error(classifier).contains("has no classifier for images"));
    let settings = EmbedSettings::default();
    let text = EmbeddingModel::load(&files("clip"), &options(), &settings, &cancel).map(drop);
    assert!(error(text).contains("model_type \"clip\""));
}
