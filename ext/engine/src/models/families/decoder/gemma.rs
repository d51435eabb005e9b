use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gemma",
    matches: types(&["gemma"]),
    config: gemma_shared::config,
    names: |_| LLAMA,
    gguf: Some(Gguf {
        architecture: "gemma",
        config: gemma_shared::gguf,
        names: |_| GGUF,
    }),
};
