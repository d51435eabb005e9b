use super::*;

pub const FAMILY: Family<SightConfig> = Family {
    name: "gemma3",
    matches: |raw| is_type(raw, &["gemma3"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "image_token_index": 262144, "boi_token_index": 255999, "eoi_token_index": 256000,
        }));
        let tower = raw.nested("vision_config")?;
        let tower = tower.with(json!({"model_type": siglip_vision::FAMILY.name}));
        let norm = Blueprint::<VisionConfig>::from_config(&tower)?
            .config
            .encoder
            .norm;
        let count = raw.opt_usize_in("mm_tokens_per_image", POSITIONS)?;
        let connector = ConnectorConfig::Means {
            side: count.unwrap_or(256).isqrt(),
            norm: NormConfig {
                offset: 1.0,
                ..NormConfig::new(NormKind::Rms, norm.epsilon)
            },
        };
        let id =
            |key: &str| -> Result<u32> { Ok(raw.usize_in(key, 0..=u32::MAX as usize)? as u32) };
        Ok(SightConfig {
            spelling: Spelling::Framed {
                start: id("boi_token_index")?,
                end: id("eoi_token_index")?,
            },
            ..sight(&raw, &tower, connector)?
        })
    },
    names: |config| Names {
        projector_norm: "multi_modal_projector.mm_soft_emb_norm",
        projector_down: "multi_modal_projector.mm_input_projection_weight",
        ..config.tower.names
    },
    gguf: None,
};
