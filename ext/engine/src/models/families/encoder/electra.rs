use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "electra",
    matches: types(&["electra"]).or_classes(&["Electra"]),
    config: |raw| {
        require_positions(raw, "absolute")?;
        let config = encoder(raw, "electra")?;
        let embedding_size = raw.opt_usize_in("embedding_size", WIDTH)?;
        Ok(EncoderConfig {
            embedding_size: embedding_size.unwrap_or(config.hidden_size),
            heads_on_top: HeadConfigs {
                sequence_activation: Activation::Gelu,
                ..HeadConfigs::default()
            },
            ..config
        })
    },
    names: |_| Names {
        embedding_projection: "embeddings_project",
        sequence_dense: "classifier.dense",
        sequence_output: "classifier.out_proj",
        masked_dense: "generator_predictions.dense",
        masked_norm: "generator_predictions.LayerNorm",
        masked_output: "generator_lm_head",
        masked_bias: "generator_lm_head.bias",
        ..BERT
    },
    gguf: None,
};
