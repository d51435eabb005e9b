use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "qwen3",
    matches: types(&["qwen3"]),
    config,
    names: |_| LLAMA,
    gguf: gguf("qwen3", |file| file.decoder(&Usual::LLAMA)),
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = qwen2::windowed(raw, &Usual::LLAMA)?;
    config.query_key_norm = QueryKeyNorm::PerHead;
    Ok(config)
}
