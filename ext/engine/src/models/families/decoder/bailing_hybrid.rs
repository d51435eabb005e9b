use super::state_shared::{kimi, kimi_keys, kimi_rule};
use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "bailing_hybrid",
    matches: types(&["bailing_hybrid"]),
    config: |raw| {
        let raw = &kimi_keys(raw, 2)?.with_defaults(json!({"rope_theta": 6e6}));
        let mut config = latent_shared::latent(raw, &Usual::LLAMA, true)?;
        config.output_gate = OutputGate::SigmoidPerHead;
        let group = raw.opt_usize("layer_group_size")?.unwrap_or(6).max(1);
        config.sublayers = sublayers(raw, config.layer_count, |at| (at + 1) % group == 0)?;
        let heads = raw.opt_usize("linear_num_heads")?;
        let taps = raw.opt_usize(["linear_conv_kernel_dim", "short_conv_kernel_size"])?;
        let least = number(raw, "kda_lower_bound")?.unwrap_or(-5.0);
        let rule = kimi_rule(
            heads.unwrap_or(config.head_count),
            raw.opt_usize(["linear_head_dim", "head_dim"])?
                .unwrap_or(128),
            taps.unwrap_or(4),
            if flag(raw, "kda_safe_gate", true)? {
                Fading::Bounded { least }
            } else {
                Fading::Elements
            },
            &config,
        );
        kimi(raw, rule, config)
    },
    names: |_| Names {
        token_embedding: "word_embeddings",
        query: "attention.q_proj",
        latent_down: "attention.kv_a_proj_with_mqa",
        latent_norm: "attention.kv_a_layernorm",
        latent_up: "attention.kv_b_proj",
        attention_output: "attention.dense",
        output_gate: "attention.g_proj",
        router_bias: "mlp.gate.expert_bias",
        state_query: "attention.q_proj",
        state_key: "attention.k_proj",
        state_value: "attention.v_proj",
        state_query_convolution: "attention.q_conv1d",
        state_key_convolution: "attention.k_conv1d",
        state_value_convolution: "attention.v_conv1d",
        state_gate: "attention.g_proj",
        state_fading: "attention.f_proj",
        state_written: "attention.b_proj",
        state_decay: "attention.A_log",
        state_step_bias: "attention.dt_bias",
        state_norm: "attention.o_norm",
        state_output: "attention.dense",
        ..latent_shared::NAMES
    },
    gguf: None,
};
