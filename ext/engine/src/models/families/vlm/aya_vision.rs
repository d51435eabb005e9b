use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "aya_vision",
    matches: types(&["aya_vision"]),
    config: |raw| {
        let raw = with_marker(raw, 255_036).with_defaults(json!({
            "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        }));
        let edge = raw.opt_usize_in("downsample_factor", 1..=64)?.unwrap_or(2);
        let epsilon = number(&raw, "adapter_layer_norm_eps")?.unwrap_or(1e-6);
        let config = llava_config(&raw, Layout::View)?;
        let connector = ConnectorConfig {
            gather: Gather::Blocks { edge },
            gathered_norm: Some(NormConfig::new(NormKind::Layer, epsilon)),
            activation: Some(Between::Gated(Activation::Silu)),
            ..config.connector
        };
        Ok(VlmConfig {
            connector,
            spelling: Spelling::Pattern(Pattern::AYA),
            ..config
        })
    },
    names: |config| Names {
        projector_norm: "multi_modal_projector.layernorm",
        ..tower_names(config)
    },
    gguf: None,
};
