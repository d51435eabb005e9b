use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gptj",
    matches: types(&["gptj"]),
    config: |raw| config(raw),
    names: |_| NAMES,
    gguf: None,
};

pub const NAMES: Names = Names {
    body: "transformer.",
    token_embedding: "wte",
    final_norm: "ln_f",
    layer: "h.{}.",
    attention_norm: "ln_1",
    query: "attn.q_proj",
    key: "attn.k_proj",
    value: "attn.v_proj",
    attention_output: "attn.out_proj",
    up: "mlp.fc_in",
    down: "mlp.fc_out",
    ..LLAMA
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let usual = Usual {
        tied: false,
        ..Usual::GPT2
    };
    let mut config = parallel(decoder(raw, &usual)?);
    rotate_first(raw, &mut config)?;
    config.relative.interleave();
    Ok(config)
}
