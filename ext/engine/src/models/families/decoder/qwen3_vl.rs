use super::*;

/// Texts; images have rows and columns for positions, whose frequencies take turns.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "qwen3_vl",
    matches: types(&["qwen3_vl", "qwen3_vl_text"]),
    config: |raw| {
        let raw = text_of(raw)?.with_defaults(json!({"rope_theta": 500_000.0, "head_dim": 128}));
        let mut config = qwen3::config(&raw)?;
        take_turns(&raw, &mut config, [24, 20, 20])?;
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: None,
};
