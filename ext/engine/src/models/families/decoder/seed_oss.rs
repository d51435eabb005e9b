use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "seed_oss",
    matches: types(&["seed_oss"]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: Some(Gguf {
        architecture: "seed_oss",
        config: |file| file.like(FAMILY.config, &[]),
        names: |_| GGUF_AFTER_ATTENTION,
    }),
};
