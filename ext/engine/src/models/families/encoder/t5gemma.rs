use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "t5gemma",
    matches: types(&["t5gemma"]).or_classes(&["T5Gemma"]),
    config: |raw| {
        let encoder = raw.opt_nested("encoder")?;
        let encoder = encoder.as_ref().unwrap_or(raw);
        let mut config = bidirectional_llama(encoder, "t5gemma", 1e-6)?;
        let layers = config.layers.len();
        // The reference keeps to windows of this many tokens to each side.
        let window = encoder.opt_usize("sliding_window")?;
        in_windows_of(
            &mut config,
            &windows(encoder, layers, window, |layer| layer % 2 == 0)?,
        );
        config.norm.offset = 1.0;
        config.norm_placement = NormPlacement::Both;
        config.embedding_scale = (config.hidden_size as f32).sqrt();
        let scale = number(encoder, "query_pre_attn_scalar")?.unwrap_or(256.0);
        config.attention_scale = Some(1.0 / scale.sqrt());
        config.mechanisms.soft_cap = number(encoder, "attn_logit_softcapping")?;
        let padding = raw.padding_id()?;
        config.heads_on_top.pooling = SequencePooling::Last { padding };
        Ok(config)
    },
    names: |_| Names {
        attention_norm: "pre_self_attn_layernorm",
        post_attention_norm: "post_self_attn_layernorm",
        mlp_norm: "pre_feedforward_layernorm",
        post_mlp_norm: "post_feedforward_layernorm",
        sequence_dense: "",
        sequence_output: "score.out_proj",
        token_output: "score.out_proj",
        ..ENCODER_LLAMA
    },
    gguf: None,
};
