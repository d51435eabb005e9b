use super::*;

/// Texts; images have rows and columns for positions.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "qwen2_vl",
    matches: types(&["qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"]),
    config: |raw| {
        let text = raw.opt_nested("text_config")?;
        let raw = text.unwrap_or_else(|| raw.clone());
        let raw = raw.with_defaults(json!({"rope_theta": 1e6}));
        let mut config = qwen2::windowed(&raw, &Usual::LLAMA)?;
        if let Some(rope) = config.relative.rope_mut() {
            rope.axes = RopeAxes::Sections(rope_sections(&raw, [16, 24, 24])?);
        }
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("qwen2vl", sectioned_gguf),
};
