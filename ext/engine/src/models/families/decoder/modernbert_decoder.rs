use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "modernbert-decoder",
    matches: types(&["modernbert-decoder"]),
    config: |raw| {
        let usual = Usual {
            mlp: MlpKind::Gated,
            tied: true,
            ..Usual::LAYER_NORM
        };
        let mut config = decoder(raw, &usual)?;
        config.embedding_norm = Some(config.norm);
        config.unnormed_first = true;
        config.head_transform = Some(HeadTransform {
            width: config.hidden_size,
            activation: Some(classifier_heads(raw)?.masked_activation),
            norm: true,
        });
        let half = raw.opt_usize("local_attention")?.unwrap_or(128) / 2;
        let window = raw.opt_usize("sliding_window")?.unwrap_or(half);
        let every = raw.opt_usize("global_attn_every_n_layers")?.unwrap_or(3);
        config.windows = windows(raw, config.layer_count, Some(window), |layer| {
            !layer.is_multiple_of(every.max(1))
        })?;
        Ok(gemma_shared::with_local_theta(config, local_theta(raw)?))
    },
    names: |_| Names {
        token_embedding: "embeddings.tok_embeddings",
        embedding_norm: "embeddings.norm",
        final_norm: "final_norm",
        head_dense: "lm_head.dense",
        head_norm: "lm_head.norm",
        head: "decoder",
        logit_bias: "decoder.bias",
        attention_norm: "attn_norm",
        query: "attn.q_proj",
        key: "attn.k_proj",
        value: "attn.v_proj",
        attention_output: "attn.Wo",
        mlp_norm: "mlp_norm",
        gate_up: "mlp.Wi",
        down: "mlp.Wo",
        ..LLAMA
    },
    gguf: None,
};
