//! What families with Mamba's layers read alike.

use super::*;

/// Such parts beside attention.
pub const HYBRID: Names = Names {
    state_input: "mamba.in_proj",
    state_convolution: "mamba.conv1d",
    state_decay: "mamba.A_log",
    state_skip: "mamba.D",
    state_step_bias: "mamba.dt_bias",
    state_norm: "mamba.norm",
    state_selection: "mamba.x_proj",
    state_steps: "mamba.dt_proj",
    state_step_norm: "mamba.dt_layernorm",
    state_into_norm: "mamba.b_layernorm",
    state_from_norm: "mamba.c_layernorm",
    state_output: "mamba.out_proj",
    ..LLAMA
};

/// Bamba's names, and those of Falcon H1 and Jamba.
pub const BAMBA: Names = Names {
    final_norm: "final_layernorm",
    mlp_norm: "pre_ff_layernorm",
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    down: "feed_forward.down_proj",
    ..HYBRID
};

/// Granite's, whose MLP, without experts, is the one that all tokens pass.
pub const GRANITE: Names = Names {
    router: granitemoe::NAMES.router,
    expert_gate_up: granitemoe::NAMES.expert_gate_up,
    expert_down: granitemoe::NAMES.expert_down,
    shared_gate_up: granitemoe::NAMES.shared_gate_up,
    shared_down: granitemoe::NAMES.shared_down,
    shared_gate: "",
    shared_up: "",
    gate_up: granitemoe::NAMES.shared_gate_up,
    down: granitemoe::NAMES.shared_down,
    ..HYBRID
};

/// Zamba 2's, whose layers with a block have their mixer apart.
pub const ZAMBA: Names = Names {
    layer: "layers.{}.mamba_decoder.|layers.{}.",
    final_norm: "final_layernorm",
    block_norm: "shared_transformer.input_layernorm",
    query: "shared_transformer.self_attn.q_proj",
    key: "shared_transformer.self_attn.k_proj",
    value: "shared_transformer.self_attn.v_proj",
    attention_output: "shared_transformer.self_attn.o_proj",
    query_update_down: "shared_transformer.self_attn.linear_q_adapter_list.{}.0",
    query_update_up: "shared_transformer.self_attn.linear_q_adapter_list.{}.1",
    key_update_down: "shared_transformer.self_attn.linear_k_adapter_list.{}.0",
    key_update_up: "shared_transformer.self_attn.linear_k_adapter_list.{}.1",
    value_update_down: "shared_transformer.self_attn.linear_v_adapter_list.{}.0",
    value_update_up: "shared_transformer.self_attn.linear_v_adapter_list.{}.1",
    mlp_norm: "shared_transformer.pre_ff_layernorm",
    gate_up: "shared_transformer.feed_forward.gate_up_proj",
    gate_up_update_down: "shared_transformer.feed_forward.gate_up_proj_adapter_list.{}.0",
    gate_up_update_up: "shared_transformer.feed_forward.gate_up_proj_adapter_list.{}.1",
    down: "shared_transformer.feed_forward.down_proj",
    block_output: "linear",
    ..HYBRID
};

/// Models whose layers are one mixer each.
pub const BACKBONE: Names = Names {
    body: "backbone.",
    token_embedding: "embeddings|embedding",
    final_norm: "norm_f",
    attention_norm: "norm",
    state_input: "mixer.in_proj",
    state_convolution: "mixer.conv1d",
    state_decay: "mixer.A_log",
    state_skip: "mixer.D",
    state_step_bias: "mixer.dt_bias",
    state_norm: "mixer.norm",
    state_selection: "mixer.x_proj",
    state_steps: "mixer.dt_proj",
    state_output: "mixer.out_proj",
    ..LLAMA
};

/// The same where some are attention, an MLP or experts.
pub const NEMOTRON: Names = Names {
    mlp_norm: "norm",
    query: "mixer.q_proj",
    key: "mixer.k_proj",
    value: "mixer.v_proj",
    attention_output: "mixer.o_proj",
    up: "mixer.up_proj",
    down: "mixer.down_proj",
    router: "mixer.gate",
    router_bias: "mixer.gate.e_score_correction_bias",
    expert_latent_down: "mixer.fc1_latent_proj",
    expert_latent_up: "mixer.fc2_latent_proj",
    expert_gate: "mixer.experts.{}.gate_proj",
    expert_up: "mixer.experts.{}.up_proj",
    expert_down: "mixer.experts.{}.down_proj",
    shared_up: "mixer.shared_experts.up_proj",
    shared_down: "mixer.shared_experts.down_proj",
    ..BACKBONE
};

/// A layer that is a mixer alone.
pub const MIXER: Sublayers = Sublayers {
    mlp: false,
    ..Sublayers::STATE
};

/// A size that some files call `auto`.
fn size(raw: &RawConfig, keys: &[&str], auto: usize) -> Result<usize> {
    match raw.opt_string(keys) {
        Ok(Some("auto")) => Ok(auto),
        _ => Ok(raw.opt_usize_in(keys, WIDTH)?.unwrap_or(auto)),
    }
}

/// The width inside of a layer that does not say it.
pub fn expanded(raw: &RawConfig, config: &DecoderConfig) -> Result<usize> {
    let factor = raw.opt_f64(["mamba_expand", "expand"])?.unwrap_or(2.0);
    Ok((factor * config.hidden_size as f64) as usize)
}

/// Mamba-2's layers, with a norm of the whole after the gate.
pub fn ssm(raw: &RawConfig, config: &DecoderConfig) -> Result<Ssm> {
    let inner = match raw.opt_usize_in("mamba_d_ssm", WIDTH)? {
        Some(inner) => inner,
        None => expanded(raw, config)?,
    };
    let heads = [
        "mamba_n_heads",
        "mamba_num_heads",
        "n_mamba_heads",
        "num_heads",
    ];
    let heads = raw.usize_in(heads, HEADS)?;
    let head_size = [
        "mamba_d_head",
        "mamba_head_dim",
        "mamba_headdim",
        "head_dim",
    ];
    let limits = raw.opt_limits("time_step_limit")?;
    let (least, most) = limits.unwrap_or((0.0, f64::INFINITY));
    Ok(Ssm {
        heads,
        head_size: size(raw, &head_size, inner / heads)?,
        groups: raw.usize(["mamba_n_groups", "mamba_ngroups", "n_groups"])?,
        state_size: raw.usize_in(["mamba_d_state", "ssm_state_size", "state_size"], WIDTH)?,
        taps: raw.opt_usize(["mamba_d_conv", "conv_kernel"])?.unwrap_or(4),
        activation: match raw.opt_string("mamba_hidden_act")? {
            Some(name) => crate::models::config::activation(name, raw.file())?,
            None => config.mlp.activation,
        },
        norm: SsmNorm::Parts {
            count: 1,
            before_gate: false,
        },
        epsilon: config.norm.epsilon,
        steps: (least as f32, most as f32),
        factors: SsmFactors::NONE,
    })
}

/// Mamba's layers.
pub fn selective(raw: &RawConfig, config: &DecoderConfig) -> Result<Selective> {
    let rank = config.hidden_size.div_ceil(16);
    let state_size = raw.opt_usize_in(["mamba_d_state", "state_size"], WIDTH)?;
    Ok(Selective {
        channels: match raw.opt_usize_in("mamba_d_ssm", WIDTH)? {
            Some(channels) => channels,
            None => expanded(raw, config)?,
        },
        state_size: state_size.unwrap_or(16),
        rank: size(raw, &["mamba_dt_rank", "time_step_rank"], rank)?,
        taps: raw.opt_usize(["mamba_d_conv", "conv_kernel"])?.unwrap_or(4),
        activation: config.mlp.activation,
        norm: None,
    })
}

/// A model of such layers alone, which has no positions and so no end of them.
pub fn backbone(raw: &RawConfig) -> Result<DecoderConfig> {
    let raw = raw.clone().with_defaults(json!({
        "num_attention_heads": 1, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 1 << 20,
    }));
    let mut config = decoder(&raw, &Usual::LLAMA)?;
    config.relative = Relative::None;
    config.sublayers = vec![MIXER; config.layer_count];
    Ok(config)
}
