use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "ernie4_5",
    matches: types(&["ernie4_5"]),
    config: |raw| config(raw),
    names: |_| LLAMA,
    gguf: gguf("ernie4_5", |file| file.like(FAMILY.config, &[])),
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let raw = raw.clone().with_defaults(json!({"rope_theta": 500_000.0}));
    let mut config = decoder(&raw, &Usual::TIED)?;
    config.relative.interleave();
    Ok(config)
}
