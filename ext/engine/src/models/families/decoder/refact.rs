use super::*;

/// Of GGUF files alone: its checkpoints run code of their own.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "refact",
    matches: types(&[]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: gguf("refact", |file| {
        let config = file.decoder(&Usual::LLAMA)?;
        Ok(DecoderConfig {
            relative: Relative::Alibi {
                slopes: alibi_slopes(config.head_count),
            },
            ..config
        })
    }),
};
