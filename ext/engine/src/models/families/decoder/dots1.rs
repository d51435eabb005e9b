use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "dots1",
    matches: types(&["dots1"]),
    config: |raw| {
        let mut config = mistral::windowed(raw, &Usual::LLAMA)?;
        config.query_key_norm = QueryKeyNorm::PerHead;
        config.experts = Some(sigmoid_experts(raw, config.layer_count)?);
        Ok(config)
    },
    names: |_| glm4_moe::NAMES,
    gguf: gguf("dots1", |file| file.like(FAMILY.config, &[])),
};
