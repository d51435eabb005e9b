use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "glm",
    matches: types(&["glm"]),
    config: |raw| {
        let usual = Usual {
            rotated: 0.5,
            ..Usual::LLAMA
        };
        let mut config = decoder(raw, &usual)?;
        config.relative.interleave();
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: Some(Gguf {
        architecture: "chatglm",
        config: |file| file.like(FAMILY.config, &[]),
        names: |_| GGUF,
    }),
};
