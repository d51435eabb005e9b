use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "axk2",
    matches: types(&["axk2"]),
    config: |raw| {
        let usual = json!({"first_k_dense_replace": 1});
        let mut config = deepseek_v3::config(&raw.clone().with_defaults(usual))?;
        let layers = vec![true; config.layer_count];
        config.indexer = Some(deepseek_v32::indexer(raw, RopeKind::Half, layers)?);
        config.norm_gate = raw.opt_usize_in("gated_norm_rank", WIDTH)?;
        if let Some(latent) = &mut config.latent {
            latent.gated = true;
        }
        let experts = config.experts.as_mut();
        if let Some(groups) = experts.and_then(|experts| experts.groups.as_mut()) {
            groups.left_out = 0.0;
        }
        Ok(config)
    },
    names: |_| NAMES,
    gguf: None,
};

const NAMES: Names = Names {
    attention_norm: "input_layernorm.norm",
    attention_norm_down: "input_layernorm.W_down|input_layernorm.mlp.fc1",
    attention_norm_up: "input_layernorm.W_up|input_layernorm.mlp.fc2",
    mlp_norm: "post_attention_layernorm.norm|post_attention_layernorm",
    mlp_norm_down: "post_attention_layernorm.W_down|post_attention_layernorm.mlp.fc1",
    mlp_norm_up: "post_attention_layernorm.W_up|post_attention_layernorm.mlp.fc2",
    query_up: "self_attn.q_gate_proj|self_attn.q_b_proj",
    ..deepseek_v32::NAMES
};
