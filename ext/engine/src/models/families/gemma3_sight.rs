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
        let id = |key: &str| -> Result<Token> {
            Ok(Token::Id(raw.usize_in(key, 0..=u32::MAX as usize)? as u32))
        };
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
    gguf: Some(Gguf {
        architecture: "gemma3",
        config: |file| {
            let edge = image_edge(file)?;
            let merged = file.opt_size("projector.scale_factor")?.unwrap_or(4);
            let patch = file.size("patch_size", 1..=1024)?;
            let epsilon = file.number("attention.layer_norm_epsilon")?;
            let connector = ConnectorConfig::Means {
                side: edge / patch / merged.max(1),
                // The converter has added 1 to its weight.
                norm: NormConfig::new(NormKind::Rms, epsilon.unwrap_or(1e-6)),
            };
            let images = json!({
                "image_processor_type": "Gemma3ImageProcessor",
                "size": {"height": edge, "width": edge},
            });
            Ok(SightConfig {
                spelling: Spelling::Framed {
                    start: Token::Name("<start_of_image>"),
                    end: Token::Name("<end_of_image>"),
                },
                ..siglip_gguf(file, connector, "<image_soft_token>", images)?
            })
        },
        names: |config| config.tower.names,
    }),
};
