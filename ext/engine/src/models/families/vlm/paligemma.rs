use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "paligemma",
    matches: types(&["paligemma"]),
    config: |raw| {
        let raw = with_marker(raw, 256_000);
        let tower = raw.nested("vision_config")?;
        let tower = tower.with(json!({"model_type": siglip_vision::FAMILY.name}));
        Ok(VlmConfig {
            spelling: Spelling::Prefix,
            ..vlm_config(&raw, &tower, ConnectorConfig::PLAIN)?
        })
    },
    names: |config| Names {
        projector_down: "multi_modal_projector.linear",
        ..tower_names(config)
    },
    gguf: None,
};
