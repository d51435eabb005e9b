use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "idefics3",
    matches: types(&["idefics3", "smolvlm"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({"image_token_id": 128257}));
        // Files call the tower by several names.
        let kind = json!({"model_type": idefics3_vision::FAMILY.name});
        let edge = raw.opt_usize_in("scale_factor", 1..=64)?.unwrap_or(2);
        let connector = ConnectorConfig {
            gather: Gather::Blocks { edge },
            ..ConnectorConfig::PLAIN
        };
        let video = is_type(&raw, &["smolvlm"]).then_some(VideoConfig {
            place: Token::Name("<video>"),
            frames: FrameKind::Squares,
            per_second: None,
        });
        Ok(VlmConfig {
            spelling: Spelling::Tiles,
            video,
            ..vlm_config(&raw, &raw.nested("vision_config")?.with(kind), connector)?
        })
    },
    names: |config| Names {
        projector_down: "connector.modality_projection.proj",
        ..tower_names(config)
    },
    gguf: mmproj("idefics3", tiled_gguf),
};
