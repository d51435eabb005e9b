//! Attention of one decoder layer: projections, norms of heads, rotation, gates.

use candle_core::Tensor;

use super::adapter_rows::LayerUpdates;
use super::batch::{Keys, Past};
use super::config::{OutputGate, QueryKeyNorm};
use super::differential::Differential;
use super::indexer::{Chosen, IndexerLayer};
use super::latent::LatentProjections;
use super::layer::{normalized, Step};
use super::query_experts::{QueryExperts, Routes};
use super::shapes::{KvSource, LayerShape};
use crate::models::config::Relative;
use crate::models::parts::Part;
use crate::nn::attention::{AttentionBias, AttentionOptions};
use crate::nn::{elementwise, Inventory, Linear, Norm, Projection};
use crate::{Error, Result};
use kernels::{Activation, Pointwise};

pub struct AttentionLayer {
    pub qkv: Qkv,
    /// What chooses keys; without one, those of the layer before are seen.
    pub indexer: Option<IndexerLayer>,
    /// `None` where experts lead back from attention.
    pub output: Option<Linear>,
    pub query_norm: Option<HeadNorm>,
    pub key_norm: Option<HeadNorm>,
    pub value_norm: Option<Norm>,
    /// Of what goes into `output`.
    pub sub_norm: Option<Norm>,
    /// One per head.
    pub sinks: Option<Vec<f32>>,
    /// A function of it multiplies what goes into `output`.
    pub gate: Option<Linear>,
    pub differential: Option<Differential>,
}

/// What makes queries, keys and values.
#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum Qkv {
    Plain(Projection),
    Latent(LatentProjections),
    Experts(QueryExperts),
}

/// A norm of queries or keys.
pub struct HeadNorm {
    pub norm: Norm,
    /// `[heads, head size]` where every head has weights of its own.
    pub weights: Option<Tensor>,
}

/// What goes into attention.
pub(super) struct Projected {
    /// `[tokens, heads, width]`, and so are keys and values of its own.
    pub query: Tensor,
    pub keys: Keys,
    /// What queries are made of, where they have two matrices.
    pub short: Option<Tensor>,
    /// Its sigmoid multiplies what goes into `output`, `[tokens, heads · value size]`.
    pub gate: Option<Tensor>,
}

impl Projected {
    fn plain(query: Tensor, keys: Keys) -> Self {
        Self {
            query,
            keys,
            short: None,
            gate: None,
        }
    }
}

impl AttentionLayer {
    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if let Some(norm) = &self.sub_norm {
            inventory.add_norm(norm)?;
        }
        for norm in [&self.query_norm, &self.key_norm].into_iter().flatten() {
            inventory.add_norm(&norm.norm)?;
        }
        match &self.qkv {
            Qkv::Plain(qkv) => inventory.add_projection(qkv)?,
            Qkv::Latent(latent) => latent.list(inventory)?,
            Qkv::Experts(experts) => experts.list(inventory)?,
        }
        if let Some(output) = &self.output {
            inventory.add_linear(output)?;
        }
        if let Some(indexer) = &self.indexer {
            indexer.list(inventory)?;
        }
        match &self.gate {
            Some(gate) => inventory.add_linear(gate),
            None => Ok(()),
        }
    }

    /// What it gives of `[tokens, hidden]`, with these additions to its matrices.
    pub(super) fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
        chosen: &mut Option<Chosen>,
        updates: &LayerUpdates<'_>,
    ) -> Result<Tensor> {
        step.cancel.check()?;
        let config = step.config;
        let tokens = x.dim(0)?;
        let rotation = step.rotation.as_ref();
        let rotation = rotation.filter(|rotation| rotation.applies(index));
        let local = config.windows[index].is_some();
        let mut rotation = rotation.map(|rotation| rotation.of_layer(index, local));
        let routes = match &self.qkv {
            Qkv::Experts(experts) => experts.route(x)?,
            Qkv::Plain(_) | Qkv::Latent(_) => Routes::default(),
        };
        let shape = config.shape(index);
        let Projected {
            mut query,
            mut keys,
            short,
            gate,
        } = self.project(x, shape, step, updates, &routes)?;
        if let (Some(indexer), Some(short)) = (&self.indexer, &short) {
            let parts = (x, short, updates);
            let found = indexer.choose(index, parts, rotation.as_ref(), past, step.batch)?;
            *chosen = Some(found).filter(|found| found.iter().any(Option::is_some));
        }
        if let (Some(differential), Keys::Own(key, value)) = (&self.differential, &mut keys) {
            let parts = (query, key.clone(), value.clone());
            (query, *key, *value) = differential.spread(parts)?;
        }
        if config.norm_after_rope {
            let rotation = rotation.take();
            let normalizes = rotation.is_some() || config.query_key_norm != QueryKeyNorm::Plain;
            let finished = |mut x: Tensor, norm: &Option<HeadNorm>| -> Result<Tensor> {
                if let Some(rotation) = &rotation {
                    x = rotation.rotate(&x)?;
                }
                normalized_heads(x, norm.as_ref().filter(|_| normalizes))
            };
            query = finished(query, &self.query_norm)?;
            if let Keys::Own(key, _) = &mut keys {
                *key = finished(key.clone(), &self.key_norm)?;
            }
        }
        if let Some(factors) = step.temperature_of(index) {
            query = elementwise::multiply(&query, factors)?;
        }
        let kind = config.attention_kind(index);
        let mut options = AttentionOptions::new(kind, config.attention_scale);
        options.soft_cap = config.attention_soft_cap;
        options.sinks = self.sinks.as_deref();
        options.chosen = chosen.as_deref();
        if let Relative::Alibi { slopes } = &config.relative {
            options.bias = AttentionBias::Alibi(slopes);
        }
        let parts = (&query, &keys);
        let attended = past.attend(index, parts, rotation.as_ref(), step.batch, &options)?;
        let mut attended = match (&self.qkv, &self.differential) {
            (Qkv::Latent(latent), _) => latent.values(&attended, updates)?,
            (Qkv::Experts(experts), _) => return experts.output(&attended, &routes, step.cancel),
            (Qkv::Plain(_), Some(differential)) => differential.combine(&attended)?,
            (Qkv::Plain(_), None) => attended
                .narrow(2, 0, shape.value_size)?
                .reshape((tokens, config.attended_width(index)))?,
        };
        if let Some(gate) = gate {
            attended = kernels::gated(&gate, &attended, Activation::Sigmoid)?;
        }
        if let Some(gate) = &self.gate {
            let gates = gate.forward_updated(x, &updates.part(Part::OutputGate))?;
            attended = gated(config.output_gate, &gates, attended)?;
        }
        if let Some(norm) = &self.sub_norm {
            attended = norm.forward(&attended)?;
        }
        let output = self.output.as_ref();
        let output = output.ok_or_else(|| Error::Internal("attention without an output".into()))?;
        output.forward_updated(&attended, &updates.part(Part::AttentionOutput))
    }

    /// Query, key and value as `[tokens, heads, head size]`, clamped and normalized where the family does that before
    /// rotating.
    fn project(
        &self,
        x: &Tensor,
        shape: LayerShape,
        step: &Step<'_>,
        updates: &LayerUpdates<'_>,
        routes: &Routes,
    ) -> Result<Projected> {
        let config = step.config;
        let qkv = match &self.qkv {
            Qkv::Plain(qkv) => qkv,
            Qkv::Latent(latent) => {
                return latent.project(x, config, updates);
            }
            Qkv::Experts(experts) => {
                let query = experts.queries(x, routes, config.head_size, step.cancel)?;
                let [key, value] = experts.shared(x, config.head_size, &updates.qkv())?;
                return Ok(Projected::plain(query, Keys::Own(key, value)));
            }
        };
        let norms = if config.norm_after_rope {
            (None, None)
        } else {
            (self.query_norm.as_ref(), self.key_norm.as_ref())
        };
        let clamped = |x: Tensor| match config.qkv_limit {
            Some(most) => kernels::pointwise(&x, Pointwise::Clamp { least: -most, most }),
            None => Ok(x),
        };
        let mut parts = heads(qkv, x, shape, updates)?.into_iter();
        let (query, key, value) = (parts.next(), parts.next(), parts.next());
        let query = query.ok_or_else(|| Error::Internal("attention without queries".into()))?;
        let query = clamped(normalized_heads(query, norms.0)?)?;
        let query = widened(query, shape)?;
        if let KvSource::Layer(source) = shape.kv {
            return Ok(Projected::plain(query, Keys::Of(source)));
        }
        let key = key.ok_or_else(|| Error::Internal("attention without keys".into()))?;
        let value = normalized(
            value.unwrap_or_else(|| key.clone()),
            self.value_norm.as_ref(),
        )?;
        let value = elementwise::scale(&clamped(value)?, config.value_scale)?;
        let key = clamped(normalized_heads(key, norms.1)?)?;
        let (key, value) = (widened(key, shape)?, widened(value, shape)?);
        Ok(Projected::plain(query, Keys::Own(key, value)))
    }
}

/// With zeros behind, so that queries, keys and values are as wide as each other.
fn widened(x: Tensor, shape: LayerShape) -> Result<Tensor> {
    match shape.stored_size() - x.dim(2)? {
        0 => Ok(x),
        missing => Ok(x.pad_with_zeros(2, 0, missing)?),
    }
}

/// What is projected, cut into heads.
fn heads(
    qkv: &Projection,
    x: &Tensor,
    shape: LayerShape,
    updates: &LayerUpdates<'_>,
) -> Result<Vec<Tensor>> {
    if shape.value_size == shape.head_size {
        return qkv.heads(x, shape.head_size, &updates.qkv());
    }
    let sizes = [shape.head_size, shape.head_size, shape.value_size];
    let parts = qkv.parts(x, &updates.qkv())?.into_iter().zip(sizes);
    parts
        .map(|(part, size)| {
            let (tokens, width) = part.dims2()?;
            Ok(part.reshape((tokens, width / size, size))?)
        })
        .collect()
}

/// What attention gives, `[tokens, heads · size]`, multiplied by a function of the gates.
fn gated(kind: OutputGate, gates: &Tensor, attended: Tensor) -> Result<Tensor> {
    // Above this, ln(1 + eˣ) is x in single precision.
    let softplus = |x: f32| if x > 20.0 { x } else { x.exp().ln_1p() };
    let factors = match kind {
        OutputGate::None | OutputGate::Sigmoid => {
            return kernels::gated(gates, &attended, Activation::Sigmoid)
        }
        OutputGate::Softplus { per_head: false } => {
            return elementwise::multiply(&attended, &elementwise::each(gates, softplus)?)
        }
        OutputGate::Softplus { per_head: true } => elementwise::each(gates, softplus)?,
        OutputGate::SigmoidPerHead => kernels::activate(gates, Activation::Sigmoid)?,
    };
    let (tokens, heads) = factors.dims2()?;
    let width = attended.dim(1)?;
    let cut = attended.reshape((tokens, heads, width / heads))?;
    let scaled = elementwise::multiply(&cut, &factors.reshape((tokens, heads, 1))?)?;
    Ok(scaled.reshape((tokens, width))?)
}

/// A weight as long as one head normalizes heads, a longer one all heads together.
fn normalized_heads(x: Tensor, norm: Option<&HeadNorm>) -> Result<Tensor> {
    let Some(HeadNorm { norm, weights }) = norm else {
        return Ok(x);
    };
    let (tokens, heads, size) = x.dims3()?;
    if norm.width() == size {
        let x = norm.forward(&x)?;
        return match weights {
            Some(weights) => elementwise::multiply(&x, weights),
            None => Ok(x),
        };
    }
    let whole = norm.forward(&x.reshape((tokens, heads * size))?)?;
    Ok(whole.reshape((tokens, heads, size))?)
}
