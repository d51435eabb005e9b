use super::*;

pub const FAMILY: Family<VisionConfig> = Family {
    name: "idefics2_vision",
    matches: types(&["idefics2_vision"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({"patch_size": 32}));
        Ok(VisionConfig {
            positions: GridPositions::Buckets,
            ..vision(&siglip(&raw), "idefics2")?
        })
    },
    names: |_| CLIP_VISION,
    gguf: None,
};
