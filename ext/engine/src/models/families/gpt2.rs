use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gpt2",
    matches: |raw| is_type(raw, &["gpt2"]),
    config: |raw| {
        let mut config = learned(decoder(raw, &Usual::GPT2)?);
        if !flag(raw, "scale_attn_weights", true)? {
            config.attention_scale = 1.0;
        }
        Ok(config)
    },
    names: |_| GPT2,
    gguf: Some(Gguf {
        architecture: "gpt2",
        config: |file| Ok(learned(file.decoder(&Usual::GPT2)?)),
        names: |_| GGUF,
    }),
};

fn learned(config: DecoderConfig) -> DecoderConfig {
    DecoderConfig {
        positions: Positions::Learned,
        relative: Relative::None,
        ..config
    }
}
