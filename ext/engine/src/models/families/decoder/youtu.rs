use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "youtu",
    matches: types(&["youtu"]),
    config: |raw| latent_shared::interleaved(raw, &Usual::TIED),
    names: |_| latent_shared::NAMES,
    gguf: None,
};
