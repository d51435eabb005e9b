use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "llama",
    matches: types(&["llama", "smollm"]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    // Mixtral's files call themselves llama.
    gguf: gguf("llama|internlm2|xverse", |file| {
        let mut config = neighbours(file.decoder(&Usual::LLAMA)?);
        config.experts = file.experts(true, false)?;
        Ok(config)
    }),
};
