use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "minicpmv4_6",
    matches: types(&["minicpmv4_6"]),
    config: |raw| {
        let video = if raw.has("video_token_id") {
            video(raw, 0, FrameKind::Slices)?
        } else {
            None
        };
        Ok(VlmConfig {
            spelling: Spelling::Slices,
            video,
            ..own_config(raw, OwnConfig::Merged(raw.clone()))?
        })
    },
    names: tower_names,
    gguf: mmproj("minicpmv4_6", minicpm_gguf),
};
