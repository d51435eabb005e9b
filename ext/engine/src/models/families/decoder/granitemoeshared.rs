use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "granitemoeshared",
    matches: types(&["granitemoeshared"]),
    config: |raw| granitemoe::with_experts(raw, decoder(raw, &Usual::LLAMA)?),
    names: |_| granitemoe::NAMES,
    gguf: None,
};
