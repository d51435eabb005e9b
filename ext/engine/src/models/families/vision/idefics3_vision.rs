use super::*;

pub const FAMILY: Family<VisionConfig> = Family {
    name: "idefics3_vision",
    matches: types(&["idefics3_vision", "smolvlm_vision"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "hidden_size": 1152, "num_hidden_layers": 12, "num_attention_heads": 16, "patch_size": 32,
        }));
        Ok(VisionConfig {
            positions: GridPositions::Buckets,
            ..vision(&siglip(&raw), "idefics3")?
        })
    },
    names: |_| CLIP_VISION,
    gguf: None,
};
