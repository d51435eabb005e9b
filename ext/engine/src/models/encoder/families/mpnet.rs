use super::*;
use crate::kernels::Activation;
use crate::models::encoder::parts::Part;

/// Distances beyond this one share the last bucket.
const FARTHEST: usize = 128;

pub const FAMILY: Family = Family {
    name: "mpnet",
    matches: |raw| is(raw, &["mpnet"], "MPNet"),
    config: |raw| {
        let config = common(raw, "mpnet")?;
        let count = raw
            .opt_usize("relative_attention_num_buckets")?
            .unwrap_or(32);
        Ok(EncoderConfig {
            token_types: 0,
            positions: Positions::LearnedAfterPadding,
            relative: Relative::Buckets {
                count,
                farthest: FARTHEST,
            },
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
        (Part::EmbeddingNorm, "embeddings.LayerNorm"),
        (Part::RelativeTable, "encoder.relative_attention_bias"),
        (Part::Query, "encoder.layer.{}.attention.attn.q"),
        (Part::Key, "encoder.layer.{}.attention.attn.k"),
        (Part::Value, "encoder.layer.{}.attention.attn.v"),
        (Part::AttentionOutput, "encoder.layer.{}.attention.attn.o"),
        (Part::AttentionNorm, "encoder.layer.{}.attention.LayerNorm"),
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
