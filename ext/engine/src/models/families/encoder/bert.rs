use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "bert",
    matches: types(&["bert"]).or_classes(&["Bert"]),
    config: |raw| {
        require_positions(raw, "absolute")?;
        encoder(raw, "bert")
    },
    names: |_| BERT,
    gguf: Some(Gguf {
        architecture: "bert",
        config: |file| file.encoder("bert"),
        names: |_| GGUF_ENCODER,
    }),
};
