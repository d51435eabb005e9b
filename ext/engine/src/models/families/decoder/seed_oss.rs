use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "seed_oss",
    matches: |raw| is_type(raw, &["seed_oss"]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: None,
};
