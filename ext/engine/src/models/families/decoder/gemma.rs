use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gemma",
    matches: types(&["gemma"]),
    config: gemma_shared::config,
    names: |_| LLAMA,
    gguf: gguf("gemma", gemma_shared::gguf),
};
