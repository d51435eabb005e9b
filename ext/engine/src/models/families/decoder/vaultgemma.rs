use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "vaultgemma",
    matches: types(&["vaultgemma"]),
    config: |raw| {
        let mut config = gemma_shared::capped(raw, 2)?;
        config.norm_placement = NormPlacement::Pre;
        Ok(config)
    },
    names: |_| Names {
        mlp_norm: "pre_feedforward_layernorm",
        ..LLAMA
    },
    gguf: None,
};
