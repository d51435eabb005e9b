//! One decoder layer: attention and MLP around the residual stream.

use candle_core::Tensor;

use super::adapter::{Adapter, LayerAdapter, Slot};
use super::batch::{Batch, Past};
use super::config::{DecoderConfig, QueryKeyNorm, Residual};
use super::differential::Differential;
use super::experts::ExpertLayer;
use super::latent::{LatentProjections, QUERY_SLOT};
use super::query_experts::{QueryExperts, Routes};
use crate::models::config::{NormPlacement, Relative};
use crate::models::parts::Part;
use crate::models::rope::Rotation;
use crate::nn::attention::{AttentionBias, AttentionOptions};
use crate::nn::{elementwise, Inventory, Linear, Norm, Projection};
use crate::{CancelToken, Error, Result};
use kernels::{Activation, ClampedGlu, Pointwise, Xielu};

pub struct Layer {
    pub attention_norm: Option<Norm>,
    pub post_attention_norm: Option<Norm>,
    pub mlp_norm: Option<Norm>,
    pub post_mlp_norm: Option<Norm>,
    pub attention: AttentionLayer,
    pub mlp: FeedForward,
    /// Beside the MLP; what they give is added after the next layer's.
    pub postponed: Option<ExpertLayer>,
    pub attention_branch: Branch,
    pub mlp_branch: Branch,
}

/// How a sublayer joins the residual stream.
pub struct Branch {
    /// What the stream is multiplied by, `[hidden]`.
    pub kept: Option<Tensor>,
    /// What the sublayer's result is multiplied by.
    pub scale: f32,
}

pub struct AttentionLayer {
    pub qkv: Qkv,
    /// `None` where experts lead back from attention.
    pub output: Option<Linear>,
    pub query_norm: Option<HeadNorm>,
    pub key_norm: Option<HeadNorm>,
    /// Of what goes into `output`.
    pub sub_norm: Option<Norm>,
    /// One per head.
    pub sinks: Option<Vec<f32>>,
    /// Its sigmoid multiplies what goes into `output`.
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

#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum FeedForward {
    Mlp(MlpLayer),
    Experts(ExpertLayer),
}

pub struct MlpLayer {
    /// Gate and up, or up alone.
    pub input: Projection,
    pub output: Linear,
    pub activation: MlpActivation,
    /// Of what goes into `output`.
    pub sub_norm: Option<Norm>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MlpActivation {
    Plain(Activation),
    Clamped(ClampedGlu),
    Xielu(Xielu),
}

/// What every layer of one forward needs to know.
pub struct Step<'a> {
    pub config: &'a DecoderConfig,
    pub batch: &'a Batch,
    pub rotation: Option<Rotation<'a>>,
    /// What queries are multiplied by, `[tokens, 1, 1]`; see `Temperature`.
    pub temperature: Option<Tensor>,
    pub adapter: Option<&'a Adapter>,
    pub cancel: &'a CancelToken,
}

/// The residual stream, with its latest addition held back so that adding and normalizing are one
/// kernel, which writes the sum over the addition.
pub struct Stream {
    hidden: Tensor,
    pending: Option<Tensor>,
    /// What is to be added after the next layer.
    postponed: Option<Tensor>,
}

impl Stream {
    pub fn new(hidden: Tensor) -> Self {
        Self {
            hidden,
            pending: None,
            postponed: None,
        }
    }

    fn add(&mut self, addition: Tensor, branch: &Branch) -> Result<()> {
        self.settle()?;
        if let Some(weights) = &branch.kept {
            self.hidden = elementwise::multiply(&self.hidden, weights)?;
        }
        self.pending = Some(elementwise::scale(&addition, branch.scale)?);
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
            &self.attention.sub_norm,
        ];
        for norm in norms.into_iter().flatten() {
            inventory.add_norm(norm)?;
        }
        let norms = [&self.attention.query_norm, &self.attention.key_norm];
        for norm in norms.into_iter().flatten() {
            inventory.add_norm(&norm.norm)?;
        }
        match &self.attention.qkv {
            Qkv::Plain(qkv) => inventory.add_projection(qkv)?,
            Qkv::Latent(latent) => latent.list(inventory)?,
            Qkv::Experts(experts) => experts.list(inventory)?,
        }
        if let Some(output) = &self.attention.output {
            inventory.add_linear(output)?;
        }
        if let Some(gate) = &self.attention.gate {
            inventory.add_linear(gate)?;
        }
        if let Some(experts) = &self.postponed {
            experts.list(inventory)?;
        }
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
        let mut linears: Vec<_> = match &attention.qkv {
            Qkv::Plain(qkv) => {
                let parts: &[_] = match qkv.matrices().len() {
                    1 => &[Part::Qkv],
                    _ => &[Part::Query, Part::Key, Part::Value],
                };
                each(qkv, parts, Slot::Qkv).collect()
            }
            Qkv::Latent(latent) => {
                let parts: &[_] = match &latent.query {
                    Some(_) => &[Part::QueryDown, Part::LatentDown],
                    None => &[Part::Query, Part::LatentDown],
                };
                let inputs = each(&latent.input, parts, Slot::Qkv);
                let query = latent.query.iter();
                let query = query.map(|(_, linear)| (Part::QueryUp, Slot::Qkv(QUERY_SLOT), linear));
                inputs.chain(query).collect()
            }
            Qkv::Experts(experts) => each(&experts.shared, &[Part::Qkv], Slot::Qkv).collect(),
        };
        if let Some(output) = &attention.output {
            linears.push((Part::AttentionOutput, Slot::AttentionOutput, output));
        }
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
        let config = step.config;
        let input = enter(stream, self.attention_norm.as_ref(), config)?;
        let attended = self.attention.forward(index, &input, past, step)?;
        let updates = LayerAdapter::of(step.adapter, index);
        match config.residual {
            Residual::Sequential | Residual::SequentialFromNorm => {
                let attended = normalized(attended, self.post_attention_norm.as_ref())?;
                stream.add(attended, &self.attention_branch)?;
                leave(stream, self.attention_norm.as_ref(), config)?;
                let input = enter(stream, self.mlp_norm.as_ref(), config)?;
                let postponed = self.postponed.as_ref();
                let postponed = postponed.map(|experts| experts.forward(&input, step.cancel));
                let result = self.mlp.forward(&input, updates, step.cancel)?;
                let result = normalized(result, self.post_mlp_norm.as_ref())?;
                stream.add(result, &self.mlp_branch)?;
                if let Some(earlier) =
                    std::mem::replace(&mut stream.postponed, postponed.transpose()?)
                {
                    stream.add(earlier, &self.mlp_branch)?;
                }
                leave(stream, self.mlp_norm.as_ref(), config)
            }
            Residual::ParallelOneNorm => {
                let result = self.mlp.forward(&input, updates, step.cancel)?;
                stream.add(elementwise::add(&attended, &result)?, &self.mlp_branch)
            }
            Residual::ParallelTwoNorms => {
                let input = stream.read(self.mlp_norm.as_ref())?;
                let result = self.mlp.forward(&input, updates, step.cancel)?;
                stream.add(elementwise::add(&attended, &result)?, &self.mlp_branch)
            }
        }
    }
}

/// What a sublayer reads.
fn enter(stream: &mut Stream, norm: Option<&Norm>, config: &DecoderConfig) -> Result<Tensor> {
    if config.norm_placement == NormPlacement::Post {
        return stream.read(None);
    }
    let input = stream.read(norm)?;
    if config.residual == Residual::SequentialFromNorm {
        stream.hidden = input.clone();
    }
    Ok(input)
}

/// After a sublayer has added its result.
fn leave(stream: &mut Stream, norm: Option<&Norm>, config: &DecoderConfig) -> Result<()> {
    if config.norm_placement == NormPlacement::Post {
        stream.hidden = stream.read(norm)?;
    }
    Ok(())
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
        let rotation = step.rotation.as_ref();
        let rotation = rotation.filter(|rotation| rotation.applies(index));
        let local = config.windows[index].is_some();
        let mut rotation = rotation.map(|rotation| rotation.of_layer(local));
        let routes = match &self.qkv {
            Qkv::Experts(experts) => experts.route(x)?,
            Qkv::Plain(_) | Qkv::Latent(_) => Routes::default(),
        };
        let (mut query, mut key, mut value) = self.project(x, step, updates, &routes)?;
        if let Some(differential) = &self.differential {
            (query, key, value) = differential.spread((query, key, value))?;
        }
        if config.norm_after_rope {
            if let Some(rotation) = rotation.take() {
                (query, key) = (rotation.rotate(&query)?, rotation.rotate(&key)?);
                query = normalized_heads(query, self.query_norm.as_ref())?;
                key = normalized_heads(key, self.key_norm.as_ref())?;
            } else if config.query_key_norm != QueryKeyNorm::Plain {
                query = normalized_heads(query, self.query_norm.as_ref())?;
                key = normalized_heads(key, self.key_norm.as_ref())?;
            }
        }
        if let Some(factors) = step.temperature_of(index) {
            query = elementwise::multiply(&query, factors)?;
        }
        let kind = config.attention_kind(index);
        let mut options = AttentionOptions::new(kind, config.attention_scale);
        options.soft_cap = config.attention_soft_cap;
        options.sinks = self.sinks.as_deref();
        if let Relative::Alibi { slopes } = &config.relative {
            options.bias = AttentionBias::Alibi(slopes);
        }
        let parts = (&query, &key, &value);
        let attended = past.attend(index, parts, rotation.as_ref(), step.batch, &options)?;
        let mut attended = match (&self.qkv, &self.differential) {
            (Qkv::Latent(latent), _) => latent.values(&attended)?,
            (Qkv::Experts(experts), _) => return experts.output(&attended, &routes, step.cancel),
            (Qkv::Plain(_), Some(differential)) => differential.combine(&attended)?,
            (Qkv::Plain(_), None) => attended.reshape((tokens, config.attended_width()))?,
        };
        if let Some(gate) = &self.gate {
            attended = kernels::gated(&gate.forward(x)?, &attended, Activation::Sigmoid)?;
        }
        if let Some(norm) = &self.sub_norm {
            attended = norm.forward(&attended)?;
        }
        let output = self.output.as_ref();
        let output = output.ok_or_else(|| Error::Internal("attention without an output".into()))?;
        output.forward_updated(&attended, updates.attention_output.as_ref())
    }

    /// Query, key and value as `[tokens, heads, head size]`, clamped and normalized where the family does that before
    /// rotating.
    fn project(
        &self,
        x: &Tensor,
        step: &Step<'_>,
        updates: &LayerAdapter,
        routes: &Routes,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let config = step.config;
        let qkv = match &self.qkv {
            Qkv::Plain(qkv) => qkv,
            Qkv::Latent(latent) => {
                let (query, key) = latent.project(x, config, &updates.qkv)?;
                return Ok((query, key.clone(), key));
            }
            Qkv::Experts(experts) => {
                let query = experts.queries(x, routes, config.head_size, step.cancel)?;
                let [key, value] = experts.shared(x, config.head_size, &updates.qkv)?;
                return Ok((query, key, value));
            }
        };
        let parts = qkv.heads(x, config.head_size, &updates.qkv)?;
        let Ok([mut query, mut key, mut value]) = <[Tensor; 3]>::try_from(parts) else {
            return Err(Error::Internal("attention needs three projections".into()));
        };
        if !config.norm_after_rope {
            query = normalized_heads(query, self.query_norm.as_ref())?;
            key = normalized_heads(key, self.key_norm.as_ref())?;
        }
        if let Some(most) = config.qkv_limit {
            let clamp = Pointwise::Clamp { least: -most, most };
            query = kernels::pointwise(&query, clamp)?;
            key = kernels::pointwise(&key, clamp)?;
            value = kernels::pointwise(&value, clamp)?;
        }
        Ok((query, key, value))
    }
}

impl Step<'_> {
    /// What a layer multiplies its queries by.
    fn temperature_of(&self, layer: usize) -> Option<&Tensor> {
        let temperature = self.config.temperature?;
        let rotates = self
            .rotation
            .as_ref()
            .is_some_and(|rotation| rotation.applies(layer));
        match temperature.unrotated_only && rotates {
            true => None,
            false => self.temperature.as_ref(),
        }
    }
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
        if let Some(norm) = &self.sub_norm {
            inventory.add_norm(norm)?;
        }
        inventory.add_linear(&self.output)
    }

    pub fn forward(&self, x: &Tensor, updates: &LayerAdapter) -> Result<Tensor> {
        let inner = match &self.activation {
            MlpActivation::Plain(activation) => {
                self.input.activated(x, *activation, &updates.mlp_input)?
            }
            MlpActivation::Clamped(glu) => match &self.input.parts(x, &updates.mlp_input)?[..] {
                [gate, up] => kernels::clamped_glu(gate, up, *glu)?,
                _ => return Err(Error::Internal("a gated activation needs two parts".into())),
            },
            MlpActivation::Xielu(xielu) => match &self.input.parts(x, &updates.mlp_input)?[..] {
                [x] => kernels::pointwise(x, Pointwise::Xielu(*xielu))?,
                _ => return Err(Error::Internal("an activation needs one part".into())),
            },
        };
        let inner = match &self.sub_norm {
            Some(norm) => norm.forward(&inner)?,
            None => inner,
        };
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
