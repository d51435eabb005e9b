use super::*;

/// Texts; images have rows and columns for positions. With experts GLM-4-MoE's, else GLM-4's, rotated as a whole.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "glm4v",
    matches: types(&[
        "glm4v",
        "glm4v_text",
        "glm46v",
        "glm4v_moe",
        "glm4v_moe_text",
        "glm_ocr",
        "glm_ocr_text",
    ]),
    config: |outer| {
        let text = outer.opt_nested("text_config")?;
        let raw = text.unwrap_or_else(|| outer.clone());
        let tied = flag(outer, "tie_word_embeddings", false)?;
        let own = flag(&raw, "tie_word_embeddings", false)? && !is_type(outer, &["glm46v"]);
        let experts = is_type(&raw, &["glm4v_moe", "glm4v_moe_text"])
            || is_type(outer, &["glm4v_moe"]) && raw.model_type()?.is_none();
        let raw = raw.with(json!({"tie_word_embeddings": tied || own}));
        let raw = raw.with_defaults(json!({"rms_norm_eps": 1e-5}));
        let mut config = if experts {
            let raw = raw
                .clone()
                .with_defaults(json!({"first_k_dense_replace": 1}));
            let mut config = decoder(&raw, &glm4::USUAL)?;
            let mut experts = sigmoid_experts(&raw, config.layer_count)?;
            if is_type(outer, &["glm46v"]) {
                experts.layout = ExpertLayout::fused(true, false);
            }
            config.experts = Some(experts);
            config
        } else {
            glm4::shape(decoder(&raw, &Usual::LLAMA)?)
        };
        if let Some(rope) = config.relative.rope_mut() {
            rope.axes = RopeAxes::Sections(rope_sections(&raw, [8, 12, 12])?);
        }
        Ok(config)
    },
    names: |config| match config.and_then(|config| config.experts.as_ref()) {
        Some(experts) if experts.layout == ExpertLayout::fused(true, false) => Names {
            expert_gate_up: "mlp.experts.gate_up_proj",
            expert_down: "mlp.experts.down_proj",
            ..glm4_moe::NAMES
        },
        Some(_) => glm4_moe::NAMES,
        None => glm4::NAMES,
    },
    gguf: None,
};
