use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "ernie4_5",
    matches: types(&["ernie4_5"]),
    config: |raw| config(raw),
    names: |_| LLAMA,
    gguf: Some(Gguf {
        architecture: "ernie4_5",
        config: |file| file.like(FAMILY.config, &[]),
        names: |_| GGUF,
    }),
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let raw = raw.clone().with_defaults(json!({"rope_theta": 500_000.0}));
    let mut config = decoder(&raw, &Usual::TIED)?;
    config.relative.interleave();
    Ok(config)
}
