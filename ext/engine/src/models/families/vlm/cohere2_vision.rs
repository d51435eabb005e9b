use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "cohere2_vision",
    matches: types(&["cohere2_vision"]),
    config: |raw| {
        let raw = with_marker(raw, 255_036);
        let tower = raw.nested("vision_config")?;
        let tower = tower.with_defaults(json!({"model_type": siglip_vision::FAMILY.name}));
        let edge = raw.opt_usize_in("downsample_factor", 1..=64)?.unwrap_or(2);
        let connector = ConnectorConfig {
            gather: Gather::Blocks { edge },
            activation: Some(Between::Gated(Activation::Silu)),
            ..ConnectorConfig::PLAIN
        };
        Ok(VlmConfig {
            spelling: Spelling::Pattern(Pattern::COMMAND),
            ..vlm_config(&raw, &tower, connector)?
        })
    },
    names: tower_names,
    gguf: None,
};
