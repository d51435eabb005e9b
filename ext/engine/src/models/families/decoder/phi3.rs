use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "phi3",
    matches: types(&["phi3"]),
    config: |raw| mistral::windowed(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: gguf("phi3", |file| {
        let mut config = file.decoder(&Usual::LLAMA)?;
        config.windows = file.windows(config.layer_count, usize::MAX)?;
        Ok(config)
    }),
};
