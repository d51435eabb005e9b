use super::*;

/// Texts; images have rows and columns for positions.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "paddleocr_vl",
    matches: types(&["paddleocr_vl", "paddleocr_vl_text"]),
    config: |raw| {
        let raw = text_of(raw)?.with_defaults(json!({
            "rope_theta": 500_000.0, "head_dim": 128, "rms_norm_eps": 1e-5,
        }));
        let mut config = decoder(&raw, &Usual::TIED)?;
        if let Some(rope) = config.relative.rope_mut() {
            rope.axes = RopeAxes::Sections(rope_sections(&raw, [16, 24, 24])?);
        }
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("paddleocr", sectioned_gguf),
};
