use super::*;
use crate::models::encoder::config::{LayerConfig, SequencePooling};
use crate::models::encoder::parts::Part;
use crate::nn::AttentionKind;

/// The rope tables, as layers number them.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub const FAMILY: Family = Family {
    name: "modernbert",
    matches: |raw| is(raw, &["modernbert"], "ModernBert"),
    config,
    names: &[
        (Part::Words, "embeddings.tok_embeddings"),
        (Part::EmbeddingNorm, "embeddings.norm"),
        (Part::FusedQkv, "layers.{}.attn.Wqkv"),
        (Part::AttentionOutput, "layers.{}.attn.Wo"),
        (Part::AttentionNorm, "layers.{}.attn_norm"),
        (Part::GateUp, "layers.{}.mlp.Wi"),
        (Part::Down, "layers.{}.mlp.Wo"),
        (Part::MlpNorm, "layers.{}.mlp_norm"),
        (Part::FinalNorm, "final_norm"),
        (Part::SequenceDense, "head.dense"),
        (Part::SequenceNorm, "head.norm"),
        (Part::SequenceOutput, "classifier"),
        (Part::TokenDense, "head.dense"),
        (Part::TokenNorm, "head.norm"),
        (Part::TokenOutput, "classifier"),
        (Part::MaskedDense, "head.dense"),
        (Part::MaskedNorm, "head.norm"),
        (Part::MaskedOutput, "decoder"),
        (Part::MaskedBias, "decoder.bias"),
    ],
};

fn config(raw: &RawConfig) -> Result<EncoderConfig> {
    let config = common(raw, "modernbert")?;
    let types = raw.opt_strings("layer_types")?;
    let every = raw
        .opt_usize_in("global_attn_every_n_layers", LAYERS)?
        .unwrap_or(3);
    let is_local = |number: usize| match &types {
        Some(types) => types
            .get(number)
            .is_some_and(|kind| kind == "sliding_attention"),
        None => !number.is_multiple_of(every),
    };
    let reach = raw.opt_usize("local_attention")?.unwrap_or(128) / 2;
    let layer = |(number, layer): (usize, &LayerConfig)| match is_local(number) {
        true => LayerConfig {
            attention: AttentionKind::Window {
                left: reach,
                right: reach,
            },
            rope: LOCAL,
            ..*layer
        },
        false => LayerConfig {
            rope: GLOBAL,
            ..*layer
        },
    };
    let rope = |key: &str, old: &str, otherwise: f64| -> Result<RopeConfig> {
        let nested = match raw.opt_nested("rope_parameters")? {
            Some(nested) => nested.opt_nested(key)?,
            None => None,
        };
        let theta = match nested {
            Some(nested) => rope_theta(&nested, &["rope_theta"], otherwise)?,
            None => rope_theta(raw, &[old], otherwise)?,
        };
        Ok(plain_rope(theta, config.head_width))
    };
    let head = activation(raw.opt_string("classifier_activation")?.unwrap_or("gelu"))?;
    Ok(EncoderConfig {
        layers: config.layers.iter().enumerate().map(layer).collect(),
        positions: Positions::None,
        relative: Relative::Rope(vec![
            rope("full_attention", "global_rope_theta", 160_000.0)?,
            rope("sliding_attention", "local_rope_theta", 10_000.0)?,
        ]),
        epsilon: raw.opt_f64("norm_eps")?.unwrap_or(1e-5) as f32,
        placement: NormPlacement::Pre,
        mlp: Mlp::Gated,
        heads_on_top: HeadConfigs {
            pooling: match raw.opt_string("classifier_pooling")? {
                Some("mean") => SequencePooling::Mean,
                _ => SequencePooling::First,
            },
            sequence_activation: head,
            token_activation: head,
            masked_activation: head,
        },
        ..config
    })
}
