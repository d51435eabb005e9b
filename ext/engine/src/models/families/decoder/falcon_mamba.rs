use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "falcon_mamba",
    matches: types(&["falcon_mamba"]),
    config: |raw| {
        let mut config = mamba::config(raw)?;
        let epsilon = number(raw, "mixer_rms_eps")?.unwrap_or(1e-6);
        config.state = Some(StateKind::Selective(Selective {
            norm: Some(NormConfig::new(NormKind::Rms, epsilon).plain()),
            ..mamba_shared::selective(raw, &config)?
        }));
        Ok(config)
    },
    names: |_| mamba_shared::BACKBONE,
    gguf: None,
};
