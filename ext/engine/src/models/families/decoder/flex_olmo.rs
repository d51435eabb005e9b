use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "flex_olmo",
    matches: types(&["flex_olmo"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({"rope_theta": 500_000.0}));
        let mut config = olmo2::shape(decoder(&raw, &Usual::LLAMA)?);
        config.experts = experts(&raw, config.layer_count, false, Shared::None)?;
        Ok(config)
    },
    names: |_| olmo2::NAMES,
    gguf: None,
};
