use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "starcoder2",
    matches: types(&["starcoder2"]),
    config: |raw| mistral::windowed(raw, &Usual::GPT2),
    names: |_| Names {
        up: "mlp.c_fc",
        down: "mlp.c_proj",
        ..LLAMA
    },
    gguf: Some(Gguf {
        architecture: "starcoder2|codeshell",
        config: |file| file.decoder(&Usual::GPT2),
        names: |_| GGUF,
    }),
};
