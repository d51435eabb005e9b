use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "lfm2",
    matches: types(&["lfm2"]),
    config,
    names: |_| NAMES,
    gguf: gguf_named("lfm2", state_gguf::lfm2, |_| state_gguf::LFM2),
};

pub const NAMES: Names = Names {
    final_norm: "embedding_norm",
    attention_norm: "operator_norm",
    mlp_norm: "ffn_norm",
    attention_output: "self_attn.out_proj",
    query_norm: "self_attn.q_layernorm",
    key_norm: "self_attn.k_layernorm",
    state_input: "conv.in_proj",
    state_convolution: "conv.conv",
    state_output: "conv.out_proj",
    gate: "feed_forward.w1",
    up: "feed_forward.w3",
    down: "feed_forward.w2",
    ..LLAMA
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let tied = flag(raw, "tie_embedding", true)?;
    let raw = &raw.clone().with_defaults(json!({
        "rope_theta": 1_000_000.0, "norm_eps": 1e-5, "tie_word_embeddings": tied,
    }));
    let mut config = decoder(raw, &Usual::TIED)?;
    config.query_key_norm = QueryKeyNorm::PerHead;
    config.state = Some(StateKind::ShortConv(ShortConv {
        channels: config.hidden_size,
        taps: raw.opt_usize("conv_L_cache")?.unwrap_or(3),
    }));
    let attending = raw.opt_integers("full_attn_idxs")?;
    let attends = |layer: usize| {
        let listed = attending.as_ref();
        listed.is_none_or(|listed| listed.contains(&(layer as i64)))
    };
    config.sublayers = sublayers(raw, config.layer_count, attends)?;
    Ok(config)
}
