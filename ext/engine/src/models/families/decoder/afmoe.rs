use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "afmoe",
    matches: types(&["afmoe"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.norm_placement = NormPlacement::Both;
        config.query_key_norm = QueryKeyNorm::PerHead;
        config.output_gate = OutputGate::Sigmoid;
        let every = raw.opt_usize("global_attn_every_n_layers")?.unwrap_or(4);
        sliding(raw, &mut config, every)?;
        rotate_in_windows(&mut config);
        if flag(raw, "mup_enabled", false)? {
            config.embedding_scale = (config.hidden_size as f32).sqrt();
        }
        config.experts = Some(Experts {
            normalize: true,
            scale: number(raw, "route_scale")?.unwrap_or(1.0),
            groups: None,
            ..sigmoid_experts(raw, config.layer_count)?
        });
        Ok(config)
    },
    names: |_| Names {
        post_attention_norm: "post_attention_layernorm",
        mlp_norm: "pre_mlp_layernorm",
        post_mlp_norm: "post_mlp_layernorm",
        output_gate: "self_attn.gate_proj",
        router: "mlp.router.gate",
        router_bias: "mlp.expert_bias",
        shared_gate: "mlp.shared_experts.gate_proj",
        shared_up: "mlp.shared_experts.up_proj",
        shared_down: "mlp.shared_experts.down_proj",
        ..LLAMA
    },
    gguf: gguf("afmoe", |file| {
        let said = json!({"mup_enabled": true});
        file.like_with(
            FAMILY.config,
            &[("expert_weights_scale", "route_scale")],
            said,
        )
    }),
};
