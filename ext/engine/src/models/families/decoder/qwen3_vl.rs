use super::*;

/// Texts; images have rows and columns for positions, whose frequencies take turns.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "qwen3_vl",
    matches: types(&[
        "qwen3_vl",
        "qwen3_vl_text",
        "qwen3_vl_moe",
        "qwen3_vl_moe_text",
    ]),
    config: |raw| {
        let raw =
            tied_outside(raw)?.with_defaults(json!({"rope_theta": 500_000.0, "head_dim": 128}));
        let mut config = qwen3::config(&raw)?;
        take_turns(&raw, &mut config, [24, 20, 20])?;
        config.experts = stacked_experts(&raw, config.layer_count)?;
        Ok(config)
    },
    names: |_| Names {
        expert_gate_up: "mlp.experts.gate_up_proj",
        expert_down: "mlp.experts.down_proj",
        ..LLAMA
    },
    gguf: gguf("qwen3vl|qwen3vlmoe", turned_gguf),
};
