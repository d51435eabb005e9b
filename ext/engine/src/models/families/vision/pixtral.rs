use super::*;

/// Images of any size; rows rotate by every second frequency, and columns by those between.
pub const FAMILY: Family<VisionConfig> = Family {
    name: "pixtral",
    matches: types(&["pixtral"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 16,
            "hidden_act": "gelu", "layer_norm_eps": 1e-5,
        }));
        let mut config = vision(&raw, "pixtral")?;
        config.encoder.norm.kind = NormKind::Rms;
        config.encoder.mlp.kind = MlpKind::Gated;
        let mut config = in_blocks(config, 1, grid_theta(&raw)?);
        if let Some(rope) = config.encoder.relative.rope_mut() {
            rope.axes = RopeAxes::GridTurns;
        }
        Ok(config)
    },
    names: |_| PIXTRAL,
    gguf: None,
};
