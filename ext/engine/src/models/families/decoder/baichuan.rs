use super::*;

/// The larger model, which does not rotate.
const LAYERS_OF_13B: usize = 40;

/// Of GGUF files alone: its checkpoints run code of their own.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "baichuan",
    matches: types(&[]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: gguf("baichuan", |file| {
        let mut config = neighbours(file.decoder(&Usual::LLAMA)?);
        if config.layer_count == LAYERS_OF_13B {
            config.relative = Relative::Alibi {
                slopes: alibi_slopes(config.head_count),
            };
        }
        Ok(config)
    }),
};
