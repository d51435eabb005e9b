use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "nemotron",
    matches: types(&["nemotron"]),
    config: |raw| {
        let usual = Usual {
            activation: Activation::ReluSquared,
            rotated: 0.5,
            ..Usual::LAYER_NORM
        };
        let mut config = decoder(raw, &usual)?;
        config.norm.offset = 1.0;
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("nemotron", |file| file.like(FAMILY.config, &[])),
};
