use super::*;

/// SigLIP's, whose patches rotate by row and column beside their positions.
pub const FAMILY: Family<VisionConfig> = Family {
    name: "paddleocr_vl_vision",
    matches: types(&["paddleocr_vl_vision"]),
    config: |raw| {
        let raw = siglip(&raw.clone().with_defaults(json!({
            "hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14,
            "intermediate_size": 4304,
        })));
        let config = in_blocks(vision(&raw, "paddleocr_vl")?, 1, grid_theta(&raw)?);
        Ok(VisionConfig {
            positions: GridPositions::LinearCorners,
            ..config
        })
    },
    names: |_| Names {
        projector_norm: "projector.pre_norm|mlp_AR.pre_norm",
        projector_up: "projector.linear_1|mlp_AR.linear_1",
        projector_down: "projector.linear_2|mlp_AR.linear_2",
        pooling_query: "",
        ..CLIP_VISION
    },
    gguf: None,
};
