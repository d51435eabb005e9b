use super::*;

pub const FAMILY: Family<VisionConfig> = Family {
    name: "clip_vision_model",
    matches: types(&[
        "clip_vision_model",
        "metaclip_2_vision_model",
        "owlvit_vision_model",
        "owlv2_vision_model",
    ]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        }));
        Ok(VisionConfig {
            classifier: ClassifierInput::MeanBeforeNorm,
            ..vision(&raw, "clip")?
        })
    },
    names: |_| CLIP_VISION,
    gguf: None,
};
