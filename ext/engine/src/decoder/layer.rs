//! One decoder layer: attention and MLP around the residual stream.

use candle_core::Tensor;

use super::cache::KvCache;
use super::config::{DecoderConfig, Norm, Residual};
use super::experts::ExpertLayer;
use super::rope::Rotation;
use crate::kernels::{self, Activation, RopeKind};
use crate::nn::attention::{attention, AttentionKind, AttentionOptions};
use crate::nn::elementwise;
use crate::nn::linear::Epilogue;
use crate::nn::Linear;
use crate::{CancelToken, Result};

pub struct Layer {
    pub attention_norm: Option<NormLayer>,
    pub post_attention_norm: Option<NormLayer>,
    pub mlp_norm: Option<NormLayer>,
    pub post_mlp_norm: Option<NormLayer>,
    pub attention: AttentionLayer,
    pub mlp: FeedForward,
}

pub struct NormLayer {
    pub kind: Norm,
    pub weight: Tensor,
    pub bias: Option<Tensor>,
}

pub struct AttentionLayer {
    pub qkv: Qkv,
    pub output: Linear,
    pub query_norm: Option<NormLayer>,
    pub key_norm: Option<NormLayer>,
}

#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum Qkv {
    Split {
        query: Linear,
        key: Linear,
        value: Linear,
    },
    /// Rows in the order queries, keys, values.
    Fused(Linear),
}

#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum FeedForward {
    Mlp(MlpLayer),
    Experts(ExpertLayer),
}

pub struct MlpLayer {
    pub kind: MlpWeights,
    pub down: Linear,
    pub activation: Activation,
}

pub enum MlpWeights {
    Gated { gate: Linear, up: Linear },
    GatedFused(Linear),
    Plain(Linear),
}

/// What every layer of one forward needs to know.
pub struct Step<'a> {
    pub config: &'a DecoderConfig,
    pub global: Option<&'a Rotation>,
    pub local: Option<&'a Rotation>,
    /// `0..tokens`, the rows of the rotations.
    pub positions: &'a Tensor,
    pub cancel: &'a CancelToken,
}

/// The residual stream, with its latest addition held back so that adding and normalizing are one
/// kernel.
pub struct Stream {
    hidden: Tensor,
    pending: Option<Tensor>,
}

impl Stream {
    pub fn new(hidden: Tensor) -> Self {
        Self {
            hidden,
            pending: None,
        }
    }

    fn add(&mut self, addition: Tensor, scale: f32) -> Result<()> {
        self.settle()?;
        self.pending = Some(elementwise::scale(&addition, scale)?);
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if let Some(pending) = self.pending.take() {
            self.hidden = elementwise::add(&self.hidden, &pending)?;
        }
        Ok(())
    }

    /// The stream, normalized if there is a norm.
    pub fn read(&mut self, norm: Option<&NormLayer>) -> Result<Tensor> {
        let Some(norm) = norm else {
            self.settle()?;
            return Ok(self.hidden.clone());
        };
        match self.pending.take() {
            Some(pending) => {
                let (sum, normalized) = norm.add_forward(&pending, &self.hidden)?;
                self.hidden = sum;
                Ok(normalized)
            }
            None => norm.forward(&self.hidden),
        }
    }
}

impl Layer {
    pub fn forward(
        &self,
        index: usize,
        stream: &mut Stream,
        cache: &mut KvCache,
        step: &Step<'_>,
    ) -> Result<()> {
        let scale = step.config.residual_scale;
        let input = stream.read(self.attention_norm.as_ref())?;
        let attended = self.attention.forward(index, &input, cache, step)?;
        match step.config.residual {
            Residual::Sequential => {
                stream.add(
                    normalized(attended, self.post_attention_norm.as_ref())?,
                    scale,
                )?;
                let input = stream.read(self.mlp_norm.as_ref())?;
                let result = self.mlp.forward(&input, step.cancel)?;
                stream.add(normalized(result, self.post_mlp_norm.as_ref())?, scale)
            }
            Residual::ParallelOneNorm => {
                let result = self.mlp.forward(&input, step.cancel)?;
                stream.add(elementwise::add(&attended, &result)?, scale)
            }
            Residual::ParallelTwoNorms => {
                let input = stream.read(self.mlp_norm.as_ref())?;
                let result = self.mlp.forward(&input, step.cancel)?;
                stream.add(elementwise::add(&attended, &result)?, scale)
            }
        }
    }
}

impl NormLayer {
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self.kind {
            Norm::Rms {
                epsilon,
                offset: 0.0,
            } => kernels::rms_norm(x, &self.weight, epsilon),
            Norm::Rms { epsilon, .. } => kernels::rms_norm_offset(x, &self.weight, epsilon),
            Norm::Layer { epsilon } => {
                kernels::layer_norm(x, &self.weight, self.bias.as_ref(), epsilon)
            }
        }
    }

    /// `x + residual`, and the norm of it.
    fn add_forward(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        match self.kind {
            Norm::Rms { epsilon, offset } => {
                kernels::add_rms_norm(x, residual, &self.weight, epsilon, offset)
            }
            Norm::Layer { epsilon } => {
                kernels::add_layer_norm(x, residual, &self.weight, self.bias.as_ref(), epsilon)
            }
        }
    }
}

impl AttentionLayer {
    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        cache: &mut KvCache,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        step.cancel.check()?;
        let config = step.config;
        let tokens = x.dim(0)?;
        let (query, key, value) = self.project(x, config)?;
        let window = config.windows[index];
        let rotation = match (window, step.local) {
            (Some(_), Some(local)) => Some(local),
            _ => step.global,
        };
        let (query, key) = rotate(query, key, index, rotation, step)?;
        let (keys, values) = cache.append(index, &key, &value)?;
        let kind = match window {
            Some(window) => AttentionKind::Window {
                left: window.saturating_sub(1),
                right: 0,
            },
            None => AttentionKind::Causal,
        };
        let mut options = AttentionOptions::new(kind, config.attention_scale);
        options.soft_cap = config.attention_soft_cap;
        let boundaries = [[0, tokens as u32], [0, keys.dim(0)? as u32]];
        let attended = attention(
            &query,
            &keys,
            &values,
            &boundaries[0],
            &boundaries[1],
            &options,
        )?;
        self.output
            .forward(&attended.reshape((tokens, config.head_count * config.head_size))?)
    }

    /// Query, key and value as `[tokens, heads, head size]`, the former two normalized where the
    /// family does that.
    fn project(&self, x: &Tensor, config: &DecoderConfig) -> Result<(Tensor, Tensor, Tensor)> {
        let (heads, kv_heads, size) = (config.head_count, config.kv_head_count, config.head_size);
        let tokens = x.dim(0)?;
        let (query, key, value) = match &self.qkv {
            Qkv::Split { query, key, value } => {
                let [query, key, value] = Linear::forward_each([query, key, value], x)?;
                (
                    query.reshape((tokens, heads, size))?,
                    key.reshape((tokens, kv_heads, size))?,
                    value.reshape((tokens, kv_heads, size))?,
                )
            }
            Qkv::Fused(linear) => {
                let all = linear
                    .forward(x)?
                    .reshape((tokens, heads + 2 * kv_heads, size))?;
                (
                    all.narrow(1, 0, heads)?,
                    all.narrow(1, heads, kv_heads)?,
                    all.narrow(1, heads + kv_heads, kv_heads)?,
                )
            }
        };
        Ok((
            normalized_heads(query, self.query_norm.as_ref())?,
            normalized_heads(key, self.key_norm.as_ref())?,
            value,
        ))
    }
}

/// A weight as long as one head normalizes heads, a longer one all heads together.
fn normalized_heads(x: Tensor, norm: Option<&NormLayer>) -> Result<Tensor> {
    let Some(norm) = norm else { return Ok(x) };
    let (tokens, heads, size) = x.dims3()?;
    if norm.weight.elem_count() == size {
        return norm.forward(&x);
    }
    let whole = norm.forward(&x.reshape((tokens, heads * size))?)?;
    Ok(whole.reshape((tokens, heads, size))?)
}

fn rotate(
    query: Tensor,
    key: Tensor,
    index: usize,
    rotation: Option<&Rotation>,
    step: &Step<'_>,
) -> Result<(Tensor, Tensor)> {
    let super::config::Positions::Rope(rope) = &step.config.positions else {
        return Ok((query, key));
    };
    let Some(rotation) = rotation.filter(|_| rope.layers[index]) else {
        return Ok((query, key));
    };
    let kind: RopeKind = rope.pairing;
    let turn = |x: &Tensor| {
        let (cos, sin) = (&rotation.cos, &rotation.sin);
        kernels::rope(x, cos, sin, step.positions, kind, rope.rotary_size)
    };
    Ok((turn(&query)?, turn(&key)?))
}

impl FeedForward {
    fn forward(&self, x: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
        cancel.check()?;
        match self {
            Self::Mlp(mlp) => mlp.forward(x),
            Self::Experts(experts) => experts.forward(x, cancel),
        }
    }
}

impl MlpLayer {
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = match &self.kind {
            MlpWeights::Gated { gate, up } => {
                let [gate, up] = Linear::forward_each([gate, up], x)?;
                kernels::gated(&gate, &up, self.activation)?
            }
            MlpWeights::GatedFused(both) => {
                kernels::gated_fused(&both.forward(x)?, self.activation)?
            }
            MlpWeights::Plain(up) => {
                let epilogue = Epilogue {
                    activation: Some(self.activation),
                    ..Default::default()
                };
                up.forward_with(x, &epilogue)?
            }
        };
        self.down.forward(&inner)
    }
}

fn normalized(x: Tensor, norm: Option<&NormLayer>) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}
