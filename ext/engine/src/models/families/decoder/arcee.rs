use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "arcee",
    matches: types(&["arcee"]),
    config: |raw| {
        let usual = Usual {
            mlp: MlpKind::Plain,
            activation: Activation::ReluSquared,
            ..Usual::LLAMA
        };
        decoder(raw, &usual)
    },
    names: |_| LLAMA,
    gguf: gguf("arcee", |file| {
        file.like(FAMILY.config, &[]).map(neighbours)
    }),
};
