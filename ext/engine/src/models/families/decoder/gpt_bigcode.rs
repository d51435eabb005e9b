use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gpt_bigcode",
    matches: types(&["gpt_bigcode"]),
    config: |raw| {
        let mut config = learned_from(decoder(raw, &Usual::GPT2)?, 0);
        if !flag(raw, "scale_attn_weights", true)? {
            config.attention_scale = 1.0;
        }
        if flag(raw, "multi_query", true)? {
            config.kv_head_count = 1
        } else {
            config = grouped(config)
        }
        Ok(config)
    },
    names: |_| Names {
        transposed: false,
        ..GPT2
    },
    gguf: gguf("starcoder", |file| file.like(FAMILY.config, &[])),
};
