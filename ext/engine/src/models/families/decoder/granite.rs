use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "granite",
    matches: types(&["granite", "granite4_vision", "granite4_vision_text"]),
    config: |raw| {
        let raw = &text_of(raw)?;
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.attention_scale = 1.0;
        multiplied(raw, &mut config)?;
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("granite", |file| {
        let mut config = neighbours(file.decoder(&Usual::LLAMA)?);
        let factor = |key, usual| file.number(key).map(|value| value.unwrap_or(usual));
        config.embedding_scale = factor("embedding_scale", 1.0)?;
        config.residual_scale = factor("residual_scale", 1.0)?;
        config.attention_scale = factor("attention.scale", config.attention_scale)?;
        config.logit_scale = 1.0 / factor("logit_scale", 1.0)?;
        Ok(config)
    }),
};
