use super::*;

/// AIMv2's, with positions of one size.
pub const FAMILY: Family<VisionConfig> = Family {
    name: "ovis2_vision",
    matches: types(&["ovis2_vision"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
        }));
        let patch = square_edge(&raw, "patch_size")?.unwrap_or(14);
        let mut config = vision(&raw.with(json!({"patch_size": patch})), "ovis2")?;
        config.encoder.norm.kind = NormKind::Rms;
        config.encoder.mlp.kind = MlpKind::Gated;
        Ok(config)
    },
    names: |_| OVIS_VISION,
    gguf: None,
};
