use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "mamba",
    matches: types(&["mamba"]),
    config,
    names: |_| mamba_shared::BACKBONE,
    gguf: gguf_named("mamba", state_gguf::mamba, |_| state_gguf::NAMES),
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let tied = json!({"tie_word_embeddings": true});
    let mut config = mamba_shared::backbone(&raw.clone().with_defaults(tied))?;
    config.state = Some(StateKind::Selective(mamba_shared::selective(raw, &config)?));
    Ok(config)
}
