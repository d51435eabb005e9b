use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "glm4_moe",
    matches: types(&["glm4_moe"]),
    config: |raw| {
        let mut config = decoder(raw, &glm4::USUAL)?;
        if flag(raw, "use_qk_norm", false)? {
            config.query_key_norm = QueryKeyNorm::PerHead;
        }
        config.experts = Some(sigmoid_experts(raw, config.layer_count)?);
        Ok(config)
    },
    names: |_| NAMES,
    gguf: gguf_named(
        "glm4moe",
        |file| in_sections(file, file.like(FAMILY.config, &[])?),
        |_| GGUF_AFTER_ATTENTION,
    ),
};

pub const NAMES: Names = Names {
    router_bias: "mlp.gate.e_score_correction_bias",
    shared_gate: "mlp.shared_experts.gate_proj",
    shared_up: "mlp.shared_experts.up_proj",
    shared_down: "mlp.shared_experts.down_proj",
    ..LLAMA
};
