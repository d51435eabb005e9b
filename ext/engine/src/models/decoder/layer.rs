//! One decoder layer: attention and MLP around the residual stream.

use candle_core::Tensor;

use super::adapter::{Adapter, LayerAdapter, Slot};
use super::batch::{Batch, Past};
use super::config::{DecoderConfig, Residual};
use super::experts::ExpertLayer;
use crate::kernels::Activation;
use crate::models::parts::Part;
use crate::models::rope::Rotation;
use crate::nn::attention::AttentionOptions;
use crate::nn::{elementwise, Inventory, Linear, Norm, Projection};
use crate::{CancelToken, Error, Result};

pub struct Layer {
    pub attention_norm: Option<Norm>,
    pub post_attention_norm: Option<Norm>,
    pub mlp_norm: Option<Norm>,
    pub post_mlp_norm: Option<Norm>,
    pub attention: AttentionLayer,
    pub mlp: FeedForward,
}

pub struct AttentionLayer {
    /// Queries, keys and values.
    pub qkv: Projection,
    pub output: Linear,
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
}

#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum FeedForward {
    Mlp(MlpLayer),
    Experts(ExpertLayer),
}

pub struct MlpLayer {
    /// Gate and up, or up alone.
    pub input: Projection,
    pub output: Linear,
    pub activation: Activation,
}

/// What every layer of one forward needs to know.
pub struct Step<'a> {
    pub config: &'a DecoderConfig,
    pub batch: &'a Batch,
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
    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let norms = [
            &self.attention_norm,
            &self.post_attention_norm,
            &self.mlp_norm,
            &self.post_mlp_norm,
            &self.attention.query_norm,
            &self.attention.key_norm,
        ];
        for norm in norms.into_iter().flatten() {
            inventory.add_norm(norm)?;
        }
        inventory.add_projection(&self.attention.qkv)?;
        inventory.add_linear(&self.attention.output)?;
        match &self.mlp {
            FeedForward::Mlp(mlp) => mlp.list(inventory),
            FeedForward::Experts(experts) => experts.list(inventory),
        }
    }

    /// What an adapter can change.
    pub fn linears(&self) -> Vec<(Part, Slot, &Linear)> {
        fn each<'a>(
            projection: &'a Projection,
            parts: &'static [Part],
            slot: fn(usize) -> Slot,
        ) -> impl Iterator<Item = (Part, Slot, &'a Linear)> {
            let matrices = projection.matrices().iter().zip(parts).enumerate();
            matrices.map(move |(at, (linear, &part))| (part, slot(at), linear))
        }
        let attention = &self.attention;
        let parts: &[_] = match attention.qkv.matrices().len() {
            1 => &[Part::Qkv],
            _ => &[Part::Query, Part::Key, Part::Value],
        };
        let mut linears: Vec<_> = each(&attention.qkv, parts, Slot::Qkv).collect();
        linears.push((
            Part::AttentionOutput,
            Slot::AttentionOutput,
            &attention.output,
        ));
        if let FeedForward::Mlp(mlp) = &self.mlp {
            let parts: &[_] = match (mlp.input.matrices().len(), mlp.input.widths().len()) {
                (1, 1) => &[Part::Up],
                (1, _) => &[Part::GateUp],
                _ => &[Part::Gate, Part::Up],
            };
            linears.extend(each(&mlp.input, parts, Slot::MlpInput));
            linears.push((Part::Down, Slot::MlpOutput, &mlp.output));
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
        let updates = LayerAdapter::of(step.adapter, index);
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
        let updates = LayerAdapter::of(step.adapter, index);
        let (query, key, value) = self.project(x, config, updates)?;
        let rotation = step.rotation.as_ref();
        let rotation = rotation.filter(|rotation| rotation.applies(index));
        let local = config.windows[index].is_some();
        let rotation = rotation.map(|rotation| rotation.of_layer(local));
        let kind = config.attention_kind(index);
        let mut options = AttentionOptions::new(kind, config.attention_scale);
        options.soft_cap = config.attention_soft_cap;
        let parts = (&query, &key, &value);
        let attended = past.attend(index, parts, rotation.as_ref(), step.batch, &options)?;
        let attended = attended.reshape((tokens, config.head_count * config.head_size))?;
        self.output
            .forward_updated(&attended, updates.attention_output.as_ref())
    }

    /// Query, key and value as `[tokens, heads, head size]`, the former two normalized where the
    /// family does that.
    fn project(
        &self,
        x: &Tensor,
        config: &DecoderConfig,
        updates: &LayerAdapter,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let parts = self.qkv.heads(x, config.head_size, &updates.qkv)?;
        let Ok([query, key, value]) = <[Tensor; 3]>::try_from(parts) else {
            return Err(Error::Internal("attention needs three projections".into()));
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
    fn forward(&self, x: &Tensor, updates: &LayerAdapter, cancel: &CancelToken) -> Result<Tensor> {
        cancel.check()?;
        match self {
            Self::Mlp(mlp) => mlp.forward(x, updates),
            Self::Experts(experts) => experts.forward(x, cancel),
        }
    }
}

impl MlpLayer {
    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_projection(&self.input)?;
        inventory.add_linear(&self.output)
    }

    pub fn forward(&self, x: &Tensor, updates: &LayerAdapter) -> Result<Tensor> {
        let inner = self
            .input
            .activated(x, self.activation, &updates.mlp_input)?;
        self.output
            .forward_updated(&inner, updates.mlp_output.as_ref())
    }
}

fn normalized(x: Tensor, norm: Option<&Norm>) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}
