use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "olmoe",
    matches: types(&["olmoe"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.query_key_norm = QueryKeyNorm::Whole;
        config.qkv_limit = number(raw, "clip_qkv")?;
        config.experts = experts(raw, config.layer_count, false, Shared::None)?;
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("olmoe", |file| file.like(FAMILY.config, &[])),
};
