use super::*;

pub const FAMILY: Family<VisionConfig> = Family {
    name: "vit",
    matches: |raw| is(raw, &["vit"], &["ViT"]),
    config: |raw| vision(raw, "vit"),
    names: |_| VIT,
    gguf: None,
};
