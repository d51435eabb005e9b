use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "llava_next",
    matches: types(&["llava_next"]),
    config: |raw| llava_config(raw, |activation| ConnectorConfig::Lines { activation }),
    names: tower_names,
    gguf: None,
};
