use super::*;

/// Patches rotate by column and row, counted from 1; the token before them does not.
pub const FAMILY: Family<VisionConfig> = Family {
    name: "llama4_vision_model",
    matches: types(&["llama4_vision_model"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "hidden_size": 768, "num_hidden_layers": 34, "num_attention_heads": 16, "patch_size": 14,
        }));
        // Neither can be chosen.
        let raw = raw.with(json!({"hidden_act": "gelu", "layer_norm_eps": 1e-5}));
        let mut config = in_blocks(vision(&raw, "llama4")?, 1, grid_theta(&raw)?);
        config.encoder.relative.interleave();
        Ok(VisionConfig {
            positions: GridPositions::FixedTokensLast,
            blocks: None,
            ..config
        })
    },
    names: |_| LLAMA4_VISION,
    gguf: None,
};
