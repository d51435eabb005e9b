use super::*;

/// With one tower; `janus` has the same connector.
pub const FAMILY: Family<VlmConfig> = Family {
    name: "deepseek_vl",
    matches: types(&["deepseek_vl"]),
    config: |raw| {
        let janus = is_type(raw, &["janus"]);
        let (kind, marker, spelling) = if janus {
            let pattern = Spelling::Pattern(Pattern::JANUS);
            (janus_vision::FAMILY.name, 100_581, pattern)
        } else {
            (siglip_vision::FAMILY.name, 100_015, Spelling::Marker)
        };
        let raw = with_marker(raw, marker);
        let tower = raw.nested("vision_config")?;
        let depth = tower.opt_usize("depth")?.unwrap_or(2);
        if janus && depth != 2 {
            let reason = format!("an aligner of {depth} layers is not supported");
            return Err(Error::unsupported(raw.file(), reason));
        }
        let tower = tower.with_defaults(json!({"model_type": kind}));
        let config = vlm_config(&raw, &tower, ConnectorConfig::mlp(Activation::Gelu))?;
        Ok(VlmConfig { spelling, ..config })
    },
    names: |config| Names {
        projector_up: "aligner.linear1|aligner.fc1",
        projector_down: "aligner.linear2|aligner.hidden_layers.0",
        ..tower_names(config)
    },
    gguf: None,
};
