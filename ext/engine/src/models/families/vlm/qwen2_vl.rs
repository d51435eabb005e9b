use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "qwen2_vl",
    matches: types(&["qwen2_vl", "qwen2_5_vl"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({"image_token_id": 151655}));
        let kind = if is_type(&raw, &["qwen2_vl"]) {
            qwen2_vl_vision::FAMILY.name
        } else {
            "qwen2_5_vl_vision"
        };
        let tower = raw.nested("vision_config")?;
        let tower = tower.with(json!({"model_type": kind}));
        let vision = Blueprint::<VisionConfig>::from_config(&tower)?.config;
        let edge = vision.blocks.map_or(1, |blocks| blocks.edge);
        let connector = ConnectorConfig::merged(edge, vision.encoder.norm);
        let video = video(&raw, 151_656, FrameKind::Pixels)?;
        let per_second = match kind {
            "qwen2_5_vl_vision" => Some(number(&tower, "tokens_per_second")?.unwrap_or(4.0)),
            _ => None,
        };
        Ok(VlmConfig {
            video: video.map(|video| VideoConfig {
                per_second,
                ..video
            }),
            ..vlm_config(&raw, &tower, connector)?
        })
    },
    names: tower_names,
    gguf: mmproj("qwen2vl_merger|qwen2.5vl_merger", qwen_gguf),
};
