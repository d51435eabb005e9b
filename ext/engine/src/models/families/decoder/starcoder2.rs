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
    gguf: gguf("starcoder2|codeshell", |file| file.decoder(&Usual::GPT2)),
};
