use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "minicpmv4_6",
    matches: types(&["minicpmv4_6"]),
    config: |raw| {
        Ok(VlmConfig {
            spelling: Spelling::Slices,
            ..own_config(raw, OwnConfig::Merged(raw.clone()))?
        })
    },
    names: tower_names,
    gguf: None,
};
