use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "diffllama",
    matches: types(&["diffllama"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.differential = true;
        config.head_count *= 2;
        config.kv_head_count *= 2;
        Ok(config)
    },
    names: |_| Names {
        first_lambda_query: "self_attn.lambda_q1",
        first_lambda_key: "self_attn.lambda_k1",
        second_lambda_query: "self_attn.lambda_q2",
        second_lambda_key: "self_attn.lambda_k2",
        ..LLAMA
    },
    gguf: None,
};
