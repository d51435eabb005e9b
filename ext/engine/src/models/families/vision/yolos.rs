use super::*;

/// Tokens beside the patches find things, one each.
pub const FAMILY: Family<VisionConfig> = Family {
    name: "yolos",
    matches: types(&["yolos"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_act": "gelu",
            "layer_norm_eps": 1e-12, "image_size": [512, 864],
        }));
        let patch = square_edge(&raw, "patch_size")?.unwrap_or(16);
        let mut config = vision(&raw.clone().with(json!({"patch_size": patch})), "yolos")?;
        config.positions = GridPositions::Bicubic;
        config.finders = Some(Finders {
            count: raw.opt_usize("num_detection_tokens")?.unwrap_or(100),
            grid: patch_grid(&raw, "image_size", patch)?,
            later_positions: flag(&raw, "use_mid_position_embeddings", true)?,
        });
        Ok(config)
    },
    names: |_| Names {
        finder_tokens: "embeddings.detection_tokens",
        later_positions:
            "encoder.mid_position_embeddings|encoder.interpolation.mid_position_embeddings",
        sequence_output: "",
        ..VIT
    },
    gguf: None,
};
