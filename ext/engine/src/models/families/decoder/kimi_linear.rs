use super::state_shared::{kimi, kimi_keys, kimi_rule, KIMI};
use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "kimi_linear",
    matches: types(&["kimi_linear"]),
    config: |raw| {
        let raw = &kimi_keys(raw, 1)?;
        let mut config = latent_shared::latent(raw, &Usual::LLAMA, false)?;
        config.relative = Relative::None;
        let given = raw.opt_nested("linear_attn_config")?;
        let size = |nested: &str, plain: &str, usual| -> Result<usize> {
            let found = match &given {
                Some(given) => given.opt_usize(nested)?,
                None => raw.opt_usize(plain)?,
            };
            Ok(found.unwrap_or(usual))
        };
        // They are counted from one.
        let attention = match &given {
            Some(given) => given.opt_integers("full_attn_layers")?,
            None => None,
        };
        config.sublayers = sublayers(raw, config.layer_count, |at| match &attention {
            Some(layers) => layers.contains(&(at as i64 + 1)),
            None => at > 0 && at % 4 == 0,
        })?;
        let rule = kimi_rule(
            size("num_heads", "linear_num_heads", 32)?,
            size("head_dim", "linear_head_dim", 128)?,
            size("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?,
            Fading::Elements,
            &config,
        );
        kimi(raw, rule, config)
    },
    names: |_| Names {
        gate: "mlp.gate_proj|block_sparse_moe.gate_proj",
        up: "mlp.up_proj|block_sparse_moe.up_proj",
        down: "mlp.down_proj|block_sparse_moe.down_proj",
        router: "block_sparse_moe.gate",
        router_bias: "block_sparse_moe.gate.e_score_correction_bias",
        expert_gate: "block_sparse_moe.experts.{}.w1",
        expert_up: "block_sparse_moe.experts.{}.w3",
        expert_down: "block_sparse_moe.experts.{}.w2",
        shared_gate: "block_sparse_moe.shared_experts.gate_proj",
        shared_up: "block_sparse_moe.shared_experts.up_proj",
        shared_down: "block_sparse_moe.shared_experts.down_proj",
        ..KIMI
    },
    gguf: gguf_named("kimi-linear", state_gguf::kimi, |_| state_gguf::KIMI),
};
