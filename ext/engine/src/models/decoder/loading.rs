//! From the parts of a checkpoint to the layers of a decoder.

use candle_core::Tensor;

use super::config::{DecoderConfig, Experts, QueryKeyNorm, Residual};
use super::experts::ExpertLayer;
use super::layer::{AttentionLayer, FeedForward, Layer, MlpLayer};
use crate::models::config::{MlpKind, NormPlacement};
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::models::projections::{Join, MlpParts};
use crate::nn::{Embedding, Linear, Norm, Projection};
use crate::Result;

pub fn token_embedding(parameters: &Parameters<'_>, config: &DecoderConfig) -> Result<Embedding> {
    table(parameters, Part::TokenEmbedding, config)
}

/// `[vocabulary, hidden]`
fn table(parameters: &Parameters<'_>, part: Part, config: &DecoderConfig) -> Result<Embedding> {
    let table = parameters.table(part, config.hidden_size)?;
    match table.count() == config.vocab_size {
        true => Ok(table),
        false => Err(parameters.misfit(part, &[config.vocab_size, config.hidden_size])),
    }
}

pub fn head(
    parameters: &Parameters<'_>,
    config: &DecoderConfig,
    embedding: &Embedding,
) -> Result<Linear> {
    if ties_head(parameters, config) {
        return embedding.tied_output(None);
    }
    parameters.linear(Part::Head, config.hidden_size, config.vocab_size)
}

/// Some rows of the head's matrix, `[rows, hidden]`.
pub fn head_rows(
    parameters: &Parameters<'_>,
    config: &DecoderConfig,
    embedding: &Embedding,
    rows: &[u32],
) -> Result<Tensor> {
    match ties_head(parameters, config) {
        true => embedding.rows(rows),
        false => table(parameters, Part::Head, config)?.rows(rows),
    }
}

/// A checkpoint that does not say whether its head is tied shows it by having none.
fn ties_head(parameters: &Parameters<'_>, config: &DecoderConfig) -> bool {
    config.tied_head || !parameters.has(Part::Head)
}

pub fn final_norm(parameters: &Parameters<'_>, config: &DecoderConfig) -> Result<Norm> {
    parameters.norm(Part::FinalNorm, &[config.hidden_size], config.norm)
}

pub fn layer(parameters: &Parameters<'_>, index: usize, config: &DecoderConfig) -> Result<Layer> {
    let placement = config.norm_placement;
    let before = matches!(placement, NormPlacement::Pre | NormPlacement::Both);
    let after = matches!(placement, NormPlacement::Output | NormPlacement::Both);
    let one_norm = config.residual == Residual::ParallelOneNorm;
    let norm = |wanted: bool, part: Part| {
        let widths = [config.hidden_size];
        wanted
            .then(|| parameters.norm(part.at(index), &widths, config.norm))
            .transpose()
    };
    Ok(Layer {
        attention_norm: norm(before, Part::AttentionNorm)?,
        post_attention_norm: norm(after, Part::PostAttentionNorm)?,
        mlp_norm: norm(before && !one_norm, Part::MlpNorm)?,
        post_mlp_norm: norm(after, Part::PostMlpNorm)?,
        attention: attention(parameters, index, config)?,
        mlp: match &config.experts {
            Some(found) if found.layers[index] => {
                FeedForward::Experts(experts(parameters, index, found, config)?)
            }
            _ => FeedForward::Mlp(mlp(
                parameters,
                MlpParts::of(index),
                config.mlp.kind,
                config,
            )?),
        },
    })
}

fn attention(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
) -> Result<AttentionLayer> {
    let shape = config.attention_shape();
    let norm = |part: Part, whole: usize| {
        let width = match config.query_key_norm {
            QueryKeyNorm::None => return Ok(None),
            QueryKeyNorm::PerHead => shape.head_size,
            QueryKeyNorm::Whole => whole,
        };
        let norm = parameters.norm(part.at(index), &[width], config.norm);
        norm.map(Some)
    };
    let output = Part::AttentionOutput.at(index);
    Ok(AttentionLayer {
        qkv: parameters.qkv(index, &shape, config.qkv, Join::Never)?,
        output: parameters.linear(output, shape.width(), shape.hidden_size)?,
        query_norm: norm(Part::QueryNorm, shape.width())?,
        key_norm: norm(Part::KeyNorm, shape.kv_width())?,
    })
}

fn mlp(
    parameters: &Parameters<'_>,
    parts: MlpParts,
    kind: MlpKind,
    config: &DecoderConfig,
) -> Result<MlpLayer> {
    let hidden = config.hidden_size;
    let (input, output) = parameters.mlp(parts, hidden, kind, Join::Never)?;
    Ok(MlpLayer {
        input,
        output,
        activation: config.mlp.activation,
    })
}

fn experts(
    parameters: &Parameters<'_>,
    index: usize,
    experts: &Experts,
    config: &DecoderConfig,
) -> Result<ExpertLayer> {
    let hidden = config.hidden_size;
    let parts = |gate: Place, up: Place, down: Place| MlpParts {
        gate,
        up,
        down,
        ..MlpParts::of(index)
    };
    let list = match parameters.names().separates_experts() {
        true => (0..experts.count)
            .map(|expert| {
                let [gate, up, down] = [Part::ExpertGate, Part::ExpertUp, Part::ExpertDown]
                    .map(|part| part.at(index).expert(expert));
                mlp(parameters, parts(gate, up, down), MlpKind::Gated, config)
            })
            .collect::<Result<_>>()?,
        false => stacked_experts(parameters, index, experts.count, config)?,
    };
    let shared = match experts.shared {
        false => None,
        true => {
            let [gate, up, down] =
                [Part::SharedGate, Part::SharedUp, Part::SharedDown].map(|part| part.at(index));
            let mlp = mlp(parameters, parts(gate, up, down), MlpKind::Gated, config)?;
            // GGUF stores this one-row matrix as a vector.
            let router = parameters.tensor(Part::SharedRouter.at(index))?;
            Some((mlp, Linear::new(router.reshape((1, hidden))?, None)?))
        }
    };
    Ok(ExpertLayer {
        router: parameters.exact_linear(Part::Router.at(index), hidden, experts.count)?,
        experts: list,
        used: experts.used.min(experts.count),
        normalize: experts.normalize,
        shared,
    })
}

/// GGUF keeps all experts of a part in one tensor `[experts, out, in]`.
fn stacked_experts(
    parameters: &Parameters<'_>,
    index: usize,
    count: usize,
    config: &DecoderConfig,
) -> Result<Vec<MlpLayer>> {
    let stack = |part: Part| parameters.stacked_linears(part.at(index), count);
    let gates = stack(Part::ExpertGate)?.into_iter();
    let ups = stack(Part::ExpertUp)?.into_iter();
    let downs = stack(Part::ExpertDown)?.into_iter();
    gates
        .zip(ups)
        .zip(downs)
        .map(|((gate, up), output)| {
            Ok(MlpLayer {
                input: Projection::split(vec![gate, up])?,
                output,
                activation: config.mlp.activation,
            })
        })
        .collect()
}
