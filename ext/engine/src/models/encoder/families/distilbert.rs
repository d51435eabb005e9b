use super::*;
use crate::kernels::Activation;
use crate::models::encoder::parts::Part;

pub const FAMILY: Family = Family {
    name: "distilbert",
    matches: |raw| is(raw, &["distilbert"], "DistilBert"),
    config: |raw| {
        let config = common(raw, "distilbert")?;
        Ok(EncoderConfig {
            token_types: 0,
            heads_on_top: HeadConfigs {
                sequence_activation: Activation::Relu,
                ..config.heads_on_top
            },
            ..config
        })
    },
    names: &[
        (Part::Words, "embeddings.word_embeddings"),
        (Part::Positions, "embeddings.position_embeddings"),
        (Part::EmbeddingNorm, "embeddings.LayerNorm"),
        (Part::Query, "transformer.layer.{}.attention.q_lin"),
        (Part::Key, "transformer.layer.{}.attention.k_lin"),
        (Part::Value, "transformer.layer.{}.attention.v_lin"),
        (
            Part::AttentionOutput,
            "transformer.layer.{}.attention.out_lin",
        ),
        (Part::AttentionNorm, "transformer.layer.{}.sa_layer_norm"),
        (Part::Up, "transformer.layer.{}.ffn.lin1"),
        (Part::Down, "transformer.layer.{}.ffn.lin2"),
        (Part::MlpNorm, "transformer.layer.{}.output_layer_norm"),
        (Part::SequenceDense, "pre_classifier"),
        (Part::SequenceOutput, "classifier"),
        (Part::TokenOutput, "classifier"),
        (Part::MaskedDense, "vocab_transform"),
        (Part::MaskedNorm, "vocab_layer_norm"),
        (Part::MaskedOutput, "vocab_projector"),
        (Part::MaskedBias, "vocab_projector.bias"),
    ],
};
