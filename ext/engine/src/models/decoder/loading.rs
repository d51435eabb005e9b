//! From the parts of a checkpoint to the layers of a decoder.

use candle_core::{DType, Tensor};

use super::config::{DecoderConfig, QueryKeyNorm, Residual};
use super::expert_loading::experts;
use super::latent::LatentProjections;
use super::layer::{
    AttentionLayer, FeedForward, HeadNorm, Layer, MlpActivation, MlpLayer, Qkv, Xielu,
};
use crate::models::config::{MlpKind, NormPlacement};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::projections::{Join, MlpParts};
use crate::nn::{Embedding, Linear, Norm};
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
    let sparse = config.experts.as_ref();
    let sparse = sparse.filter(|experts| experts.layers[index]);
    let normalized = sparse.is_some_and(|experts| experts.normalized);
    let experts_if = |postponed: bool| {
        let found = sparse.filter(|experts| experts.postponed == postponed);
        found
            .map(|found| experts(parameters, index, found, config))
            .transpose()
    };
    Ok(Layer {
        attention_norm: norm(before, Part::AttentionNorm)?,
        post_attention_norm: norm(after, Part::PostAttentionNorm)?,
        mlp_norm: norm(before && !one_norm, Part::MlpNorm)?,
        post_mlp_norm: norm(after || normalized, Part::PostMlpNorm)?,
        attention: attention(parameters, index, config)?,
        mlp: match experts_if(false)? {
            Some(experts) => FeedForward::Experts(experts),
            None => FeedForward::Mlp(plain_mlp(parameters, index, config)?),
        },
        postponed: experts_if(true)?,
    })
}

fn attention(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
) -> Result<AttentionLayer> {
    let shape = config.attention_shape();
    let width = config.attended_width();
    let output = Part::AttentionOutput.at(index);
    let output = match parameters.optional_tensor(Part::AttentionOutputBias.at(index))? {
        Some(bias) => {
            let weight = parameters.matrix(output, width, shape.hidden_size)?;
            parameters.assemble(weight, Some(bias))?
        }
        None => parameters.linear(output, width, shape.hidden_size)?,
    };
    let gate = Part::OutputGate.at(index);
    Ok(AttentionLayer {
        qkv: match config.latent {
            Some(latent) => {
                Qkv::Latent(LatentProjections::load(parameters, index, latent, config)?)
            }
            None => Qkv::Plain(parameters.qkv(index, &shape, config.qkv, Join::Never)?),
        },
        query_norm: head_norm(parameters, Part::QueryNorm, index, config, shape.head_count)?,
        key_norm: head_norm(
            parameters,
            Part::KeyNorm,
            index,
            config,
            shape.kv_head_count,
        )?,
        sub_norm: match config.sub_norms {
            true => {
                let place = Part::AttentionSubNorm.at(index);
                Some(parameters.norm(place, &[width], config.norm)?)
            }
            false => None,
        },
        sinks: match config.sinks {
            true => {
                let sinks = parameters.shaped(Part::Sinks.at(index), &[shape.head_count])?;
                Some(sinks.to_dtype(DType::F32)?.to_vec1()?)
            }
            false => None,
        },
        gate: match config.output_gate {
            true => Some(parameters.linear(gate, shape.hidden_size, width)?),
            false => None,
        },
        output,
    })
}

fn head_norm(
    parameters: &Parameters<'_>,
    part: Part,
    index: usize,
    config: &DecoderConfig,
    heads: usize,
) -> Result<Option<HeadNorm>> {
    let size = config.head_size;
    let (width, norm) = match config.query_key_norm {
        QueryKeyNorm::None => return Ok(None),
        QueryKeyNorm::PerHead => (size, config.norm),
        QueryKeyNorm::Whole => (heads * size, config.norm),
        QueryKeyNorm::EachHead | QueryKeyNorm::Plain => (size, config.norm.plain()),
    };
    let weights = match config.query_key_norm {
        QueryKeyNorm::EachHead => Some(parameters.shaped(part.at(index), &[heads, size])?),
        _ => None,
    };
    let norm = parameters.norm(part.at(index), &[width], norm)?;
    Ok(Some(HeadNorm { norm, weights }))
}

pub fn mlp(
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
        activation: MlpActivation::Plain(config.mlp.activation),
        sub_norm: None,
    })
}

/// The MLP of a layer without experts.
fn plain_mlp(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
) -> Result<MlpLayer> {
    let mut mlp = mlp(parameters, MlpParts::of(index), config.mlp.kind, config)?;
    if config.sub_norms {
        let width = mlp.output.inputs();
        let place = Part::MlpSubNorm.at(index);
        mlp.sub_norm = Some(parameters.norm(place, &[width], config.norm)?);
    }
    if config.xielu {
        mlp.activation = MlpActivation::Xielu(xielu(parameters, index)?);
    }
    Ok(mlp)
}

fn xielu(parameters: &Parameters<'_>, index: usize) -> Result<Xielu> {
    let number = |part: Part| -> Result<f32> {
        let tensor = parameters.tensor(part.at(index))?.to_dtype(DType::F32)?;
        let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        values
            .first()
            .copied()
            .ok_or_else(|| parameters.missing(part.at(index)))
    };
    let softplus = |x: f32| x.exp().ln_1p();
    let linear = number(Part::XieluLinear)?;
    Ok(Xielu {
        positive: softplus(number(Part::XieluPositive)?),
        negative: linear + softplus(number(Part::XieluNegative)?),
        linear,
        most: number(Part::XieluMost)?,
    })
}
