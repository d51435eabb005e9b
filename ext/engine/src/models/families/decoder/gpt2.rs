use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gpt2",
    matches: types(&["gpt2"]),
    config: |raw| {
        let mut config = learned_from(decoder(raw, &Usual::GPT2)?, 0);
        if !flag(raw, "scale_attn_weights", true)? {
            config.attention_scale = 1.0;
        }
        Ok(config)
    },
    names: |_| GPT2,
    gguf: gguf("gpt2", |file| {
        Ok(learned_from(file.decoder(&Usual::GPT2)?, 0))
    }),
};
