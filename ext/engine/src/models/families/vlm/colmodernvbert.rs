use super::*;

/// What ColModernVBERT sees with: its texts are an encoder's.
pub fn blueprint(raw: &RawConfig) -> Result<Blueprint<VlmConfig>> {
    let raw = raw.clone().with_defaults(json!({"image_token_id": 50_407}));
    let tower = raw.nested("vision_config")?;
    let tower = tower.with(json!({"model_type": siglip_vision::FAMILY.name}));
    let edge = raw.opt_usize_in("pixel_shuffle_factor", 1..=64)?;
    let connector = ConnectorConfig {
        gather: Gather::Blocks {
            edge: edge.unwrap_or(4),
        },
        ..ConnectorConfig::PLAIN
    };
    let config = VlmConfig {
        spelling: Spelling::Tiles,
        ..vlm_config(&raw, &tower, connector)?
    };
    config
        .check()
        .map_err(|reason| Error::corrupt(raw.file(), reason))?;
    let names = Names {
        projector_down: "connector.modality_projection",
        ..tower_names(Some(&config))
    };
    Ok(Blueprint {
        config,
        names,
        modules: names,
        padding_id: None,
    })
}
