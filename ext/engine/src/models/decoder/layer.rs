//! One decoder layer: attention and MLP around the residual stream.

use std::f32::consts::FRAC_1_SQRT_2;

use candle_core::{Device, Tensor};

use super::adapter::{Adapter, LayerAdapter, Slot};
use super::batch::{Batch, Keys, Past};
use super::config::{DecoderConfig, OutputGate, QueryKeyNorm, Residual};
use super::differential::Differential;
use super::experts::ExpertLayer;
use super::indexer::{Chosen, IndexerLayer};
use super::lanes::LaneLayer;
use super::latent::{LatentProjections, QUERY_SLOT};
use super::layer_inputs::LayerInput;
use super::norm_gate::NormGate;
use super::query_experts::{QueryExperts, Routes};
use super::shapes::{KvSource, LayerShape};
use super::sparsity::SparseGate;
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
    /// Behind the norms before attention and before the MLP.
    pub attention_gate: Option<NormGate>,
    pub mlp_gate: Option<NormGate>,
    pub attention: AttentionLayer,
    pub mlp: FeedForward,
    /// Beside the MLP; what they give is added after the next layer's.
    pub postponed: Option<ExpertLayer>,
    pub attention_branch: Branch,
    pub mlp_branch: Branch,
    pub input: Option<LayerInput>,
    /// Factor on the residual stream.
    pub scale: Option<Tensor>,
    pub lanes: Option<LaneLayer>,
}

/// How a sublayer joins the residual stream.
pub struct Branch {
    /// What the stream is multiplied by, `[hidden]`.
    pub kept: Option<Tensor>,
    /// What the sublayer's result is multiplied by.
    pub scale: f32,
}

impl Branch {
    const PLAIN: Self = Self {
        kept: None,
        scale: 1.0,
    };
}

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

#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum FeedForward {
    Mlp(MlpLayer),
    Experts(ExpertLayer),
    /// The sum of both, of which the MLP's is normalized.
    Both(MlpLayer, Norm, ExpertLayer),
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
    Sparse(SparseGate),
}

/// What every layer of one forward needs to know.
pub struct Step<'a> {
    pub config: &'a DecoderConfig,
    pub batch: &'a Batch,
    pub rotation: Option<Rotation<'a>>,
    /// What queries are multiplied by, `[tokens, 1, 1]`; see `Temperature`.
    pub temperature: Option<Tensor>,
    /// Of each layer, `[tokens, width]`; see `LayerInputs`.
    pub inputs: Vec<Tensor>,
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
    /// The streams of a model that has several, in place of the one.
    pub lanes: Vec<Tensor>,
    /// The keys that the last layer which chose some lets attention see.
    chosen: Option<Chosen>,
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

impl Stream {
    pub fn new(hidden: Tensor) -> Self {
        Self {
            hidden,
            pending: None,
            postponed: None,
            lanes: Vec::new(),
            chosen: None,
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

    pub fn device(&self) -> Device {
        self.hidden.device().clone()
    }

    /// What the stream holds; several one after the other.
    pub fn states(&mut self) -> Result<Tensor> {
        if self.lanes.is_empty() {
            self.read(None)
        } else {
            Ok(Tensor::cat(&self.lanes, 0)?)
        }
    }

    fn multiply(&mut self, factor: &Tensor) -> Result<()> {
        self.settle()?;
        self.hidden = elementwise::multiply(&self.hidden, factor)?;
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
        for gate in [&self.attention_gate, &self.mlp_gate].into_iter().flatten() {
            gate.list(inventory)?;
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
        if let Some(indexer) = &self.attention.indexer {
            indexer.list(inventory)?;
        }
        if let Some(gate) = &self.attention.gate {
            inventory.add_linear(gate)?;
        }
        if let Some(experts) = &self.postponed {
            experts.list(inventory)?;
        }
        if let Some(input) = &self.input {
            input.list(inventory)?;
        }
        if let Some(lanes) = &self.lanes {
            lanes.list(inventory)?;
        }
        match &self.mlp {
            FeedForward::Mlp(mlp) => mlp.list(inventory),
            FeedForward::Experts(experts) => experts.list(inventory),
            FeedForward::Both(mlp, norm, experts) => {
                mlp.list(inventory)?;
                inventory.add_norm(norm)?;
                experts.list(inventory)
            }
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
                let parts: &[_] = if qkv.matrices().len() < qkv.widths().len() {
                    &[Part::Qkv]
                } else {
                    &[Part::Query, Part::Key, Part::Value]
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
        if let FeedForward::Mlp(mlp) | FeedForward::Both(mlp, ..) = &self.mlp {
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
        if let Some(lanes) = &self.lanes {
            return self.forward_lanes(lanes, index, stream, past, step);
        }
        let config = step.config;
        let input = enter(stream, self.attention_norm.as_ref(), config)?;
        let input = through_gate(input, self.attention_gate.as_ref())?;
        let chosen = &mut stream.chosen;
        let attended = self.attention.forward(index, &input, past, step, chosen)?;
        let updates = LayerAdapter::of(step.adapter, index);
        match config.residual {
            Residual::Sequential | Residual::SequentialFromNorm => {
                let attended = normalized(attended, self.post_attention_norm.as_ref())?;
                stream.add(attended, &self.attention_branch)?;
                leave(stream, self.attention_norm.as_ref(), config)?;
                let before = match &self.mlp {
                    FeedForward::Both(..) => Some(stream.read(None)?),
                    FeedForward::Mlp(_) | FeedForward::Experts(_) => None,
                };
                let input = enter(stream, self.mlp_norm.as_ref(), config)?;
                let input = through_gate(input, self.mlp_gate.as_ref())?;
                let postponed = self.postponed.as_ref();
                let postponed = postponed.map(|experts| experts.forward(&input, step.cancel));
                let before = before.as_ref().unwrap_or(&input);
                let result = self.mlp.forward(&input, before, updates, step.cancel)?;
                let result = normalized(result, self.post_mlp_norm.as_ref())?;
                stream.add(result, &self.mlp_branch)?;
                if let Some(earlier) =
                    std::mem::replace(&mut stream.postponed, postponed.transpose()?)
                {
                    stream.add(earlier, &self.mlp_branch)?;
                }
                leave(stream, self.mlp_norm.as_ref(), config)?;
            }
            Residual::ParallelOneNorm => {
                let result = self.mlp.forward(&input, &input, updates, step.cancel)?;
                stream.add(elementwise::add(&attended, &result)?, &self.mlp_branch)?;
            }
            Residual::ParallelTwoNorms => {
                let input = stream.read(self.mlp_norm.as_ref())?;
                let result = self.mlp.forward(&input, &input, updates, step.cancel)?;
                stream.add(elementwise::add(&attended, &result)?, &self.mlp_branch)?;
            }
        }
        if let (Some(input), Some(own)) = (&self.input, step.inputs.get(index)) {
            let x = stream.read(None)?;
            stream.add(
                input.forward(&x, own, config.mlp.activation)?,
                &Branch::PLAIN,
            )?;
        }
        match &self.scale {
            Some(factor) => stream.multiply(factor),
            None => Ok(()),
        }
    }

    /// The layer on one of several streams.
    fn forward_lanes(
        &self,
        lanes: &LaneLayer,
        index: usize,
        stream: &mut Stream,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<()> {
        let updates = LayerAdapter::of(step.adapter, index);
        let (predicted, active) = lanes.predict(&stream.lanes)?;
        let input = normalized(active.clone(), self.attention_norm.as_ref())?;
        let attended = self
            .attention
            .forward(index, &input, past, step, &mut stream.chosen)?;
        let attended = normalized(attended, self.post_attention_norm.as_ref())?;
        let attended = elementwise::add(&active, &attended)?;
        let both = elementwise::add(&attended, &lanes.beside(&input)?)?;
        let mut inner = Stream::new(elementwise::scale(&both, FRAC_1_SQRT_2)?);
        let input = inner.read(self.mlp_norm.as_ref())?;
        let result = self.mlp.forward(&input, &input, updates, step.cancel)?;
        inner.add(
            normalized(result, self.post_mlp_norm.as_ref())?,
            &self.mlp_branch,
        )?;
        let (mut corrected, read) = lanes.correct(&predicted, &inner.read(None)?)?;
        if let (Some(input), Some(own)) = (&self.input, step.inputs.get(index)) {
            let addition = input.forward(&read, own, step.config.mlp.activation)?;
            // The first stream is left out, whichever layers compute on.
            for lane in corrected.iter_mut().skip(1) {
                *lane = elementwise::add(lane, &addition)?;
            }
        }
        stream.lanes = corrected;
        Ok(())
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
        chosen: &mut Option<Chosen>,
    ) -> Result<Tensor> {
        step.cancel.check()?;
        let config = step.config;
        let tokens = x.dim(0)?;
        let updates = LayerAdapter::of(step.adapter, index);
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
            let found = indexer.choose(index, (x, short), rotation.as_ref(), past, step.batch)?;
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
            (Qkv::Latent(latent), _) => latent.values(&attended)?,
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
            attended = gated(config.output_gate, &gate.forward(x)?, attended)?;
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
        shape: LayerShape,
        step: &Step<'_>,
        updates: &LayerAdapter,
        routes: &Routes,
    ) -> Result<Projected> {
        let config = step.config;
        let qkv = match &self.qkv {
            Qkv::Plain(qkv) => qkv,
            Qkv::Latent(latent) => {
                return latent.project(x, config, &updates.qkv);
            }
            Qkv::Experts(experts) => {
                let query = experts.queries(x, routes, config.head_size, step.cancel)?;
                let [key, value] = experts.shared(x, config.head_size, &updates.qkv)?;
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
        if let KvSource::Layer(source) = shape.kv {
            return Ok(Projected::plain(query, Keys::Of(source)));
        }
        let key = key.ok_or_else(|| Error::Internal("attention without keys".into()))?;
        let value = normalized(
            value.unwrap_or_else(|| key.clone()),
            self.value_norm.as_ref(),
        )?;
        let mut value = elementwise::scale(&clamped(value)?, config.value_scale)?;
        if shape.value_size < shape.head_size {
            value = value.pad_with_zeros(2, 0, shape.head_size - shape.value_size)?;
        }
        let key = clamped(normalized_heads(key, norms.1)?)?;
        Ok(Projected::plain(query, Keys::Own(key, value)))
    }
}

/// What is projected, cut into heads.
fn heads(
    qkv: &Projection,
    x: &Tensor,
    shape: LayerShape,
    updates: &LayerAdapter,
) -> Result<Vec<Tensor>> {
    if shape.value_size == shape.head_size {
        return qkv.heads(x, shape.head_size, &updates.qkv);
    }
    let sizes = [shape.head_size, shape.head_size, shape.value_size];
    let parts = qkv.parts(x, &updates.qkv)?.into_iter().zip(sizes);
    parts
        .map(|(part, size)| {
            let (tokens, width) = part.dims2()?;
            Ok(part.reshape((tokens, width / size, size))?)
        })
        .collect()
}

/// What attention gives, `[tokens, heads · size]`, multiplied by a function of the gates.
fn gated(kind: OutputGate, gates: &Tensor, attended: Tensor) -> Result<Tensor> {
    let OutputGate::Softplus { per_head } = kind else {
        return kernels::gated(gates, &attended, Activation::Sigmoid);
    };
    // Above this, ln(1 + eˣ) is x in single precision.
    let softplus = |x: f32| if x > 20.0 { x } else { x.exp().ln_1p() };
    let factors = elementwise::each(gates, softplus)?;
    if !per_head {
        return elementwise::multiply(&attended, &factors);
    }
    let (tokens, heads) = factors.dims2()?;
    let width = attended.dim(1)?;
    let cut = attended.reshape((tokens, heads, width / heads))?;
    let scaled = elementwise::multiply(&cut, &factors.reshape((tokens, heads, 1))?)?;
    Ok(scaled.reshape((tokens, width))?)
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
    /// Of what the layer's norm gives, and, where experts have norms of their own, of what it is given.
    fn forward(
        &self,
        x: &Tensor,
        before: &Tensor,
        updates: &LayerAdapter,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        cancel.check()?;
        match self {
            Self::Mlp(mlp) => mlp.forward(x, updates),
            Self::Experts(experts) => experts.forward(x, cancel),
            Self::Both(mlp, norm, experts) => {
                let plain = norm.forward(&mlp.forward(x, updates)?)?;
                elementwise::add(&plain, &experts.forward(before, cancel)?)
            }
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
            MlpActivation::Sparse(gate) => {
                gate.forward(&self.input.parts(x, &updates.mlp_input)?)?
            }
        };
        let inner = match &self.sub_norm {
            Some(norm) => norm.forward(&inner)?,
            None => inner,
        };
        self.output
            .forward_updated(&inner, updates.mlp_output.as_ref())
    }
}

fn through_gate(x: Tensor, gate: Option<&NormGate>) -> Result<Tensor> {
    match gate {
        Some(gate) => gate.forward(&x),
        None => Ok(x),
    }
}

fn normalized(x: Tensor, norm: Option<&Norm>) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}
