use super::*;

/// SigLIP's, under other names.
pub const FAMILY: Family<VisionConfig> = Family {
    name: "janus_vision_model",
    matches: types(&["janus_vision_model"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "hidden_act": "gelu",
        }));
        if flag(&raw, "use_qk_norm", false)? {
            let reason = "use_qk_norm of Janus' vision tower is not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        vision(&siglip(&raw), "janus")
    },
    names: |_| Names {
        attention_output: "self_attn.projection_layer",
        projector_up: "aligner.fc1",
        projector_down: "aligner.hidden_layers.0",
        ..CLIP_VISION
    },
    gguf: None,
};
