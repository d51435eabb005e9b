//! From the parts of a checkpoint to the layers of a decoder.

use candle_core::{DType, Tensor};

use super::attention::{AttentionLayer, HeadNorm, Qkv};
use super::blocks::Blocks;
use super::config::{DecoderConfig, OutputGate, QueryKeyNorm, Residual, ResidualWeights, Sinks};
use super::differential::Differential;
use super::expert_loading::experts;
use super::experts::ExpertLayer;
use super::heads::TransformLayer;
use super::indexer::IndexerLayer;
use super::lanes::LaneLayer;
use super::latent::LatentProjections;
use super::layer::{Branch, FeedForward, Layer, MlpActivation, MlpLayer};
use super::layer_inputs::LayerInput;
use super::mixers::Mixer;
use super::norm_gate::NormGate;
use super::query_experts::QueryExperts;
use super::shapes::KvSource;
use super::sparsity::SparseGate;
use crate::models::config::{Frequencies, MlpKind, NormConfig, NormPlacement, Positions};
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::models::positions::sinusoids;
use crate::models::projections::{Join, MlpParts};
use crate::nn::{Embedding, Linear, Norm, Projection};
use crate::Result;
use kernels::Xielu;

pub fn token_embedding(parameters: &Parameters<'_>, config: &DecoderConfig) -> Result<Embedding> {
    table(parameters, Part::TokenEmbedding, config)
}

/// `[vocabulary, hidden]`
fn table(parameters: &Parameters<'_>, part: Part, config: &DecoderConfig) -> Result<Embedding> {
    let width = match part {
        Part::Head => config.head_width(),
        _ => config.embedding_size,
    };
    let table = parameters.table(part, width)?;
    if table.count() == config.vocab_size {
        Ok(table)
    } else {
        Err(parameters.misfit(part, &[config.vocab_size, width]))
    }
}

/// What leads from the rows of the token table to hidden states of another width.
pub fn embedding_projection(
    parameters: &Parameters<'_>,
    config: &DecoderConfig,
) -> Result<Option<Linear>> {
    let (width, hidden) = (config.embedding_size, config.hidden_size);
    (width != hidden)
        .then(|| parameters.linear(Part::EmbeddingProjection, width, hidden))
        .transpose()
}

/// The table of positions, learned or computed.
pub fn positions(parameters: &Parameters<'_>, config: &DecoderConfig) -> Result<Option<Embedding>> {
    match config.positions {
        Positions::None => Ok(None),
        Positions::SinusoidalFrom { first, zero_row } => {
            let size = (config.max_positions + first as usize, config.hidden_size);
            sinusoids(size, Frequencies::Closed, zero_row, parameters).map(Some)
        }
        _ => {
            let table = parameters.tensor(Part::PositionEmbedding)?;
            Ok(Some(Embedding::Dense(table)))
        }
    }
}

pub fn head(
    parameters: &Parameters<'_>,
    config: &DecoderConfig,
    embedding: &Embedding,
) -> Result<Linear> {
    if ties_head(parameters, config) {
        let bias = match parameters.optional_tensor(Part::LogitBias)? {
            Some(bias) => Some(bias),
            None => parameters.bias(Part::Head)?,
        };
        return embedding.tied_output(bias);
    }
    parameters.linear(Part::Head, config.head_width(), config.vocab_size)
}

pub fn head_transform(
    parameters: &Parameters<'_>,
    config: &DecoderConfig,
) -> Result<Option<TransformLayer>> {
    let Some(transform) = config.head_transform else {
        return Ok(None);
    };
    let widths = [transform.width];
    Ok(Some(TransformLayer {
        dense: parameters.linear(Part::HeadDense, config.hidden_size, transform.width)?,
        activation: transform.activation,
        norm: if transform.norm {
            Some(parameters.norm(Part::HeadNorm, &widths, config.norm)?)
        } else {
            None
        },
    }))
}

/// Some rows of the head's matrix, `[rows, hidden]`.
pub fn head_rows(
    parameters: &Parameters<'_>,
    config: &DecoderConfig,
    embedding: &Embedding,
    rows: &[u32],
) -> Result<Tensor> {
    if ties_head(parameters, config) {
        embedding.rows(rows)
    } else {
        table(parameters, Part::Head, config)?.rows(rows)
    }
}

/// A checkpoint that does not say whether its head is tied shows it by having none.
fn ties_head(parameters: &Parameters<'_>, config: &DecoderConfig) -> bool {
    config.tied_head || !parameters.has(Part::Head)
}

pub fn final_norm(parameters: &Parameters<'_>, config: &DecoderConfig) -> Result<Option<Norm>> {
    let widths = [config.hidden_size];
    let epsilon = config.final_epsilon.unwrap_or(config.norm.epsilon);
    let norm = NormConfig {
        epsilon,
        ..config.norm
    };
    config
        .final_norm
        .then(|| parameters.norm(Part::FinalNorm, &widths, norm))
        .transpose()
}

pub fn layer(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
    blocks: &mut Blocks,
) -> Result<Layer> {
    let placement = config.placement(index);
    let before = placement != NormPlacement::Output;
    let first = index == 0 && config.unnormed_first;
    let after = matches!(placement, NormPlacement::Output | NormPlacement::Both);
    let one_norm = config.residual == Residual::ParallelOneNorm;
    let norm = |wanted: bool, part: Part| {
        let widths = [config.hidden_size];
        wanted
            .then(|| parameters.norm(part.at(index), &widths, config.norm))
            .transpose()
    };
    let has = config.sublayers(index);
    let mixes = has.attention || has.state;
    let sparse = config.experts.as_ref().filter(|_| has.mlp);
    let sparse = sparse.filter(|experts| experts.layers[index]);
    let normalized = sparse.is_some_and(|experts| experts.normalized);
    let experts_if = |postponed: bool| {
        let found = sparse.filter(|experts| experts.postponed == postponed);
        found
            .map(|found| experts(parameters, index, found, config))
            .transpose()
    };
    let gate = |wanted: bool, down: Part, up: Part| {
        let rank = config.norm_gate.filter(|_| wanted);
        let places = [down, up].map(|part| part.at(index));
        rank.map(|rank| NormGate::load(parameters, places, config.hidden_size, rank))
            .transpose()
    };
    Ok(Layer {
        attention_gate: gate(mixes, Part::AttentionNormDown, Part::AttentionNormUp)?,
        mlp_gate: gate(sparse.is_some(), Part::MlpNormDown, Part::MlpNormUp)?,
        attention_norm: norm(before && !first && mixes, Part::AttentionNorm)?,
        post_attention_norm: norm(after && mixes, Part::PostAttentionNorm)?,
        mlp_norm: norm(before && !one_norm && has.mlp, Part::MlpNorm)?,
        post_mlp_norm: norm((after || normalized) && has.mlp, Part::PostMlpNorm)?,
        block: blocks.load(parameters, index, config)?,
        mixer: Mixer::load(parameters, index, config)?,
        mlp: if has.mlp {
            Some(feed_forward(parameters, index, config, experts_if(false)?)?)
        } else {
            None
        },
        postponed: experts_if(true)?,
        attention_branch: branch(parameters, Part::AttentionResidual.at(index), 0, config)?,
        mlp_branch: branch(parameters, Part::MlpResidual.at(index), 1, config)?,
        input: LayerInput::load(parameters, index, config)?,
        scale: layer_scale(parameters, index, config)?,
        lanes: LaneLayer::load(parameters, index, config)?,
    })
}

/// `second` is 1 for the second branch of a layer.
fn branch(
    parameters: &Parameters<'_>,
    weights: Place,
    second: usize,
    config: &DecoderConfig,
) -> Result<Branch> {
    let hidden = config.hidden_size;
    let (kept, scale) = match config.residual_weights {
        ResidualWeights::None => (None, 1.0),
        ResidualWeights::Learned => (Some(parameters.shaped(weights, &[hidden])?), 1.0),
        ResidualWeights::Depth => {
            let count = (2 * (weights.layer + 1) + second) as f64;
            let kept = ((count - 1.0) / count).sqrt() as f32;
            (Some(factor(parameters, kept)?), count.sqrt().recip() as f32)
        }
        ResidualWeights::Fixed {
            attention,
            state,
            mlp,
        } => {
            let [kept, scale] = if second == 1 {
                mlp
            } else if config.sublayers(weights.layer).state {
                state
            } else {
                attention
            };
            (Some(factor(parameters, kept)?), scale)
        }
        ResidualWeights::Halved { stored: true, .. } => (None, 1.0),
        ResidualWeights::Halved { every, .. } => {
            let halvings = weights.layer / every.max(1);
            (None, 0.5_f32.powi(halvings.min(128) as i32))
        }
    };
    let factor = match second {
        1 => config.factors.mlp_output,
        _ => 1.0,
    };
    Ok(Branch {
        kept,
        scale: scale * factor * config.residual_scale,
    })
}

/// Of the residual stream.
fn factor(parameters: &Parameters<'_>, factor: f32) -> Result<Tensor> {
    let factor = Tensor::new(&[factor], parameters.device())?;
    Ok(factor.to_dtype(parameters.dtype())?)
}

/// What the residual stream is multiplied by after a layer.
fn layer_scale(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
) -> Result<Option<Tensor>> {
    match config.residual_weights {
        _ if config.layer_scale => {
            let place = Part::LayerScale.at(index);
            parameters.shaped(place, &[1]).map(Some)
        }
        ResidualWeights::Halved { every, .. } if (index + 1).is_multiple_of(every) => {
            factor(parameters, 0.5).map(Some)
        }
        _ => Ok(None),
    }
}

fn feed_forward(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
    experts: Option<ExpertLayer>,
) -> Result<FeedForward> {
    if let Some(state) = &config.state {
        if let Some(mlp) = state.load_mlp(parameters, index)? {
            return Ok(FeedForward::State(mlp));
        }
    }
    let beside = config
        .experts
        .as_ref()
        .is_some_and(|found| found.beside_mlp);
    match experts {
        Some(experts) if !beside => Ok(FeedForward::Experts(experts)),
        Some(experts) => {
            let place = Part::BesideExpertsNorm.at(index);
            let norm = parameters.norm(place, &[config.hidden_size], config.norm)?;
            let mlp = plain_mlp(parameters, index, config)?;
            Ok(FeedForward::Both(mlp, norm, experts))
        }
        None => Ok(FeedForward::Mlp(plain_mlp(parameters, index, config)?)),
    }
}

pub(super) fn attention(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
) -> Result<AttentionLayer> {
    let shape = config.attention_shape(index);
    let kv = config.shape(index).kv;
    let (width, (qkv, gate)) = (
        config.attended_width(index),
        qkv_and_gate(parameters, index, config)?,
    );
    let output = Part::AttentionOutput.at(index);
    let output = match parameters.optional_tensor(Part::AttentionOutputBias.at(index))? {
        _ if config.query_experts => None,
        Some(bias) => {
            let weight = parameters.matrix(output, width, shape.hidden_size)?;
            Some(parameters.assemble(weight, Some(bias))?)
        }
        None => Some(parameters.linear(output, width, shape.hidden_size)?),
    };
    Ok(AttentionLayer {
        qkv,
        indexer: match &config.indexer {
            Some(indexer) if indexer.layers[index] => {
                Some(IndexerLayer::load(parameters, index, indexer, config)?)
            }
            _ => None,
        },
        query_norm: head_norm(parameters, Part::QueryNorm, index, config, shape.head_count)?,
        key_norm: match kv {
            KvSource::Layer(_) => None,
            _ => head_norm(
                parameters,
                Part::KeyNorm,
                index,
                config,
                shape.kv_head_count,
            )?,
        },
        value_norm: if config.value_norm {
            let place = Part::Value.at(index);
            let plain = config.norm.plain();
            Some(parameters.norm(place, &[shape.value_size], plain)?)
        } else {
            None
        },
        sub_norm: if config.sub_norms {
            let place = Part::AttentionSubNorm.at(index);
            Some(parameters.norm(place, &[width], config.norm)?)
        } else {
            None
        },
        sinks: if has_sinks(config, index) {
            let sinks = parameters.shaped(Part::Sinks.at(index), &[shape.head_count])?;
            Some(sinks.to_dtype(DType::F32)?.to_vec1()?)
        } else {
            None
        },
        gate,
        differential: if config.differential {
            Some(Differential::load(parameters, index, config)?)
        } else {
            None
        },
        output,
    })
}

/// The bias of gate, queries, keys and values that transformers stores apart, beside their one matrix.
fn split_bias(parameters: &Parameters<'_>, index: usize) -> Result<Option<Tensor>> {
    let parts = [Part::OutputGate, Part::Query, Part::Key, Part::Value];
    let biases = parts.map(|part| parameters.bias(part.at(index)));
    let biases = biases.into_iter().collect::<Result<Option<Vec<_>>>>()?;
    Ok(biases.map(|biases| Tensor::cat(&biases, 0)).transpose()?)
}

/// Queries, keys and values, and the gate of their result, which may stand before them in one matrix (HRM).
fn qkv_and_gate(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
) -> Result<(Qkv, Option<Linear>)> {
    let (shape, fused) = (config.attention_shape(index), Part::GateQkv.at(index));
    if parameters.has(fused) {
        let widths = [shape.width(), shape.key_width(), shape.value_width()];
        let (gate, rows) = (shape.width(), widths.iter().sum());
        let all = parameters.matrix(fused, shape.hidden_size, gate + rows)?;
        let bias = match parameters.bias(fused)? {
            Some(bias) => Some(bias),
            None => split_bias(parameters, index)?,
        };
        let cut = |start: usize, count: usize| -> Result<Linear> {
            let bias = bias.as_ref().map(|bias| bias.narrow(0, start, count));
            parameters.assemble(all.narrow(0, start, count)?, bias.transpose()?)
        };
        let qkv = Projection::fused(cut(gate, rows)?, &widths)?;
        return Ok((Qkv::Plain(qkv), Some(cut(0, gate)?)));
    }
    if parameters.has(Part::QueryGate.at(index)) {
        return queries_with_gates(parameters, index, config);
    }
    let experts = config.experts.as_ref().filter(|_| config.query_experts);
    let qkv = match (config.latent, experts) {
        (Some(latent), _) => {
            Qkv::Latent(LatentProjections::load(parameters, index, latent, config)?)
        }
        (None, Some(experts)) => {
            Qkv::Experts(QueryExperts::load(parameters, index, experts, config)?)
        }
        (None, None) => Qkv::Plain(projections(parameters, index, config)?),
    };
    Ok((qkv, output_gate(parameters, index, config)?))
}

/// Every head's query stands before its gate in one matrix (Qwen 3 Next).
fn queries_with_gates(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
) -> Result<(Qkv, Option<Linear>)> {
    let (shape, place) = (config.attention_shape(index), Part::QueryGate.at(index));
    let (heads, size, hidden) = (shape.head_count, shape.head_size, shape.hidden_size);
    let both = parameters.matrix(place, hidden, 2 * heads * size)?;
    let both = both.reshape((heads, 2 * size, hidden))?;
    let biases = match parameters.bias(place)? {
        Some(bias) => Some(bias.reshape((heads, 2 * size))?),
        None => None,
    };
    let cut = |start: usize| -> Result<Linear> {
        let rows = both.narrow(1, start, size)?.contiguous()?;
        let bias = match &biases {
            Some(bias) => Some(bias.narrow(1, start, size)?.flatten_all()?),
            None => None,
        };
        parameters.assemble(rows.reshape((heads * size, hidden))?, bias)
    };
    let linear = |part: Part, width| parameters.linear(part.at(index), hidden, width);
    let qkv = vec![
        cut(0)?,
        linear(Part::Key, shape.key_width())?,
        linear(Part::Value, shape.value_width())?,
    ];
    Ok((Qkv::Plain(Projection::split(qkv)?), Some(cut(size)?)))
}

/// Its bias, where there is one, is one per head.
fn output_gate(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
) -> Result<Option<Linear>> {
    let heads = config.shape(index).head_count;
    let (hidden, attended) = (config.hidden_size, config.attended_width(index));
    let width = match config.output_gate {
        OutputGate::None => return Ok(None),
        OutputGate::SigmoidPerHead | OutputGate::Softplus { per_head: true } => heads,
        OutputGate::Sigmoid | OutputGate::Softplus { per_head: false } => attended,
    };
    let (gate, bias) = (Part::OutputGate.at(index), Part::OutputGateBias.at(index));
    if !parameters.has(bias) {
        return parameters.linear(gate, hidden, width).map(Some);
    }
    let bias = parameters.shaped(bias, &[heads])?.unsqueeze(1)?;
    let bias = bias.broadcast_as((heads, width / heads))?;
    let weight = parameters.matrix(gate, hidden, width)?;
    let bias = Some(bias.flatten_all()?);
    parameters.assemble(weight, bias).map(Some)
}

/// Query, key and value, as far as a layer has them.
fn projections(
    parameters: &Parameters<'_>,
    index: usize,
    config: &DecoderConfig,
) -> Result<Projection> {
    let shape = config.attention_shape(index);
    let query = (Part::Query.at(index), shape.width());
    let key = (Part::Key.at(index), shape.key_width());
    match config.shape(index).kv {
        KvSource::Own => parameters.qkv(index, &shape, config.qkv, Join::Never),
        KvSource::KeysAlone => parameters.split(&[query, key], shape.hidden_size),
        KvSource::Layer(_) => parameters.split(&[query], shape.hidden_size),
    }
}

fn has_sinks(config: &DecoderConfig, layer: usize) -> bool {
    match config.sinks {
        Sinks::None => false,
        Sinks::All => true,
        Sinks::Windowed => config.windows[layer].is_some(),
    }
}

fn head_norm(
    parameters: &Parameters<'_>,
    part: Part,
    index: usize,
    config: &DecoderConfig,
    heads: usize,
) -> Result<Option<HeadNorm>> {
    let size = config.shape(index).head_size;
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
    if config.factors.gate != 1.0 {
        mlp.activation = MlpActivation::Scaled(config.mlp.activation, config.factors.gate);
    }
    let closed = config.sparsity.get(index).copied().unwrap_or(0.0);
    if closed > 0.0 {
        let gate = SparseGate::new(config.mlp.activation, closed);
        mlp.activation = MlpActivation::Sparse(gate);
    }
    Ok(mlp)
}

/// Its parameters are tensors, or lists of the metadata (GGUF).
fn xielu(parameters: &Parameters<'_>, index: usize) -> Result<Xielu> {
    let listed = |key: &str| -> Result<Option<f32>> {
        let list = parameters.source().metadata().opt_f32s(key)?;
        Ok(list.and_then(|list| list.get(index).copied()))
    };
    let number = |part: Part, key: &str| -> Result<f32> {
        if let Some(number) = listed(key)? {
            return Ok(number);
        }
        let tensor = parameters.tensor(part.at(index))?.to_dtype(DType::F32)?;
        let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        values
            .first()
            .copied()
            .ok_or_else(|| parameters.missing(part.at(index)))
    };
    let softplus = |x: f32| x.exp().ln_1p();
    let linear = number(Part::XieluLinear, "xielu.beta")?;
    Ok(Xielu {
        positive: softplus(number(Part::XieluPositive, "xielu.alpha_p")?),
        negative: linear + softplus(number(Part::XieluNegative, "xielu.alpha_n")?),
        linear,
        most: number(Part::XieluMost, "xielu.eps")?,
    })
}
