use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "qwen3_vl",
    matches: types(&["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]),
    config: |raw| {
        let usual = if is_type(raw, &["qwen3_vl", "qwen3_vl_moe"]) {
            json!({"image_token_id": 151655, "video_token_id": 151656})
        } else {
            json!({"image_token_id": 248056, "video_token_id": 248057})
        };
        let raw = raw.clone().with_defaults(usual);
        let tower = raw.nested("vision_config")?;
        let tower = tower.with(json!({"model_type": qwen3_vl_vision::FAMILY.name}));
        let vision = Blueprint::<VisionConfig>::from_config(&tower)?.config;
        let layers = deep_layers(&tower, vision.encoder.layers.len())?;
        let edge = vision.blocks.map_or(1, |blocks| blocks.edge);
        let connector = ConnectorConfig {
            deep: layers.len().saturating_sub(1),
            ..ConnectorConfig::merged(edge, vision.encoder.norm)
        };
        Ok(VlmConfig {
            deep: (0..connector.deep).collect(),
            layers,
            video: video(&raw, 0, FrameKind::SharedPixels)?,
            ..vlm_config(&raw, &tower, connector)?
        })
    },
    names: tower_names,
    gguf: mmproj("qwen3vl_merger", qwen3_gguf),
};
