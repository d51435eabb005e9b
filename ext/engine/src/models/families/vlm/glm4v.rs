use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "glm4v",
    matches: types(&["glm4v", "glm46v", "glm4v_moe", "glm_ocr"]),
    config: |raw| {
        let ocr = is_type(raw, &["glm_ocr"]);
        let (marker, kind) = if ocr {
            (59_280, "glm_ocr_vision")
        } else {
            (151_343, glm4v_vision::FAMILY.name)
        };
        let raw = raw.clone().with_defaults(json!({"image_token_id": marker}));
        let tower = raw
            .nested("vision_config")?
            .with(json!({"model_type": kind}));
        let vision = Blueprint::<VisionConfig>::from_config(&tower)?.config;
        let edge = vision.blocks.map_or(1, |blocks| blocks.edge);
        let connector = ConnectorConfig {
            norm: None,
            merges: true,
            inner: Some((NormConfig::new(NormKind::Layer, 1e-5), Inner::Gelu)),
            activation: Some(Between::Gated(vision.encoder.mlp.activation)),
            ..ConnectorConfig::merged(edge, vision.encoder.norm)
        };
        vlm_config(&raw, &tower, connector)
    },
    names: tower_names,
    gguf: mmproj("glm4v", glm4v_gguf),
};
