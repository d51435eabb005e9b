use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "hy_v3",
    matches: types(&["hy_v3"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.query_key_norm = QueryKeyNorm::PerHead;
        let raw = raw
            .clone()
            .with_defaults(json!({"first_k_dense_replace": 1}));
        config.experts = Some(Experts {
            normalize: true,
            scale: number(&raw, "router_scaling_factor")?.unwrap_or(1.0),
            groups: None,
            ..sigmoid_experts(&raw, config.layer_count)?
        });
        Ok(config)
    },
    names: |_| Names {
        router: "mlp.router.gate",
        router_bias: "mlp.expert_bias",
        shared_gate: "mlp.shared_mlp.gate_proj",
        shared_up: "mlp.shared_mlp.up_proj",
        shared_down: "mlp.shared_mlp.down_proj",
        ..LLAMA
    },
    gguf: gguf("hy_v3", |file| {
        file.like(
            FAMILY.config,
            &[("expert_weights_scale", "router_scaling_factor")],
        )
    }),
};
