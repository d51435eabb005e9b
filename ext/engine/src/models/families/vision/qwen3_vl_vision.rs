use super::*;

/// Patches have learned positions, and rotate by row and column beside them.
pub const FAMILY: Family<VisionConfig> = Family {
    name: "qwen3_vl_vision",
    matches: types(&["qwen3_vl_vision", "qwen3_5_vision", "qwen3_5_moe_vision"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "depth": 27, "hidden_size": 1152, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh",
        }));
        let mut config = qwen_vision(&raw, raw.usize_in("hidden_size", WIDTH)?)?;
        config.positions = GridPositions::LinearCorners;
        Ok(config)
    },
    names: |_| QWEN3_VISION,
    gguf: None,
};
