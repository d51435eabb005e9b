use super::*;

pub const FAMILY: Family<VisionConfig> = Family {
    name: "vit",
    matches: types(&["vit"]).or_classes(&["ViT"]),
    config: |raw| vision(raw, "vit"),
    names: |_| VIT,
    gguf: None,
};
