use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "bamba",
    matches: types(&["bamba"]),
    config: |raw| {
        let usual = Usual {
            rotated: 0.5,
            ..Usual::LLAMA
        };
        let raw = &raw.clone().with_defaults(json!({"rms_norm_eps": 1e-5}));
        let mut config = decoder(raw, &usual)?;
        config.state = Some(StateKind::Ssm(mamba_shared::ssm(raw, &config)?));
        let attending = raw.opt_integers("attn_layer_indices")?;
        let attending = attending.unwrap_or_default();
        let attends = |layer: usize| attending.contains(&(layer as i64));
        config.sublayers = sublayers(raw, config.layer_count, attends)?;
        Ok(config)
    },
    names: |_| mamba_shared::BAMBA,
    gguf: None,
};
