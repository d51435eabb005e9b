use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "mamba2",
    matches: types(&["mamba2"]),
    config: |raw| {
        let mut config = mamba_shared::backbone(raw)?;
        config.state = Some(StateKind::Ssm(mamba_shared::ssm(raw, &config)?));
        Ok(config)
    },
    names: |_| mamba_shared::BACKBONE,
    gguf: gguf_named("mamba2", state_gguf::mamba2, |_| state_gguf::NAMES),
};
