use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "persimmon",
    matches: types(&["persimmon"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({"rope_theta": 25_000.0}));
        let usual = Usual {
            activation: Activation::ReluSquared,
            rotated: 0.5,
            ..Usual::LAYER_NORM
        };
        let mut config = grouped(decoder(&raw, &usual)?);
        if flag(&raw, "qk_layernorm", true)? {
            config.query_key_norm = QueryKeyNorm::PerHead;
        }
        Ok(config)
    },
    names: |_| Names {
        final_norm: "final_layernorm",
        qkv: "self_attn.query_key_value",
        attention_output: "self_attn.dense",
        query_norm: "self_attn.q_layernorm",
        key_norm: "self_attn.k_layernorm",
        up: "mlp.dense_h_to_4h",
        down: "mlp.dense_4h_to_h",
        ..LLAMA
    },
    gguf: None,
};
