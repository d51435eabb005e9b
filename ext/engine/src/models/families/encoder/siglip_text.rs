use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "siglip_text_model",
    matches: types(&["siglip_text_model", "siglip2_text_model"]),
    config: |raw| Ok(pre_norm(encoder(&siglip(raw), "siglip")?)),
    names: |_| CLIP_TEXT,
    gguf: None,
};
