use super::*;

/// Qwen2.5-VL's without windows. GLM-OCR's patches rotate alone; those of the others have positions too.
pub const FAMILY: Family<VisionConfig> = Family {
    name: "glm4v_vision",
    matches: types(&["glm4v_vision", "glm4v_moe_vision", "glm_ocr_vision"]),
    config: |raw| {
        let ocr = is_type(raw, &["glm_ocr_vision"]);
        let (hidden, heads) = if ocr { (1024, 16) } else { (1536, 12) };
        let patch = square_edge(raw, "patch_size")?.unwrap_or(14);
        let raw = raw.clone().with(json!({"patch_size": patch})).with_defaults(json!({
            "depth": 24, "hidden_size": hidden, "num_heads": heads, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        }));
        let mut config = qwen_vision(&raw, raw.usize_in("hidden_size", WIDTH)?)?;
        config.encoder.norm = NormConfig::new(NormKind::Rms, raw.f64("rms_norm_eps")? as f32);
        config.encoder.mlp.kind = MlpKind::Gated;
        if !ocr {
            config.positions = GridPositions::Bicubic;
        }
        Ok(config)
    },
    names: |_| GLM_VISION,
    gguf: None,
};
