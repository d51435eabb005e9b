use super::*;
use crate::models::encoder::parts::Part;

pub const FAMILY: Family = Family {
    name: "bert",
    matches: |raw| is(raw, &["bert"], "Bert"),
    config: |raw| {
        require_positions(raw, "absolute")?;
        common(raw, "bert")
    },
    names: NAMES,
};

pub const NAMES: Names = &[
    (Part::Words, "embeddings.word_embeddings"),
    (Part::Positions, "embeddings.position_embeddings"),
    (Part::TokenTypes, "embeddings.token_type_embeddings"),
    (Part::EmbeddingNorm, "embeddings.LayerNorm"),
    (Part::FusedQkv, "encoder.layer.{}.attention.self.qkv"),
    (Part::FusedQkv, "encoder.layer.{}.attention.self.Wqkv"),
    (
        Part::FusedQkv,
        "encoder.layer.{}.attention.self.query_key_value",
    ),
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
    (Part::SequenceDense, "pooler.dense"),
    (Part::SequenceOutput, "classifier"),
    (Part::TokenOutput, "classifier"),
    (Part::MaskedDense, "cls.predictions.transform.dense"),
    (Part::MaskedNorm, "cls.predictions.transform.LayerNorm"),
    (Part::MaskedOutput, "cls.predictions.decoder"),
    (Part::MaskedBias, "cls.predictions.bias"),
    (Part::MaskedBias, "cls.predictions.decoder.bias"),
];
