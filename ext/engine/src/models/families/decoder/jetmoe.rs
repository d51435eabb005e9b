use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "jetmoe",
    matches: types(&["jetmoe"]),
    config: |raw| {
        let used = raw.usize("num_experts_per_tok")?;
        let heads = raw.usize_in("num_key_value_heads", 1..=1024)?;
        let given = raw.clone().with(json!({
            "head_dim": raw.usize_in("kv_channels", WIDTH)?,
            "num_attention_heads": heads.saturating_mul(used),
        }));
        let mut config = decoder(&given, &Usual::TIED)?;
        config.final_epsilon = Some(config.norm.epsilon);
        config.norm.epsilon = 1e-6;
        config.query_experts = true;
        let given = experts(raw, config.layer_count, true, Shared::None)?;
        config.experts = given.map(|experts| Experts {
            layout: ExpertLayout::fused(false, false),
            ..experts
        });
        Ok(config)
    },
    names: |_| Names {
        qkv: "self_attention.kv_proj",
        query_router: "self_attention.experts.router.layer",
        query_experts_in: "self_attention.experts.input_linear",
        query_experts_out: "self_attention.experts.output_linear",
        attention_output_bias: "self_attention.experts.bias",
        router: "mlp.router.layer",
        expert_gate_up: "mlp.input_linear",
        expert_down: "mlp.output_linear",
        expert_total_bias: "mlp.bias",
        ..LLAMA
    },
    gguf: None,
};
