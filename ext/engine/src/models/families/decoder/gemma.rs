use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gemma",
    matches: types(&["gemma"]),
    config: |raw| {
        let config = gemma_shared::config(raw)?;
        Ok(if flag(raw, "use_bidirectional_attention", false)? {
            gemma_shared::bidirectional(config)
        } else {
            config
        })
    },
    names: |_| LLAMA,
    gguf: gguf("gemma", gemma_shared::gguf),
};
