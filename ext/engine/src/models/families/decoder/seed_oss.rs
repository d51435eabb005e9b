use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "seed_oss",
    matches: types(&["seed_oss"]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: gguf_named(
        "seed_oss",
        |file| file.like(FAMILY.config, &[]),
        |_| GGUF_AFTER_ATTENTION,
    ),
};
