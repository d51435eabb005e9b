use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "lfm2_vl",
    matches: types(&["lfm2_vl"]),
    config: |raw| {
        let raw = raw
            .clone()
            .with_defaults(json!({"image_token_id": 396, "projector_hidden_act": "gelu"}));
        let activation = config::activation(raw.string("projector_hidden_act")?, raw.file())?;
        let edge = raw.opt_usize_in("downsample_factor", 1..=64)?.unwrap_or(2);
        let norm = NormConfig::new(NormKind::Layer, 1e-5);
        let connector = ConnectorConfig {
            gather: Gather::Blocks { edge },
            gathered_norm: flag(&raw, "projector_use_layernorm", true)?.then_some(norm),
            ..ConnectorConfig::mlp(activation)
        };
        let tower = raw.nested("vision_config")?;
        let tower = tower.with_defaults(json!({"model_type": "siglip2_vision_model"}));
        Ok(VlmConfig {
            spelling: Spelling::Places,
            ..vlm_config(&raw, &tower, connector)?
        })
    },
    names: |config| Names {
        projector_norm: "multi_modal_projector.layer_norm",
        ..tower_names(config)
    },
    gguf: mmproj("lfm2", lfm2_gguf),
};
