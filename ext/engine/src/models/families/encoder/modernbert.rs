use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "modernbert",
    matches: types(&["modernbert"]).or_classes(&["ModernBert"]),
    config,
    names: |_| NAMES,
    gguf: None,
};

pub fn config(raw: &RawConfig) -> Result<EncoderConfig> {
    let mut config = rotary(encoder(raw, "modernbert")?, |config| {
        let mut rope = rope(raw, config.head_size, 1.0, 160_000.0)?;
        rope.local_theta = Some(local_theta(raw)?.unwrap_or(10_000.0));
        Ok(rope)
    })?;
    let every = raw.opt_usize_in("global_attn_every_n_layers", LAYERS)?;
    let reach = raw.opt_usize("local_attention")?.unwrap_or(128) / 2;
    local_layers(raw, &mut config, reach, every.unwrap_or(3))?;
    config.norm.epsilon = number(raw, "norm_eps")?.unwrap_or(1e-5);
    config.norm_placement = NormPlacement::Pre;
    config.mlp.kind = MlpKind::Gated;
    config.heads_on_top = classifier_heads(raw)?;
    Ok(config)
}

pub const NAMES: Names = Names {
    token_embedding: "embeddings.tok_embeddings",
    embedding_norm: "embeddings.norm",
    layer: "layers.{}.",
    qkv: "attn.Wqkv",
    attention_output: "attn.Wo",
    attention_norm: "attn_norm",
    gate_up: "mlp.Wi",
    down: "mlp.Wo",
    mlp_norm: "mlp_norm",
    final_norm: "final_norm",
    ..PREDICTION_HEAD
};
