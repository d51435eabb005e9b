use super::*;

pub const FAMILY: Family<VisionConfig> = Family {
    name: "qwen2_vl_vision",
    matches: types(&["qwen2_vl_vision", "qwen2_5_vl_vision"]),
    config: |raw| {
        if is_type(raw, &["qwen2_5_vl_vision"]) {
            qwen_windowed_vision(raw)
        } else {
            qwen_vision(raw, raw.opt_usize("embed_dim")?.unwrap_or(1280))
        }
    },
    names: |_| QWEN_VISION,
    gguf: None,
};
