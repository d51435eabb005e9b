use super::*;

/// Of GGUF files alone: its checkpoints run code of their own.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "orion",
    matches: types(&[]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: gguf("orion", |file| {
        let usual = Usual {
            norm: NormKind::Layer,
            ..Usual::LLAMA
        };
        file.decoder(&usual)
    }),
};
