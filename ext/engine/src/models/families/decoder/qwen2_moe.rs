use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "qwen2_moe",
    matches: types(&["qwen2_moe"]),
    config: |raw| {
        let mut config = qwen2::windowed(raw, &Usual::LLAMA)?;
        config.experts = experts(raw, config.layer_count, false, Shared::Gated)?;
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("qwen2moe", |file| {
        let mut config = file.decoder(&Usual::LLAMA)?;
        config.experts = file.experts(false, true)?;
        Ok(config)
    }),
};
