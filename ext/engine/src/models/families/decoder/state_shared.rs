//! What models share whose layers keep states instead of keys and values.

use super::*;

/// The gated delta rule as Qwen and OLMo describe it.
pub fn delta_rule(raw: &RawConfig, config: &DecoderConfig) -> Result<DeltaRule> {
    Ok(DeltaRule {
        key_heads: raw.usize("linear_num_key_heads")?,
        value_heads: raw.usize("linear_num_value_heads")?,
        key_size: raw.usize("linear_key_head_dim")?,
        value_size: raw.usize("linear_value_head_dim")?,
        taps: raw.opt_usize("linear_conv_kernel_dim")?.unwrap_or(4),
        activation: config.mlp.activation,
        in_turns: false,
        fading: Fading::Heads,
        most_written: 1.0,
        sigmoid_gate: false,
        epsilon: config.norm.epsilon,
    })
}

/// Kimi's delta rule, whose states fade by elements of keys, with latent attention and experts between.
pub fn kimi(raw: &RawConfig, rule: DeltaRule, latent: DecoderConfig) -> Result<DecoderConfig> {
    let mut config = latent;
    // transformers never ties the heads of these.
    config.tied_head = false;
    config.state = Some(StateKind::DeltaRule(rule));
    config.experts = Some(sigmoid_experts(raw, config.layer_count)?);
    Ok(config)
}

/// The keys of Kimi's and Bailing's files by their usual names.
pub fn kimi_keys(raw: &RawConfig, dense: usize) -> Result<RawConfig> {
    Ok(raw.clone().with_defaults(json!({
        "max_position_embeddings": raw.opt_usize("model_max_length")?.unwrap_or(1 << 18),
        "norm_topk_prob": flag(raw, "moe_renormalize", true)?,
        "n_group": raw.opt_usize("num_expert_group")?.unwrap_or(1),
        "num_experts_per_tok": raw.opt_usize("num_experts_per_token")?.unwrap_or(8),
        "num_shared_experts": 1,
        "first_k_dense_replace": dense,
    })))
}

/// Kimi's delta rule has as many heads with keys as with values, of one size.
pub fn kimi_rule(
    heads: usize,
    size: usize,
    taps: usize,
    fading: Fading,
    config: &DecoderConfig,
) -> DeltaRule {
    DeltaRule {
        key_heads: heads,
        value_heads: heads,
        key_size: size,
        value_size: size,
        taps,
        activation: config.mlp.activation,
        in_turns: false,
        fading,
        most_written: 1.0,
        sigmoid_gate: true,
        epsilon: config.norm.epsilon,
    }
}

/// Kimi's names.
pub const KIMI: Names = Names {
    state_query: "self_attn.q_proj",
    state_key: "self_attn.k_proj",
    state_value: "self_attn.v_proj",
    state_query_convolution: "self_attn.q_conv1d",
    state_key_convolution: "self_attn.k_conv1d",
    state_value_convolution: "self_attn.v_conv1d",
    state_gate_down: "self_attn.g_a_proj",
    state_gate_up: "self_attn.g_b_proj",
    state_fading_down: "self_attn.f_a_proj",
    state_fading_up: "self_attn.f_b_proj",
    state_written: "self_attn.b_proj",
    state_decay: "self_attn.A_log",
    state_step_bias: "self_attn.dt_bias",
    state_norm: "self_attn.o_norm",
    state_output: "self_attn.o_proj",
    ..latent_shared::NAMES
};
