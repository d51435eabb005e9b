use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gpt_neo",
    matches: types(&["gpt_neo"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "num_attention_heads": raw.usize("num_heads")?,
            "num_hidden_layers": raw.usize("num_layers")?,
        }));
        let mut config = learned_from(decoder(&raw, &Usual::GPT2)?, 0);
        config.attention_scale = 1.0;
        let window = raw.opt_usize("window_size")?.unwrap_or(256);
        let kinds = raw.opt_strings("attention_layers")?.unwrap_or_default();
        for (kind, layer) in kinds.iter().zip(&mut config.windows) {
            *layer = (kind == "local").then_some(window);
        }
        Ok(config)
    },
    names: |_| Names {
        qkv: "",
        query: "attn.attention.q_proj",
        key: "attn.attention.k_proj",
        value: "attn.attention.v_proj",
        attention_output: "attn.attention.out_proj",
        transposed: false,
        ..GPT2
    },
    gguf: None,
};
