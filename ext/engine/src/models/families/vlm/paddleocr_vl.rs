use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "paddleocr_vl",
    matches: types(&["paddleocr_vl"]),
    config: |raw| {
        let raw = raw
            .clone()
            .with_defaults(json!({"image_token_id": 100_295}));
        let tower = raw.nested("vision_config")?;
        let edge = tower.opt_usize_in("spatial_merge_size", 1..=64)?;
        let tower = tower.with(json!({"model_type": paddleocr_vl_vision::FAMILY.name}));
        let connector = ConnectorConfig {
            norm: Some(NormConfig::new(NormKind::Layer, 1e-5)),
            gather: Gather::Blocks {
                edge: edge.unwrap_or(2),
            },
            layout: Layout::Grid,
            ..ConnectorConfig::mlp(Activation::Gelu)
        };
        vlm_config(&raw, &tower, connector)
    },
    names: tower_names,
    gguf: mmproj("paddleocr", paddleocr_gguf),
};
