use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "rembert",
    matches: types(&["rembert"]).or_classes(&["RemBert"]),
    config: |raw| {
        let config = encoder(raw, "rembert")?;
        let width = raw.opt_usize_in("input_embedding_size", WIDTH)?;
        Ok(EncoderConfig {
            embedding_size: width.unwrap_or(256),
            ..config
        })
    },
    names: |_| Names {
        embedding_projection: "encoder.embedding_hidden_mapping_in",
        masked_dense: "cls.predictions.dense",
        masked_norm: "cls.predictions.LayerNorm",
        ..BERT
    },
    gguf: None,
};
