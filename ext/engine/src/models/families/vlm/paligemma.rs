use super::*;

/// What ColPali sees with. As a model that writes texts it would have to read prompts in both directions.
pub fn blueprint(raw: &RawConfig) -> Result<Blueprint<VlmConfig>> {
    let raw = with_marker(raw, 256_000);
    let tower = raw.nested("vision_config")?;
    let tower = tower.with(json!({"model_type": siglip_vision::FAMILY.name}));
    let config = vlm_config(&raw, &tower, ConnectorConfig::PLAIN)?;
    config
        .check()
        .map_err(|reason| Error::corrupt(raw.file(), reason))?;
    let names = Names {
        projector_down: "multi_modal_projector.linear",
        ..tower_names(Some(&config))
    };
    Ok(Blueprint {
        config,
        names,
        modules: names,
        padding_id: None,
    })
}
