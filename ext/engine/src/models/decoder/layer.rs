//! One decoder layer: attention and MLP around the residual stream.

use candle_core::Tensor;

use super::adapter::{Adapter, Part, Updates};
use super::batch::{Batch, Past};
use super::config::{DecoderConfig, Residual};
use super::experts::ExpertLayer;
use super::rope::Rotation;
use crate::kernels::{self, Activation};
use crate::nn::attention::{attention, AttentionOptions};
use crate::nn::elementwise;
use crate::nn::linear::Epilogue;
use crate::nn::{Linear, Norm};
use crate::{CancelToken, Result};

pub struct Layer {
    pub attention_norm: Option<Norm>,
    pub post_attention_norm: Option<Norm>,
    pub mlp_norm: Option<Norm>,
    pub post_mlp_norm: Option<Norm>,
    pub attention: AttentionLayer,
    pub mlp: FeedForward,
}

pub struct AttentionLayer {
    pub qkv: Qkv,
    pub output: Linear,
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
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
    pub batch: &'a Batch<'a>,
    pub rotation: Option<Rotation<'a>>,
    pub adapter: Option<&'a Adapter>,
    pub cancel: &'a CancelToken,
}

/// The residual stream, with its latest addition held back so that adding and normalizing are one
/// kernel, which writes the sum over the addition.
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
    pub fn read(&mut self, norm: Option<&Norm>) -> Result<Tensor> {
        let Some(norm) = norm else {
            self.settle()?;
            return Ok(self.hidden.clone());
        };
        match self.pending.take() {
            Some(pending) => {
                let (sum, normalized) = norm.add_forward(pending, &self.hidden)?;
                self.hidden = sum;
                Ok(normalized)
            }
            None => norm.forward(&self.hidden),
        }
    }
}

impl Layer {
    /// What an adapter can change.
    pub fn linears(&self) -> Vec<(Part, &Linear)> {
        let attention = &self.attention;
        let mut linears = match &attention.qkv {
            Qkv::Split { query, key, value } => {
                vec![(Part::Query, query), (Part::Key, key), (Part::Value, value)]
            }
            Qkv::Fused(linear) => vec![(Part::Qkv, linear)],
        };
        linears.push((Part::Output, &attention.output));
        if let FeedForward::Mlp(mlp) = &self.mlp {
            match &mlp.kind {
                MlpWeights::Gated { gate, up } => {
                    linears.extend([(Part::Gate, gate), (Part::Up, up)]);
                }
                MlpWeights::GatedFused(both) => linears.push((Part::GateUp, both)),
                MlpWeights::Plain(up) => linears.push((Part::Up, up)),
            }
            linears.push((Part::Down, &mlp.down));
        }
        linears
    }

    pub fn forward(
        &self,
        index: usize,
        stream: &mut Stream,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<()> {
        let scale = step.config.residual_scale;
        let input = stream.read(self.attention_norm.as_ref())?;
        let attended = self.attention.forward(index, &input, past, step)?;
        let updates = Updates::of(step.adapter, index);
        match step.config.residual {
            Residual::Sequential => {
                stream.add(
                    normalized(attended, self.post_attention_norm.as_ref())?,
                    scale,
                )?;
                let input = stream.read(self.mlp_norm.as_ref())?;
                let result = self.mlp.forward(&input, updates, step.cancel)?;
                stream.add(normalized(result, self.post_mlp_norm.as_ref())?, scale)
            }
            Residual::ParallelOneNorm => {
                let result = self.mlp.forward(&input, updates, step.cancel)?;
                stream.add(elementwise::add(&attended, &result)?, scale)
            }
            Residual::ParallelTwoNorms => {
                let input = stream.read(self.mlp_norm.as_ref())?;
                let result = self.mlp.forward(&input, updates, step.cancel)?;
                stream.add(elementwise::add(&attended, &result)?, scale)
            }
        }
    }
}

impl AttentionLayer {
    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        step.cancel.check()?;
        let config = step.config;
        let tokens = x.dim(0)?;
        let updates = Updates::of(step.adapter, index);
        let (query, key, value) = self.project(x, config, updates)?;
        let (query, key) = match &step.rotation {
            Some(rotation) if rotation.applies(index) => {
                let local = config.windows[index].is_some();
                (rotation.turn(&query, local)?, rotation.turn(&key, local)?)
            }
            _ => (query, key),
        };
        let others = past.attended(index, key, value, step.batch)?;
        let kind = config.attention_kind(index);
        let mut options = AttentionOptions::new(kind, config.attention_scale);
        options.soft_cap = config.attention_soft_cap;
        let attended = attention(
            &query,
            &others.keys,
            &others.values,
            &step.batch.boundaries,
            &others.boundaries,
            &options,
        )?;
        let attended = attended.reshape((tokens, config.head_count * config.head_size))?;
        updates.forward(Part::Output, &self.output, &attended)
    }

    /// Query, key and value as `[tokens, heads, head size]`, the former two normalized where the
    /// family does that.
    fn project(
        &self,
        x: &Tensor,
        config: &DecoderConfig,
        updates: Updates<'_>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let (heads, kv_heads, size) = (config.head_count, config.kv_head_count, config.head_size);
        let tokens = x.dim(0)?;
        let cut = |all: Tensor| -> Result<(Tensor, Tensor, Tensor)> {
            let all = all.reshape((tokens, heads + 2 * kv_heads, size))?;
            Ok((
                all.narrow(1, 0, heads)?,
                all.narrow(1, heads, kv_heads)?,
                all.narrow(1, heads + kv_heads, kv_heads)?,
            ))
        };
        let (query, key, value) = match &self.qkv {
            Qkv::Fused(linear) => cut(updates.forward(Part::Qkv, linear, x)?)?,
            Qkv::Split { query, key, value } => {
                let parts = [(Part::Query, query), (Part::Key, key), (Part::Value, value)];
                let joined = match parts.iter().any(|&(part, _)| updates.has(part)) {
                    true => None,
                    false => Linear::forward_joined(&[query, key, value], x)?,
                };
                match joined {
                    Some(all) => cut(all)?,
                    None => {
                        let [query, key, value] = updates.forward_each(parts, x)?;
                        (
                            query.reshape((tokens, heads, size))?,
                            key.reshape((tokens, kv_heads, size))?,
                            value.reshape((tokens, kv_heads, size))?,
                        )
                    }
                }
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
fn normalized_heads(x: Tensor, norm: Option<&Norm>) -> Result<Tensor> {
    let Some(norm) = norm else { return Ok(x) };
    let (tokens, heads, size) = x.dims3()?;
    if norm.width() == size {
        return norm.forward(&x);
    }
    let whole = norm.forward(&x.reshape((tokens, heads * size))?)?;
    Ok(whole.reshape((tokens, heads, size))?)
}

impl FeedForward {
    fn forward(&self, x: &Tensor, updates: Updates<'_>, cancel: &CancelToken) -> Result<Tensor> {
        cancel.check()?;
        match self {
            Self::Mlp(mlp) => mlp.forward(x, updates),
            Self::Experts(experts) => experts.forward(x, cancel),
        }
    }
}

impl MlpLayer {
    pub fn forward(&self, x: &Tensor, updates: Updates<'_>) -> Result<Tensor> {
        let inner = match &self.kind {
            MlpWeights::Gated { gate, up }
                if !updates.has(Part::Gate) && !updates.has(Part::Up) =>
            {
                Linear::forward_gated(gate, up, x, self.activation)?
            }
            MlpWeights::Gated { gate, up } => {
                let parts = [(Part::Gate, gate), (Part::Up, up)];
                let [gate, up] = updates.forward_each(parts, x)?;
                kernels::gated(&gate, &up, self.activation)?
            }
            MlpWeights::GatedFused(both) if !updates.has(Part::GateUp) => {
                both.forward_gated_fused(x, self.activation)?
            }
            MlpWeights::GatedFused(both) => {
                kernels::gated_fused(&updates.forward(Part::GateUp, both, x)?, self.activation)?
            }
            MlpWeights::Plain(up) if updates.has(Part::Up) => {
                kernels::activate(&updates.forward(Part::Up, up, x)?, self.activation)?
            }
            MlpWeights::Plain(up) => {
                let epilogue = Epilogue {
                    activation: Some(self.activation),
                    ..Default::default()
                };
                up.forward_with(x, &epilogue)?
            }
        };
        updates.forward(Part::Down, &self.down, &inner)
    }
}

fn normalized(x: Tensor, norm: Option<&Norm>) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}
