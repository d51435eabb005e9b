use super::*;

/// As far as it reads images.
pub const FAMILY: Family<VlmConfig> = Family {
    name: "janus",
    matches: types(&["janus"]),
    config: deepseek_vl::FAMILY.config,
    names: deepseek_vl::FAMILY.names,
    gguf: mmproj("janus_pro", janus_gguf),
};
