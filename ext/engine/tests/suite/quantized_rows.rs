//! Which quantized weights are multiplied with rows in FP8.

use base::quant::BlockType;
use serde_json::{json, Value};

use super::quantized_files::{changed, open, setting, Change, Q};

#[test]
fn rows_of_fp8_are_wanted_where_the_checkpoint_says_so() {
    let groups = |inputs: Value| {
        let eight = json!({"num_bits": 8, "type": "float", "strategy": "tensor"});
        json!({"group_0": {"targets": ["Linear"], "weights": eight, "input_activations": inputs}})
    };
    let integers = json!({"num_bits": 8, "type": "int"});
    let floats = json!({"num_bits": 8, "type": "float", "dynamic": true});
    let up = "model.layers.0.mlp.up_proj";
    let cases: Vec<(&str, &str, Option<Change>, bool)> = vec![
        ("fp8", Q, None, true),
        (
            "fp8",
            Q,
            Some(setting("activation_scheme", Value::Null)),
            false,
        ),
        (
            "fp8",
            Q,
            Some(setting("activation_scheme", json!("static"))),
            true,
        ),
        ("fbgemm_fp8", Q, None, true),
        ("compressed", up, None, false),
        (
            "compressed",
            up,
            Some(setting("config_groups", groups(floats))),
            true,
        ),
        (
            "compressed",
            up,
            Some(setting("config_groups", groups(integers))),
            false,
        ),
        (
            "compressed",
            up,
            Some(setting("config_groups", groups(Value::Null))),
            false,
        ),
    ];
    for (at, (name, module, change, expected)) in cases.into_iter().enumerate() {
        let folder = changed(name, |header, data, config| {
            if let Some(change) = &change {
                change(header, data, config);
            }
        });
        let source = open(&folder.path("")).unwrap();
        let blocks = source.quantized(&format!("{module}.weight")).unwrap();
        let blocks = blocks.unwrap();
        assert_eq!(blocks.kind, BlockType::Fp8);
        assert_eq!(blocks.fp8_rows, expected, "{name}, case {at}");
    }
}
