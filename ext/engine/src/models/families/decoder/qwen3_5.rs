use super::*;

/// Texts; images have rows and columns for positions, which texts count alike.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "qwen3_5",
    matches: types(&["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"]),
    config: |raw| {
        let raw = &text_of(raw)?;
        let mut config = qwen3_next::config(raw)?;
        take_turns(raw, &mut config, [11, 11, 10])?;
        if raw.has("num_experts") {
            let given = experts(raw, config.layer_count, true, Shared::Gated)?;
            config.experts = given.map(|given| Experts {
                normalize: true,
                ..given
            });
        }
        Ok(config)
    },
    names: |_| Names {
        expert_gate_up: "mlp.experts.gate_up_proj",
        expert_down: "mlp.experts.{}.down_proj|mlp.experts.down_proj",
        ..qwen3_next::NAMES
    },
    gguf: gguf_named("qwen35|qwen35moe", state_gguf::qwen3_5, |_| {
        state_gguf::QWEN
    }),
};
