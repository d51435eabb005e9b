use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "helium",
    matches: types(&["helium"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({"rope_theta": 100_000.0}));
        let mut config = decoder(&raw, &Usual::LLAMA)?;
        config.relative.interleave();
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: None,
};
