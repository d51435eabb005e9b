use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "beam",
    matches: types(&["beam"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.norm_placement = NormPlacement::Both;
        config.residual_weights = ResidualWeights::Depth;
        config.query_key_norm = QueryKeyNorm::PerHead;
        config.output_gate = OutputGate::Sigmoid;
        config.logit_soft_cap = number(raw, "final_logit_softcapping")?;
        let (window, last) = (raw.opt_usize("sliding_window")?, config.layer_count - 1);
        config.windows = windows(raw, config.layer_count, window, |layer| {
            (layer + 1) % 6 != 0 && layer != last
        })?;
        config = gemma_shared::with_local_theta(config, local_theta(raw)?);
        let rope = raw.opt_nested("rope_parameters")?;
        if !matches!(rope, Some(rope) if rope.opt_nested("full_attention")?.is_some()) {
            rotate_in_windows(&mut config);
        }
        config.temperature = Some(Temperature {
            growth: Growth::Power,
            scale: 0.1,
            offset: 1.0,
            period: 2048.0,
            unrotated_only: true,
        });
        let raw = raw
            .clone()
            .with_defaults(json!({"first_k_dense_replace": 3}));
        config.experts = Some(sigmoid_experts(&raw, config.layer_count)?);
        Ok(config)
    },
    names: |_| Names {
        post_attention_norm: "post_attention_layernorm",
        mlp_norm: "pre_feedforward_layernorm",
        post_mlp_norm: "post_feedforward_layernorm",
        output_gate: "self_attn.gate_proj",
        output_gate_bias: "self_attn.gate_bias",
        ..glm4_moe::NAMES
    },
    gguf: None,
};
