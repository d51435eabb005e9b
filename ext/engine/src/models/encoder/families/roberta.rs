use super::*;
use crate::kernels::Activation;
use crate::models::encoder::parts::Part;

const TYPES: &[&str] = &["roberta", "xlm-roberta", "camembert"];

pub const FAMILY: Family = Family {
    name: "roberta",
    matches: |raw| {
        is(raw, TYPES, "Roberta") || is(raw, &[], "XLMRoberta") || is(raw, &[], "Camembert")
    },
    config: |raw| {
        require_positions(raw, "absolute")?;
        let config = common(raw, "roberta")?;
        Ok(EncoderConfig {
            positions: Positions::LearnedAfterPadding,
            padding_id: config.padding_id.or(Some(1)),
            heads_on_top: HeadConfigs {
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
        (Part::MaskedDense, "lm_head.dense"),
        (Part::MaskedNorm, "lm_head.layer_norm"),
        (Part::MaskedOutput, "lm_head.decoder"),
        (Part::MaskedBias, "lm_head.bias"),
        (Part::MaskedBias, "lm_head.decoder.bias"),
    ],
};
