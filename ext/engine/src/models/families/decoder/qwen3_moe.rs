use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "qwen3_moe",
    matches: types(&["qwen3_moe"]),
    config: |raw| {
        let mut config = qwen3::config(raw)?;
        config.experts = experts(raw, config.layer_count, false, Shared::None)?;
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("qwen3moe", |file| {
        let mut config = file.decoder(&Usual::LLAMA)?;
        config.experts = file.experts(true, false)?;
        Ok(config)
    }),
};
