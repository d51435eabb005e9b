use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "fast_vlm",
    matches: types(&["fast_vlm"]),
    config: |raw| {
        let raw = with_marker(raw, 151_646);
        own_config(&raw, OwnConfig::Convolved(raw.clone()))
    },
    names: tower_names,
    gguf: None,
};
