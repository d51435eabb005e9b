//! Vision-language models in the two GGUF files that llama.cpp's converter makes of seeded checkpoints, against what
//! transformers says of the checkpoints.
//!
//! `spec/fixtures/make_seeded_gguf_vlms.py` has noted how the tensors of the files come of the checkpoint's.

use std::collections::HashMap;

use serde_json::{json, Value};

use super::seeded_gguf::{cooked, file_of, floats};
use super::seeded_gguf_vlms::tokens;
use super::seeded_tensors::elements;
use super::seeded_vlms::{difference, open, record};
use super::weight_files::Folder;

/// Whether the file of the tower says all of how the fixture prepares images. Others have a `preprocessor_config.json`
/// beside them.
const MODELS: [(&str, bool); 18] = [
    ("internvl", true),
    ("llava-pixtral", true),
    ("mistral3", true),
    ("lighton_ocr", true),
    ("paddleocr_vl", true),
    ("lfm2_vl", false),
    ("janus", false),
    ("llama4", false),
    ("glm4v", false),
    ("glm4v_moe", false),
    ("glm_ocr", false),
    ("qwen3_vl", false),
    ("qwen3_vl_moe", false),
    ("qwen3_5", false),
    ("qwen3_5_moe", false),
    ("gemma4", false),
    ("gemma4-both", false),
    ("minicpmv4_6", false),
];

fn checkpoint_tensors(name: &str) -> HashMap<String, Vec<f32>> {
    let description = record(name, "tensors.json");
    let seed = description["seed"].as_u64().unwrap();
    let tensors = description["tensors"].as_object().unwrap().iter();
    tensors
        .map(|(name, tensor)| (name.clone(), floats(elements(name, seed, tensor))))
        .collect()
}

/// Both files, with other metadata of the tower.
fn files(name: &str, whole: bool, changes: &Value) -> Folder {
    let sources = checkpoint_tensors(name);
    let folder = Folder::new();
    for (file, part) in [
        ("model.gguf", "gguf.json"),
        ("mmproj-f32.gguf", "mmproj.json"),
    ] {
        let mut given = record(name, part);
        let keys = given["metadata"].as_object_mut().unwrap();
        if part == "gguf.json" {
            tokens(name, keys);
        } else {
            keys.extend(changes.as_object().unwrap().clone());
        }
        let stored = given["tensors"].as_object().unwrap().iter();
        let stored: Vec<_> = stored
            .map(|(name, recipe)| {
                let shape = recipe["shape"].as_array().unwrap().iter();
                let shape: Vec<u64> = shape.map(|extent| extent.as_u64().unwrap()).collect();
                (name.clone(), shape, cooked(recipe, &sources))
            })
            .collect();
        folder.write(file, file_of(&given["metadata"], &stored).bytes());
    }
    if !whole {
        let processor = record(name, "preprocessor_config.json").to_string();
        folder.write("preprocessor_config.json", processor);
    }
    folder
}

#[test]
fn files_of_the_converter_see_what_checkpoints_see() {
    let mut failures = Vec::new();
    for (name, whole) in MODELS {
        let model = match open(&files(name, whole, &json!({}))) {
            Ok(model) => model,
            Err(error) => {
                failures.push(format!("{name}: {error}"));
                continue;
            }
        };
        // Of settings that no key stands for, the file has others than the checkpoint.
        let own = record(name, "gguf.json")["asked"].clone();
        let asked = if own.is_null() {
            record(name, "expected.json")["asked"].clone()
        } else {
            own
        };
        for question in asked.as_array().unwrap() {
            let found = difference(&model, question);
            failures.extend(found.map(|found| format!("{name}: {found}")));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn hostile_metadata_of_towers_are_errors() {
    let number = |value: u32| json!(["uint32", value]);
    let changes = [
        ("internvl", "projector.scale_factor", number(0)),
        ("internvl", "projector.scale_factor", number(3)),
        ("internvl", "block_count", number(0)),
        ("internvl", "attention.head_count", number(7)),
        ("internvl", "patch_size", number(0)),
        ("llava-pixtral", "embedding_length", number(48)),
        ("mistral3", "spatial_merge_size", number(1 << 20)),
        ("mistral3", "spatial_merge_size", number(3)),
        ("lighton_ocr", "feed_forward_length", number(0)),
        ("lfm2_vl", "projector.scale_factor", number(4)),
        ("janus", "image_size", number(0)),
        ("llama4", "projector.scale_factor", number(65)),
        ("glm4v", "spatial_merge_size", number(0)),
        ("paddleocr_vl", "block_count", number(40_000_000)),
        ("gemma4", "projector.scale_factor", number(0)),
        ("gemma4", "attention.head_count", number(3)),
        ("gemma4", "patch_size", number(5)),
        ("gemma4", "block_count", number(3)),
        ("minicpmv4_6", "projector.scale_factor", number(3)),
        ("minicpmv4_6", "attention.head_count", number(0)),
        (
            "minicpmv4_6",
            "wa_layer_indexes",
            json!(["array int32", [-1]]),
        ),
        (
            "minicpmv4_6",
            "wa_layer_indexes",
            json!(["array int32", [40]]),
        ),
    ];
    for (name, key, value) in changes {
        let mut changed = json!({});
        changed[format!("clip.vision.{key}")] = value.clone();
        let folder = files(name, false, &changed);
        let found = open(&folder).map(drop);
        let expected = matches!(
            found,
            Err(engine::Error::CorruptModel(_) | engine::Error::UnsupportedModel(_))
        );
        assert!(expected, "{name} {key} {value}: {found:?}");
    }
}

#[test]
fn projectors_that_are_not_supported_yet_are_refused_with_the_reason() {
    for (projector, reason) in [("gemma3nv", "safetensors"), ("deepseekocr2", "SAM's")] {
        let changes = json!({"clip.projector_type": ["string", projector]});
        let error = open(&files("internvl", true, &changes)).err().unwrap();
        assert!(
            matches!(error, engine::Error::UnsupportedModel(_)),
            "{error}"
        );
        let message = error.to_string();
        assert!(message.contains(reason), "{message}");
        assert!(!message.contains("closest"), "{message}");
    }
}
