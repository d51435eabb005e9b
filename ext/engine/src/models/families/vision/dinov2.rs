use super::*;

pub const FAMILY: Family<VisionConfig> = Family {
    name: "dinov2",
    matches: types(&["dinov2", "dinov2_with_registers"]),
    config: |raw| {
        let mut config = VisionConfig {
            positions: if is_type(raw, &["dinov2"]) {
                GridPositions::Bicubic
            } else {
                GridPositions::SmoothBicubic
            },
            classifier: ClassifierInput::FirstAndMean,
            ..vision(raw, "dinov2")?
        };
        if flag(raw, "use_swiglu_ffn", false)? {
            config.encoder.mlp = Mlp {
                kind: MlpKind::Gated,
                activation: Activation::Silu,
            };
        }
        Ok(config)
    },
    names: |_| VIT,
    gguf: None,
};
