//! Detectors of pages: configurations that are refused.

use engine::{CancelToken, Error};
use serde_json::{json, Value};

use super::seeded_pictures::{changed, checkpoint, detector, picture, record};

/// What a detector says of a picture with another value at a place of its configuration, `null` being none at all.
fn outcome(name: &str, place: &str, value: &Value) -> engine::Result<()> {
    let mut config = record(name, "config.json");
    let (parent, key) = place.rsplit_once('/').unwrap();
    let parent = config.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if value.is_null() {
        parent.remove(key);
    } else {
        parent.insert(key.to_owned(), value.clone());
    }
    let model = detector(&changed(name, &config, str::to_owned))?;
    let case = &record(name, "expected.json")["cases"][0];
    let found = model.detect(&[picture(case)], 0.1, 0, &CancelToken::new())?;
    assert_eq!(found.len(), 1);
    Ok(())
}

/// The boxes around masks would be those of the learned queries, and not those of the chosen places.
#[test]
fn learned_queries_beside_masks_are_refused() {
    let place = "/learn_initial_query";
    let found = outcome("pp_doclayout_v3", place, &json!(true));
    let Err(Error::UnsupportedModel(reason)) = &found else {
        panic!("{found:?}")
    };
    assert!(reason.contains("learn_initial_query"), "{reason}");
    // Without such boxes the weights of learned queries are looked for.
    let found = outcome("pp_doclayout_v3-plain", place, &json!(true));
    assert!(matches!(found, Err(Error::CorruptModel(_))), "{found:?}");
}

#[test]
fn hostile_configurations_of_pages_are_errors() {
    let huge = json!(1i64 << 40);
    let changes = [
        ("pp_doclayout_v2", "/num_queries", json!(5000)),
        ("pp_doclayout_v2", "/reading_order_config", Value::Null),
        ("pp_doclayout_v2", "/reading_order_config", json!([])),
        (
            "pp_doclayout_v2",
            "/reading_order_config/hidden_size",
            json!(0),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/hidden_size",
            huge.clone(),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/num_attention_heads",
            json!(7),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/num_attention_heads",
            json!(0),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/num_hidden_layers",
            json!(40_000_000),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/relation_bias_embed_dim",
            json!(0),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/relation_bias_embed_dim",
            huge.clone(),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/global_pointer_head_size",
            json!(0),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/pad_token_id",
            json!(60_000),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/pred_token_id",
            json!(60_000),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/start_token_id",
            json!(-1),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/hidden_act",
            json!("softsign"),
        ),
        (
            "pp_doclayout_v2",
            "/reading_order_config/has_relative_attention_bias",
            json!(true),
        ),
        ("pp_doclayout_v2", "/class_order", Value::Null),
        ("pp_doclayout_v2", "/class_order", json!([-1, 0, 0, 0, 0])),
        (
            "pp_doclayout_v2",
            "/class_order",
            json!([0, 0, 0, 0, 1i64 << 60]),
        ),
        ("pp_doclayout_v2", "/class_thresholds", json!([0.5])),
        ("pp_doclayout_v2", "/class_thresholds", json!("half")),
        ("pp_doclayout_v3", "/num_queries", json!(5000)),
        ("pp_doclayout_v3", "/num_queries", json!(0)),
        ("pp_doclayout_v3", "/decoder_layers", json!(0)),
        ("pp_doclayout_v3", "/decoder_layers", huge.clone()),
        ("pp_doclayout_v3", "/feat_strides", json!([32, 16, 8])),
        ("pp_doclayout_v3", "/global_pointer_head_size", json!(0)),
        ("pp_doclayout_v3", "/global_pointer_head_size", huge.clone()),
        ("pp_doclayout_v3", "/mask_enhanced", json!("yes")),
        (
            "pp_doclayout_v3",
            "/backbone_config/out_features",
            json!(["stage1"]),
        ),
        (
            "pp_doclayout_v3",
            "/backbone_config/out_features",
            json!(["stage9"]),
        ),
        ("pp_doclayout_v3", "/backbone_config", Value::Null),
        ("pp_doclayout_v4", "/num_queries", json!(5000)),
        ("pp_doclayout_v4", "/hidden_size", huge.clone()),
        ("pp_doclayout_v4", "/decoder_layers", json!(4)),
        ("pp_doclayout_v4", "/global_pointer_head_size", json!(9)),
        ("pp_doclayout_v4", "/s2r_steps", huge),
        ("pp_doclayout_v4", "/s2r_damping", json!("half")),
    ];
    let mut wrong = Vec::new();
    for (name, place, value) in changes {
        let found = outcome(name, place, &value);
        let expected = matches!(
            found,
            Err(Error::CorruptModel(_) | Error::UnsupportedModel(_) | Error::InvalidInput(_))
        );
        if !expected {
            wrong.push(format!("{name} {place} {value}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What is missing has a default, and other fixtures of pages stay as they are.
#[test]
fn pages_are_read_without_what_has_a_default() {
    for (name, place) in [
        ("pp_doclayout_v3", "/mask_enhanced"),
        ("pp_doclayout_v3", "/feat_strides"),
        ("pp_doclayout_v4", "/s2r_steps"),
        (
            "pp_doclayout_v2",
            "/reading_order_config/relation_bias_theta",
        ),
    ] {
        let found = outcome(name, place, &Value::Null);
        assert!(found.is_ok(), "{name} {place}: {found:?}");
    }
    assert!(detector(&checkpoint("pp_doclayout_v3-plain")).is_ok());
}
