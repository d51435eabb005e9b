use super::*;
use crate::kernels::Activation;
use crate::models::encoder::parts::Part;

pub const FAMILY: Family = Family {
    name: "electra",
    matches: |raw| is(raw, &["electra"], "Electra"),
    config: |raw| {
        require_positions(raw, "absolute")?;
        let config = common(raw, "electra")?;
        Ok(EncoderConfig {
            embedding_width: raw
                .opt_usize_in("embedding_size", WIDTH)?
                .unwrap_or(config.hidden),
            heads_on_top: HeadConfigs {
                sequence_activation: Activation::Gelu,
                masked_activation: Activation::Gelu,
                ..config.heads_on_top
            },
            ..config
        })
    },
    names: &[
        (Part::Words, "embeddings.word_embeddings"),
        (Part::Positions, "embeddings.position_embeddings"),
        (Part::TokenTypes, "embeddings.token_type_embeddings"),
        (Part::EmbeddingNorm, "embeddings.LayerNorm"),
        (Part::EmbeddingProjection, "embeddings_project"),
        (Part::Query, "encoder.layer.{}.attention.self.query"),
        (Part::Key, "encoder.layer.{}.attention.self.key"),
        (Part::Value, "encoder.layer.{}.attention.self.value"),
        (
            Part::AttentionOutput,
            "encoder.layer.{}.attention.output.dense",
        ),
        (
            Part::AttentionNorm,
            "encoder.layer.{}.attention.output.LayerNorm",
        ),
        (Part::Up, "encoder.layer.{}.intermediate.dense"),
        (Part::Down, "encoder.layer.{}.output.dense"),
        (Part::MlpNorm, "encoder.layer.{}.output.LayerNorm"),
        (Part::SequenceDense, "classifier.dense"),
        (Part::SequenceOutput, "classifier.out_proj"),
        (Part::TokenOutput, "classifier"),
        (Part::MaskedDense, "generator_predictions.dense"),
        (Part::MaskedNorm, "generator_predictions.LayerNorm"),
        (Part::MaskedOutput, "generator_lm_head"),
        (Part::MaskedBias, "generator_lm_head.bias"),
    ],
};
