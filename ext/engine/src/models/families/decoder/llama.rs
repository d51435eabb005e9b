use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "llama",
    matches: types(&["llama", "smollm"]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: Some(Gguf {
        architecture: "llama|internlm2|xverse",
        // Mixtral's files call themselves llama.
        config: |file| {
            let mut config = neighbours(file.decoder(&Usual::LLAMA)?);
            config.experts = file.experts(true, false)?;
            Ok(config)
        },
        names: |_| GGUF,
    }),
};
