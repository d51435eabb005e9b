use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "roformer",
    matches: types(&["roformer"]).or_classes(&["RoFormer"]),
    config: |raw| {
        let mut config = rotary(encoder(raw, "roformer")?, |config| {
            rope(raw, config.head_size, 1.0, 10_000.0)
        })?;
        config.relative.interleave();
        config.mechanisms.rotates_values = flag(raw, "rotary_value", false)?;
        config.embedding_size = opt_width(raw, "embedding_size")?.unwrap_or(config.hidden_size);
        config.heads_on_top.sequence_activation = config.mlp.activation;
        Ok(config)
    },
    names: |_| Names {
        embedding_projection: "embeddings_project",
        rope_table: "encoder.embed_positions",
        sequence_dense: "classifier.dense",
        sequence_output: "classifier.out_proj",
        ..BERT
    },
    gguf: None,
};
