use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "glm",
    matches: types(&["glm"]),
    config: |raw| {
        let mut config = decoder(raw, &glm4::USUAL)?;
        config.relative.interleave();
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("chatglm", |file| file.like(FAMILY.config, &[])),
};
