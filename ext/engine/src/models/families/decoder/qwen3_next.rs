use super::state_shared::delta_rule;
use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "qwen3_next",
    matches: types(&["qwen3_next"]),
    config: |raw| {
        let mut config = config(raw)?;
        config.experts = experts(raw, config.layer_count, true, Shared::Gated)?;
        config.experts = config.experts.filter(|experts| experts.count > 0);
        Ok(config)
    },
    names: |_| NAMES,
    gguf: gguf_named("qwen3next", state_gguf::qwen3_next, |_| state_gguf::QWEN),
};

/// Three layers of four with the gated delta rule, and gated attention in the others.
pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let raw = raw.clone().with_defaults(json!({
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    }));
    let usual = Usual {
        rotated: 0.25,
        ..Usual::LLAMA
    };
    let mut config = decoder(&raw, &usual)?;
    config.norm.offset = 1.0;
    config.query_key_norm = QueryKeyNorm::PerHead;
    config.output_gate = OutputGate::Sigmoid;
    let every = raw
        .opt_usize("full_attention_interval")?
        .unwrap_or(4)
        .max(1);
    config.sublayers = sublayers(&raw, config.layer_count, |at| (at + 1) % every == 0)?;
    let rule = delta_rule(&raw, &config)?;
    config.state = Some(StateKind::DeltaRule(rule));
    Ok(config)
}

pub const NAMES: Names = Names {
    query: "",
    query_gate: "self_attn.q_proj",
    state_qkv: "linear_attn.in_proj_qkv",
    state_gate: "linear_attn.in_proj_z",
    state_written: "linear_attn.in_proj_b",
    state_fading: "linear_attn.in_proj_a",
    state_qkv_gate: "linear_attn.in_proj_qkvz",
    state_written_fading: "linear_attn.in_proj_ba",
    state_convolution: "linear_attn.conv1d",
    state_decay: "linear_attn.A_log",
    state_step_bias: "linear_attn.dt_bias",
    state_norm: "linear_attn.norm",
    state_output: "linear_attn.out_proj",
    ..LLAMA
};
