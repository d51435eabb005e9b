use super::*;
use crate::models::config;

/// A gated MLP leads to the width of the decoder, and what a few learned queries find there stands in the prompt.
pub const FAMILY: Family<VlmConfig> = Family {
    name: "idefics2",
    matches: types(&["idefics2"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "image_token_id": 32_001, "perceiver_config": {}, "vision_config": {},
        }));
        let text = raw.nested("text_config")?;
        let activation = text.opt_string("hidden_act")?.unwrap_or("silu");
        let activation = config::activation(activation, raw.file())?;
        // Files call the tower by several names.
        let kind = json!({"model_type": idefics2_vision::FAMILY.name});
        let tower = raw.nested("vision_config")?.with(kind);
        let connector = ConnectorConfig {
            activation: Some(Between::Gated(activation)),
            resampler: Some(resampler(&raw.nested("perceiver_config")?, &text)?),
            ..ConnectorConfig::PLAIN
        };
        Ok(VlmConfig {
            spelling: Spelling::Between("<fake_token_around_image>"),
            ..vlm_config(&raw, &tower, connector)?
        })
    },
    names: |config| Names {
        projector_gate: "connector.modality_projection.gate_proj",
        projector_up: "connector.modality_projection.up_proj",
        projector_down: "connector.modality_projection.down_proj",
        ..tower_names(config)
    },
    gguf: None,
};
