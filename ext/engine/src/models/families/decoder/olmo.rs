use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "olmo",
    matches: types(&["olmo"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.norm = NormConfig::new(NormKind::Layer, 1e-5).plain();
        config.qkv_limit = number(raw, "clip_qkv")?;
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("olmo", |file| file.like(FAMILY.config, &[]).map(neighbours)),
};
