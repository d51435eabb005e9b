//! GGUF files of models whose layers keep states.
//!
//! Which layers do shows by their tensors. The converter stores how fast states decay ready for use, and squeezes the
//! weights of convolutions.

use super::*;

/// The sizes of Mamba's layers; its time steps are as many as heads, or pass so short a row.
const MAMBA: &[(&str, &str)] = &[
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.group_count", "mamba_n_groups"),
    ("ssm.inner_size", "mamba_d_ssm"),
    ("ssm.time_step_rank", "mamba_n_heads"),
    ("ssm.time_step_rank", "mamba_dt_rank"),
];

/// Those of the gated delta rule.
const DELTA: &[(&str, &str)] = &[
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
];

pub const NAMES: Names = Names {
    state_input: "ssm_in|shortconv.in_proj",
    state_convolution: "ssm_conv1d|shortconv.conv",
    state_rates: "ssm_a",
    state_skip: "ssm_d",
    state_step_bias: "ssm_dt.bias",
    state_norm: "ssm_norm",
    state_selection: "ssm_x",
    state_steps: "ssm_dt",
    state_step_norm: "ssm_dt_norm",
    state_into_norm: "ssm_b_norm",
    state_from_norm: "ssm_c_norm",
    state_output: "ssm_out|shortconv.out_proj",
    ..GGUF
};

/// LFM2 calls its last norm as others do that of embeddings.
pub const LFM2: Names = Names {
    final_norm: "token_embd_norm|output_norm",
    ..NAMES
};

/// Every layer has one norm.
pub const NEMOTRON: Names = Names {
    mlp_norm: "attn_norm",
    expert_latent_down: "ffn_latent_down",
    expert_latent_up: "ffn_latent_up",
    ..NAMES
};

/// Qwen's gated delta rule.
pub const QWEN: Names = Names {
    mlp_norm: "post_attention_norm",
    post_attention_norm: "",
    query_gate: "attn_q",
    state_input: "",
    state_qkv: "attn_qkv",
    state_qkv_gate: "ssm_in",
    state_gate: "attn_gate",
    state_written: "ssm_beta",
    state_fading: "ssm_alpha",
    state_written_fading: "ssm_ba",
    ..NAMES
};

pub const KIMI: Names = Names {
    state_query: "attn_q",
    state_key: "attn_k",
    state_value: "attn_v",
    state_query_convolution: "ssm_conv1d_q",
    state_key_convolution: "ssm_conv1d_k",
    state_value_convolution: "ssm_conv1d_v",
    state_convolution: "",
    state_fading_down: "ssm_f_a",
    state_fading_up: "ssm_f_b",
    state_gate_down: "ssm_g_a",
    state_gate_up: "ssm_g_b",
    state_written: "ssm_beta",
    state_output: "attn_output",
    ..NAMES
};

pub const MINIMAX: Names = Names {
    state_qkv: "attn_qkv",
    state_gate: "attn_gate",
    state_norm: "attn_norm_2",
    state_output: "attn_output",
    ..NAMES
};

/// RWKV 6 and 7.
pub const RWKV: Names = Names {
    mlp_norm: "attn_norm_2",
    state_query: "time_mix_receptance",
    state_key: "time_mix_key",
    state_value: "time_mix_value",
    state_gate: "time_mix_gate",
    state_output: "time_mix_output",
    state_norm: "time_mix_ln",
    state_decay: "time_mix_decay|time_mix_w0",
    state_fading_down: "time_mix_decay_w1|time_mix_w1",
    state_fading_up: "time_mix_decay_w2|time_mix_w2",
    state_step_bias: "time_mix_first",
    state_mixes: "time_mix_lerp_fused",
    state_first_mix: "time_mix_lerp_x",
    state_fading_mix: "time_mix_lerp_w",
    state_key_mix: "time_mix_lerp_k",
    state_value_mix: "time_mix_lerp_v",
    state_query_mix: "time_mix_lerp_r",
    state_gate_mix: "time_mix_lerp_g",
    state_mix_down: "time_mix_w1",
    state_mix_up: "time_mix_w2",
    state_rate_bias: "time_mix_a0",
    state_rate_down: "time_mix_a1",
    state_rate_up: "time_mix_a2",
    state_first_bias: "time_mix_v0",
    state_first_down: "time_mix_v1",
    state_first_up: "time_mix_v2",
    state_gate_down: "time_mix_g1",
    state_gate_up: "time_mix_g2",
    state_key_scale: "time_mix_k_k",
    state_rate_scale: "time_mix_k_a",
    state_skip: "time_mix_r_k",
    up_mix: "channel_mix_lerp_k",
    gate_mix: "channel_mix_lerp_r",
    up: "channel_mix_key",
    gate: "channel_mix_receptance",
    down: "channel_mix_value",
    ..NAMES
};

/// The heads of states are as large as the width allows, whatever those of attention are.
fn mamba_heads() -> serde_json::Value {
    json!({"mamba_d_head": "auto"})
}

pub fn granite(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let words = [
        MAMBA,
        &[
            ("logit_scale", "logits_scaling"),
            ("expert_count", "num_local_experts"),
        ],
    ];
    let positions = if file.flag("rope.scaling.finetuned", false)? {
        "rope"
    } else {
        "nope"
    };
    let said = json!({"mamba_d_head": "auto", "position_embedding_type": positions});
    file.like_with(granitemoehybrid::FAMILY.config, &words.concat(), said)
        .map(neighbours)
}

/// Falcon's are files of Mamba that say so.
pub fn mamba(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let config = if file.flag("ssm.dt_b_c_rms", false)? {
        falcon_mamba::FAMILY.config
    } else {
        mamba::FAMILY.config
    };
    file.like(config, MAMBA)
}

pub fn mamba2(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    file.like_with(mamba2::FAMILY.config, MAMBA, mamba_heads())
}

pub fn jamba(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    file.like(jamba::FAMILY.config, MAMBA)
}

/// All factors are part of the weights, which adapters know without them.
pub fn falcon_h1(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let said = json!({
        "mamba_d_head": "auto", "mamba_norm_before_gate": false,
        "mamba_rms_norm": file.first_layer_has("ssm_norm"),
    });
    let mut config = file.like_with(falcon_h1::FAMILY.config, MAMBA, said)?;
    config.row_order = RowOrder::Changed;
    Ok(config)
}

pub fn nemotron(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let kinds = (0..file.layer_count()?).map(|layer| {
        let has = |name: &str| file.has(&format!("blk.{layer}.{name}"));
        match () {
            _ if has("ssm_in") => "mamba",
            _ if has("attn_q") => "attention",
            _ if has("ffn_gate_inp") => "moe",
            _ => "mlp",
        }
    });
    let kinds: Vec<&str> = kinds.collect();
    let said = json!({"mamba_d_head": "auto", "layers_block_type": kinds});
    let words = [MAMBA, &[("moe_latent_size", "moe_latent_size")]];
    let mut config = file.like_with(nemotron_h::FAMILY.config, &words.concat(), said)?;
    config.mlp.kind = MlpKind::Plain;
    // It rotates nothing, and rows are put side by side all the same.
    Ok(neighbours(config))
}

/// The width of values is said for all heads together.
fn delta(
    file: &GgufFile<'_>,
    config: fn(&RawConfig) -> Result<DecoderConfig>,
) -> Result<DecoderConfig> {
    let width = file.opt_size("ssm.inner_size")?.unwrap_or(0);
    let heads = file.opt_size("ssm.time_step_rank")?.unwrap_or(1).max(1);
    let said = json!({"linear_value_head_dim": width / heads, "norm_topk_prob": true});
    file.like_with(config, DELTA, said)
}

pub fn qwen3_next(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    delta(file, qwen3_next::FAMILY.config)
}

/// Heads with values take turns with those of keys.
pub fn qwen3_5(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let mut config = delta(file, qwen3_5::FAMILY.config)?;
    take_turns_gguf(file, &mut config)?;
    if let Some(StateKind::DeltaRule(rule)) = &mut config.state {
        rule.in_turns = true;
        if rule.key_heads != rule.value_heads {
            config.row_order = RowOrder::Changed;
        }
    }
    Ok(config)
}

pub fn lfm2(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    file.like(
        lfm2::FAMILY.config,
        &[("shortconv.l_cache", "conv_L_cache")],
    )
}

pub fn lfm2_moe(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let words = [("shortconv.l_cache", "conv_L_cache")];
    file.like(lfm2_moe::FAMILY.config, &words)
}

/// States have as many heads as attention.
pub fn kimi(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let words = [
        ("kda.head_dim", "linear_head_dim"),
        ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ];
    let said = json!({"linear_num_heads": file.size("attention.head_count", HEADS)?});
    file.like_with(kimi_linear::FAMILY.config, &words, said)
}

/// One factor multiplies the residual stream everywhere.
pub fn minimax(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let factor = file.number("residual_scale")?.unwrap_or(1.0);
    let said = json!({
        "full_attn_alpha_factor": factor, "linear_attn_alpha_factor": factor,
        "mlp_alpha_factor": factor,
    });
    let mut config = file.like_with(minimax::FAMILY.config, &[], said)?;
    config.residual_scale = 1.0;
    Ok(config)
}

/// What is stored ready for use is divided where the stream is halved, unlike in checkpoints that adapters are made for.
pub fn rwkv(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let words = [
        ("wkv.head_size", "head_size"),
        ("feed_forward_length", "intermediate_size"),
        ("rescale_every_n_layers", "rescale_every"),
    ];
    let mut config = file.like(rwkv6::FAMILY.config, &words)?;
    config.row_order = RowOrder::Changed;
    Ok(config)
}

pub fn plamo2(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    file.like_with(plamo2::FAMILY.config, MAMBA, mamba_heads())
}
