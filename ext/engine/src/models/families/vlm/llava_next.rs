use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "llava_next",
    matches: types(&["llava_next"]),
    config: |raw| llava_config(raw, Layout::Joined),
    names: tower_names,
    gguf: llava::FAMILY.gguf,
};
