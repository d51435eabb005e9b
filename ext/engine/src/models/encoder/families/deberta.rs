use super::*;
use crate::models::encoder::config::{Convolution, DisentangledConfig};
use crate::models::encoder::parts::Part;

pub const VERSION_1: Family = Family {
    name: "deberta",
    matches: |raw| is(raw, &["deberta"], "DebertaModel"),
    config: |raw| {
        let config = common_to_both(raw, "deberta", None)?;
        Ok(EncoderConfig {
            fused_qkv: FusedQkv::PerHead,
            ..config
        })
    },
    names: NAMES,
};

pub const VERSION_2: Family = Family {
    name: "deberta-v2",
    matches: |raw| is(raw, &["deberta-v2"], "DebertaV2"),
    config: |raw| {
        let buckets = raw
            .opt_integers("position_buckets")?
            .and_then(|b| b.first().copied());
        let buckets = buckets
            .and_then(|b| usize::try_from(b).ok())
            .filter(|&b| b > 0);
        let config = common_to_both(raw, "deberta-v2", buckets)?;
        Ok(EncoderConfig {
            convolution: convolution(raw)?,
            ..config
        })
    },
    names: NAMES,
};

const NAMES: Names = &[
    (Part::Words, "embeddings.word_embeddings"),
    (Part::Positions, "embeddings.position_embeddings"),
    (Part::TokenTypes, "embeddings.token_type_embeddings"),
    (Part::EmbeddingNorm, "embeddings.LayerNorm"),
    (Part::EmbeddingProjection, "embeddings.embed_proj"),
    (Part::RelativeTable, "encoder.rel_embeddings"),
    (Part::RelativeNorm, "encoder.LayerNorm"),
    (Part::Convolution, "encoder.conv.conv"),
    (Part::ConvolutionNorm, "encoder.conv.LayerNorm"),
    (Part::FusedQkv, "encoder.layer.{}.attention.self.in_proj"),
    (Part::QueryBias, "encoder.layer.{}.attention.self.q_bias"),
    (Part::ValueBias, "encoder.layer.{}.attention.self.v_bias"),
    (Part::Query, "encoder.layer.{}.attention.self.query_proj"),
    (Part::Key, "encoder.layer.{}.attention.self.key_proj"),
    (Part::Value, "encoder.layer.{}.attention.self.value_proj"),
    (
        Part::PositionKey,
        "encoder.layer.{}.attention.self.pos_proj",
    ),
    (
        Part::PositionKey,
        "encoder.layer.{}.attention.self.pos_key_proj",
    ),
    (
        Part::PositionQuery,
        "encoder.layer.{}.attention.self.pos_q_proj",
    ),
    (
        Part::PositionQuery,
        "encoder.layer.{}.attention.self.pos_query_proj",
    ),
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
    (Part::MaskedDense, "lm_predictions.lm_head.dense"),
    (Part::MaskedNorm, "cls.predictions.transform.LayerNorm"),
    (Part::MaskedNorm, "lm_predictions.lm_head.LayerNorm"),
    (Part::MaskedOutput, "cls.predictions.decoder"),
    (Part::MaskedBias, "cls.predictions.bias"),
    (Part::MaskedBias, "cls.predictions.decoder.bias"),
    (Part::MaskedBias, "lm_predictions.lm_head.bias"),
];

fn common_to_both(
    raw: &RawConfig,
    family: &'static str,
    buckets: Option<usize>,
) -> Result<EncoderConfig> {
    let config = common(raw, family)?;
    let positions = match raw.opt_bool("position_biased_input")?.unwrap_or(true) {
        true => Positions::Learned,
        false => Positions::None,
    };
    let relative = match raw.opt_bool("relative_attention")?.unwrap_or(false) {
        true => Relative::Disentangled(disentangled(raw, &config, buckets)?),
        false => Relative::None,
    };
    let pooler = raw.opt_string("pooler_hidden_act")?.unwrap_or("gelu");
    Ok(EncoderConfig {
        positions,
        relative,
        embedding_width: raw
            .opt_usize_in("embedding_size", WIDTH)?
            .unwrap_or(config.hidden),
        heads_on_top: HeadConfigs {
            sequence_activation: activation(pooler)?,
            ..config.heads_on_top
        },
        ..config
    })
}

fn disentangled(
    raw: &RawConfig,
    config: &EncoderConfig,
    buckets: Option<usize>,
) -> Result<DisentangledConfig> {
    let kinds = match raw.get("pos_att_type") {
        Some(serde_json::Value::String(joined)) => joined.split('|').map(str::to_owned).collect(),
        _ => raw.opt_strings("pos_att_type")?.unwrap_or_default(),
    };
    let has = |kind: &str| kinds.iter().any(|found| found.trim() == kind);
    let farthest = raw
        .opt_integers("max_relative_positions")?
        .and_then(|all| all.first().copied())
        .and_then(|farthest| usize::try_from(farthest).ok())
        .filter(|&farthest| farthest > 0)
        .or(config.max_positions)
        .unwrap_or(512);
    let norm = raw
        .opt_string("norm_rel_ebd")?
        .unwrap_or("none")
        .to_ascii_lowercase();
    Ok(DisentangledConfig {
        from_query: has("c2p"),
        from_key: has("p2c"),
        farthest,
        buckets,
        shared: raw.opt_bool("share_att_key")?.unwrap_or(false),
        normed: norm.contains("layer_norm"),
    })
}

fn convolution(raw: &RawConfig) -> Result<Option<Convolution>> {
    let Some(kernel) = raw
        .opt_usize_in("conv_kernel_size", 0..=1024)?
        .filter(|&kernel| kernel > 0)
    else {
        return Ok(None);
    };
    Ok(Some(Convolution {
        kernel,
        groups: raw.opt_usize_in("conv_groups", WIDTH)?.unwrap_or(1),
        activation: activation(raw.opt_string("conv_act")?.unwrap_or("tanh"))?,
    }))
}
