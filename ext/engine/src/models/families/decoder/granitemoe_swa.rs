use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "granitemoe_swa",
    matches: |raw| is_type(raw, &["granitemoe_swa"]),
    config: |raw| granitemoe::with_experts(raw, granite_swa::config(raw)?),
    names: |_| Names {
        sinks: "self_attn.sinks",
        ..granitemoe::NAMES
    },
    gguf: None,
};
