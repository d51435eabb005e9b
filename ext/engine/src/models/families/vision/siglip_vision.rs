use super::*;

/// SigLIP 2's own models take images of any proportions; those of one size call themselves SigLIP.
pub const FAMILY: Family<VisionConfig> = Family {
    name: "siglip_vision_model",
    matches: types(&["siglip_vision_model", "siglip2_vision_model"]),
    config: |raw| {
        let config = VisionConfig {
            pooling: VisionPooling::Attention,
            classifier: ClassifierInput::Mean,
            ..vision(&siglip(raw), "siglip")?
        };
        Ok(if is_type(raw, &["siglip2_vision_model"]) {
            VisionConfig {
                patch_order: PatchOrder::ByPixel,
                positions: GridPositions::SmoothLinear,
                ..config
            }
        } else {
            config
        })
    },
    names: |_| CLIP_VISION,
    gguf: None,
};
