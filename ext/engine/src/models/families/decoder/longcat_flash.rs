use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "longcat_flash",
    matches: types(&["longcat_flash"]),
    config: |raw| {
        let layers = 2 * raw.usize_in("num_layers", LAYERS)?;
        let raw = raw.clone().with(json!({"num_hidden_layers": layers}));
        let raw = raw.with_defaults(json!({"rope_theta": 1e7}));
        let mut config = latent_shared::latent(&raw, &Usual::LLAMA, true)?;
        let hidden = config.hidden_size as f32;
        if let Some(latent) = &mut config.latent {
            let rank = latent.query_rank.map_or(hidden, |rank| rank as f32);
            config.attention_scale *= (hidden / rank).sqrt();
            latent.scale = (hidden / latent.rank as f32).sqrt();
        }
        let (count, used) = (raw.usize("n_routed_experts")?, raw.usize("moe_topk")?);
        config.experts = Some(Experts {
            scale: number(&raw, "routed_scaling_factor")?.unwrap_or(1.0),
            biased: true,
            identities: raw.opt_usize("zero_expert_num")?.unwrap_or(0),
            postponed: true,
            layers: (0..layers).map(|layer| layer % 2 == 0).collect(),
            ..Experts::softmax(count, used, layers)
        });
        Ok(config)
    },
    names: |_| NAMES,
    gguf: None,
};

const NAMES: Names = Names {
    sublayers: 2,
    attention_norm: "input_layernorm.[]",
    mlp_norm: "post_attention_layernorm.[]",
    query_down: "self_attn.[].q_a_proj",
    query_down_norm: "self_attn.[].q_a_layernorm",
    query_up: "self_attn.[].q_b_proj",
    latent_down: "self_attn.[].kv_a_proj_with_mqa",
    latent_norm: "self_attn.[].kv_a_layernorm",
    latent_up: "self_attn.[].kv_b_proj",
    attention_output: "self_attn.[].o_proj",
    gate: "mlps.[].gate_proj",
    up: "mlps.[].up_proj",
    down: "mlps.[].down_proj",
    router: "mlp.router.classifier",
    router_bias: "mlp.router.e_score_correction_bias",
    ..LLAMA
};
