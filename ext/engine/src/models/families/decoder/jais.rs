use super::*;

/// Of GGUF files alone: its checkpoints run code of their own.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "jais",
    matches: types(&[]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: gguf("jais", |file| {
        let usual = Usual {
            norm: NormKind::Layer,
            ..Usual::LLAMA
        };
        let config = file.decoder(&usual)?;
        Ok(DecoderConfig {
            relative: Relative::Alibi {
                slopes: alibi_slopes(config.head_count),
            },
            attention_scale: 1.0 / config.head_size as f32,
            ..config
        })
    }),
};
