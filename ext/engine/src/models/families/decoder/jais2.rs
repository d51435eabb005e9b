use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "jais2",
    matches: types(&["jais2"]),
    config: |raw| {
        decoder(
            raw,
            &Usual {
                activation: Activation::ReluSquared,
                ..Usual::LAYER_NORM
            },
        )
    },
    names: |_| LLAMA,
    gguf: gguf("jais2", |file| file.like(FAMILY.config, &[])),
};
