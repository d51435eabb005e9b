use super::*;
use crate::models::encoder::config::LayerConfig;
use crate::models::encoder::parts::Part;

pub const FAMILY: Family = Family {
    name: "albert",
    matches: |raw| is(raw, &["albert"], "Albert"),
    config,
    names: &[
        (Part::Words, "embeddings.word_embeddings"),
        (Part::Positions, "embeddings.position_embeddings"),
        (Part::TokenTypes, "embeddings.token_type_embeddings"),
        (Part::EmbeddingNorm, "embeddings.LayerNorm"),
        (
            Part::EmbeddingProjection,
            "encoder.embedding_hidden_mapping_in",
        ),
        (
            Part::Query,
            "encoder.albert_layer_groups.{}.albert_layers.0.attention.query",
        ),
        (
            Part::Key,
            "encoder.albert_layer_groups.{}.albert_layers.0.attention.key",
        ),
        (
            Part::Value,
            "encoder.albert_layer_groups.{}.albert_layers.0.attention.value",
        ),
        (
            Part::AttentionOutput,
            "encoder.albert_layer_groups.{}.albert_layers.0.attention.dense",
        ),
        (
            Part::AttentionNorm,
            "encoder.albert_layer_groups.{}.albert_layers.0.attention.LayerNorm",
        ),
        (
            Part::Up,
            "encoder.albert_layer_groups.{}.albert_layers.0.ffn",
        ),
        (
            Part::Down,
            "encoder.albert_layer_groups.{}.albert_layers.0.ffn_output",
        ),
        (
            Part::MlpNorm,
            "encoder.albert_layer_groups.{}.albert_layers.0.full_layer_layer_norm",
        ),
        (Part::SequenceDense, "pooler"),
        (Part::SequenceOutput, "classifier"),
        (Part::TokenOutput, "classifier"),
        (Part::MaskedDense, "predictions.dense"),
        (Part::MaskedNorm, "predictions.LayerNorm"),
        (Part::MaskedOutput, "predictions.decoder"),
        (Part::MaskedBias, "predictions.bias"),
        (Part::MaskedBias, "predictions.decoder.bias"),
    ],
};

/// The layers are cut into equal groups, and those of a group share their weights.
fn config(raw: &RawConfig) -> Result<EncoderConfig> {
    require_positions(raw, "absolute")?;
    let config = common(raw, "albert")?;
    let groups = raw.opt_usize_in("num_hidden_groups", LAYERS)?.unwrap_or(1);
    if raw.opt_usize("inner_group_num")?.unwrap_or(1) != 1 {
        return Err(Error::unsupported(
            raw.file(),
            "inner_group_num other than 1 is not supported",
        ));
    }
    let count = config.layers.len();
    let grouped = |(number, layer): (usize, LayerConfig)| LayerConfig {
        weights: number * groups / count,
        ..layer
    };
    Ok(EncoderConfig {
        layers: config
            .layers
            .iter()
            .copied()
            .enumerate()
            .map(grouped)
            .collect(),
        embedding_width: raw.opt_usize_in("embedding_size", WIDTH)?.unwrap_or(128),
        ..config
    })
}
