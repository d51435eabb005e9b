use super::*;

/// The fourth generation.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "rwkv",
    matches: types(&["rwkv"]),
    config: |raw| {
        // It has no positions, and so no end of them.
        let raw = &raw.clone().with_defaults(json!({
            "num_attention_heads": 1, "max_position_embeddings": 1 << 20,
        }));
        let mut config = decoder(raw, &Usual::LAYER_NORM)?;
        let hidden = config.hidden_size;
        config.relative = Relative::None;
        config.embedding_norm = Some(config.norm);
        config.final_epsilon = Some(1e-5);
        let every = raw.opt_f64("rescale_every")?.unwrap_or(6.0);
        if every >= 1.0 {
            config.residual_weights = ResidualWeights::Halved {
                every: every as usize,
                stored: false,
            };
        }
        config.sublayers = vec![Sublayers::STATE; config.layer_count];
        config.state = Some(StateKind::Rwkv(Rwkv {
            hidden,
            width: raw.opt_usize("attention_hidden_size")?.unwrap_or(hidden),
            inner: raw.opt_usize("intermediate_size")?.unwrap_or(4 * hidden),
        }));
        Ok(config)
    },
    names: |_| Names {
        body: "rwkv.",
        token_embedding: "embeddings",
        embedding_norm: "blocks.0.pre_ln",
        final_norm: "ln_out",
        head: "head",
        layer: "blocks.{}.",
        attention_norm: "ln1",
        mlp_norm: "ln2",
        state_key: "attention.key",
        state_value: "attention.value",
        state_gate: "attention.receptance",
        state_output: "attention.output",
        state_decay: "attention.time_decay",
        state_step_bias: "attention.time_first",
        state_key_mix: "attention.time_mix_key",
        state_value_mix: "attention.time_mix_value",
        state_gate_mix: "attention.time_mix_receptance",
        up: "feed_forward.key",
        gate: "feed_forward.receptance",
        down: "feed_forward.value",
        up_mix: "feed_forward.time_mix_key",
        gate_mix: "feed_forward.time_mix_receptance",
        ..LLAMA
    },
    gguf: None,
};
