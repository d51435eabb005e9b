use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "fnet",
    matches: types(&["fnet"]).or_classes(&["FNet"]),
    config: |raw| {
        // It has no attention, and so no heads.
        let raw = &raw.clone().with_defaults(json!({"num_attention_heads": 1}));
        let mut config = encoder(raw, "fnet")?;
        config.mechanisms.mixer = Mixer::Fourier;
        Ok(config)
    },
    names: |_| Names {
        embedding_projection: "embeddings.projection",
        attention_norm: "fourier.output.LayerNorm",
        ..BERT
    },
    gguf: None,
};
