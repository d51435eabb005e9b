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
        // What stands outside of the texts' part counts, where both say it.
        let text = match raw.opt_bool("tie_word_embeddings")? {
            Some(tied) => text_of(raw)?.with(json!({"tie_word_embeddings": tied})),
            None => text_of(raw)?,
        };
        let raw = text.with_defaults(json!({"rope_theta": 500_000.0, "head_dim": 128}));
        let mut config = qwen3::config(&raw)?;
        take_turns(&raw, &mut config, [24, 20, 20])?;
        if raw.has(["num_experts", "num_local_experts"]) {
            let given = experts(&raw, config.layer_count, true, Shared::None)?;
            config.experts = given.map(|given| Experts {
                normalize: true,
                layout: ExpertLayout::fused(true, false),
                ..given
            });
        }
        Ok(config)
    },
    names: |_| Names {
        expert_gate_up: "mlp.experts.gate_up_proj",
        expert_down: "mlp.experts.down_proj",
        ..LLAMA
    },
    gguf: None,
};
