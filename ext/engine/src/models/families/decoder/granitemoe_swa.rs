use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "granitemoe_swa",
    matches: types(&["granitemoe_swa"]),
    config: |raw| granitemoe::with_experts(raw, granite_swa::config(raw)?),
    names: |_| Names {
        sinks: "self_attn.sinks",
        ..granitemoe::NAMES
    },
    gguf: None,
};
