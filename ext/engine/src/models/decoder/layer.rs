//! One decoder layer: attention and MLP around the residual stream.

use std::f32::consts::FRAC_1_SQRT_2;

use candle_core::{Device, Tensor};

use super::adapter::MlpOf;
use super::adapter_rows::{AdapterRows, LayerUpdates};
use super::batch::{Batch, Past};
use super::blocks::BlockLayer;
use super::config::{DecoderConfig, Residual};
use super::experts::ExpertLayer;
use super::indexer::Chosen;
use super::lanes::LaneLayer;
use super::layer_inputs::LayerInput;
use super::mixers::{Mixer, StateMixer};
use super::norm_gate::NormGate;
use super::sparsity::SparseGate;
use super::stages::Home;
use crate::models::config::NormPlacement;
use crate::models::rope::Rotation;
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
    /// Attention and an MLP before the mixer, which other layers have too.
    pub block: Option<BlockLayer>,
    /// What tokens learn of those before them; some layers are an MLP alone, and others have none.
    pub mixer: Option<Mixer>,
    pub mlp: Option<FeedForward>,
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

#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum FeedForward {
    Mlp(MlpLayer),
    Experts(ExpertLayer),
    /// The sum of both, of which the MLP's is normalized.
    Both(MlpLayer, Norm, ExpertLayer),
    /// One that also reads tokens before (RWKV).
    State(Box<dyn StateMixer>),
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
    /// The gate is multiplied by a factor first (Falcon H1).
    Scaled(Activation, f32),
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
    /// What images add to the stream after each of the first layers, `[tokens, hidden]`; see `ImageTable::deep`.
    pub deep: Vec<Tensor>,
    pub adapters: &'a AdapterRows,
    pub cancel: &'a CancelToken,
}

/// The residual stream, with its latest addition held back so that adding and normalizing are one
/// kernel, which writes the sum over the addition.
pub struct Stream {
    hidden: Tensor,
    pending: Option<Tensor>,
    /// What is to be added after the next layer.
    postponed: Option<Tensor>,
    /// What it began with, where layers read that.
    pub embedded: Option<Tensor>,
    /// The streams of a model that has several, in place of the one.
    pub lanes: Vec<Tensor>,
    /// The keys that the last layer which chose some lets attention see.
    chosen: Option<Chosen>,
}

impl Stream {
    pub fn new(hidden: Tensor) -> Self {
        Self {
            hidden,
            pending: None,
            postponed: None,
            embedded: None,
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

    /// Adds rows that stay as they are.
    pub fn add_rows(&mut self, rows: &Tensor) -> Result<()> {
        self.settle()?;
        self.hidden = elementwise::add(&self.hidden, rows)?;
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

    /// Takes all that it holds there.
    pub fn move_to(&mut self, home: &Home) -> Result<()> {
        let held = [&mut self.pending, &mut self.postponed, &mut self.embedded];
        let held = held.into_iter().flatten().chain(&mut self.lanes);
        for tensor in held.chain([&mut self.hidden]) {
            *tensor = home.takes(tensor)?;
        }
        Ok(())
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
    /// Whether its experts, where it has any, run without the host.
    pub fn is_recordable(&self) -> bool {
        let experts = match &self.mlp {
            Some(FeedForward::Experts(experts) | FeedForward::Both(_, _, experts)) => Some(experts),
            _ => None,
        };
        self.postponed.is_none() && experts.is_none_or(|experts| experts.device.is_some())
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let norms = [
            &self.attention_norm,
            &self.post_attention_norm,
            &self.mlp_norm,
            &self.post_mlp_norm,
        ];
        for norm in norms.into_iter().flatten() {
            inventory.add_norm(norm)?;
        }
        for gate in [&self.attention_gate, &self.mlp_gate].into_iter().flatten() {
            gate.list(inventory)?;
        }
        if let Some(block) = &self.block {
            block.list(inventory)?;
        }
        if let Some(mixer) = &self.mixer {
            mixer.list(inventory)?;
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
            None => Ok(()),
            Some(FeedForward::Mlp(mlp)) => mlp.list(inventory),
            Some(FeedForward::Experts(experts)) => experts.list(inventory),
            Some(FeedForward::State(state)) => state.list(inventory),
            Some(FeedForward::Both(mlp, norm, experts)) => {
                mlp.list(inventory)?;
                inventory.add_norm(norm)?;
                experts.list(inventory)
            }
        }
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
        let updates = &step.adapters.layer(index);
        match (config.residual, &self.mixer, &self.mlp) {
            (Residual::Sequential | Residual::SequentialFromNorm, mixer, mlp) => {
                if let Some(mixer) = mixer {
                    self.mix(mixer, index, stream, past, step)?;
                }
                if let Some(mlp) = mlp {
                    self.feed_forward(mlp, index, stream, past, step)?;
                }
            }
            (parallel, Some(mixer), Some(mlp)) => {
                let input = enter(stream, self.attention_norm.as_ref(), config)?;
                let input = through_gate(input, self.attention_gate.as_ref(), updates)?;
                let mixed = mixer.forward(index, &input, past, step, &mut stream.chosen)?;
                let input = match parallel {
                    Residual::ParallelTwoNorms => stream.read(self.mlp_norm.as_ref())?,
                    _ => input,
                };
                let result = mlp.forward(&input, &input, updates, step.cancel)?;
                stream.add(elementwise::add(&mixed, &result)?, &self.mlp_branch)?;
            }
            _ => return Err(one_sublayer(index)),
        }
        if let (Some(input), Some(own)) = (&self.input, step.inputs.get(index)) {
            let x = stream.read(None)?;
            let addition = input.forward(&x, own, config.mlp.activation, updates)?;
            stream.add(addition, &Branch::PLAIN)?;
        }
        match &self.scale {
            Some(factor) => stream.multiply(factor),
            None => Ok(()),
        }
    }

    fn mix(
        &self,
        mixer: &Mixer,
        index: usize,
        stream: &mut Stream,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<()> {
        let (norm, config) = (self.attention_norm.as_ref(), step.config);
        let updates = &step.adapters.layer(index);
        let input = match &self.block {
            Some(block) => {
                let hidden = stream.read(None)?;
                let embedded = stream.embedded.as_ref().unwrap_or(&hidden);
                let parts = (&hidden, embedded);
                let given = block.forward(index, parts, past, step, &mut stream.chosen)?;
                normalized(elementwise::add(&hidden, &given)?, norm)?
            }
            None => enter(stream, norm, config)?,
        };
        let input = through_gate(input, self.attention_gate.as_ref(), updates)?;
        let mixed = mixer.forward(index, &input, past, step, &mut stream.chosen)?;
        let mixed = normalized(mixed, self.post_attention_norm.as_ref())?;
        stream.add(mixed, &self.attention_branch)?;
        leave(stream, norm, config)
    }

    fn feed_forward(
        &self,
        mlp: &FeedForward,
        index: usize,
        stream: &mut Stream,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<()> {
        let (norm, config) = (self.mlp_norm.as_ref(), step.config);
        let before = match mlp {
            FeedForward::Both(..) => Some(stream.read(None)?),
            FeedForward::Mlp(_) | FeedForward::Experts(_) | FeedForward::State(_) => None,
        };
        let updates = &step.adapters.layer(index);
        let input = enter(stream, norm, config)?;
        let input = through_gate(input, self.mlp_gate.as_ref(), updates)?;
        let postponed = self.postponed.as_ref();
        let postponed = postponed.map(|experts| experts.forward(&input, updates, step.cancel));
        let before = before.as_ref().unwrap_or(&input);
        let result = match mlp {
            FeedForward::State(state) => state.forward(index, &input, past, step)?,
            mlp => mlp.forward(&input, before, updates, step.cancel)?,
        };
        let result = normalized(result, self.post_mlp_norm.as_ref())?;
        stream.add(result, &self.mlp_branch)?;
        if let Some(earlier) = std::mem::replace(&mut stream.postponed, postponed.transpose()?) {
            stream.add(earlier, &self.mlp_branch)?;
        }
        leave(stream, norm, config)
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
        let (Some(mixer), Some(mlp)) = (&self.mixer, &self.mlp) else {
            return Err(one_sublayer(index));
        };
        let updates = &step.adapters.layer(index);
        let (predicted, active) = lanes.predict(&stream.lanes, updates)?;
        let input = normalized(active.clone(), self.attention_norm.as_ref())?;
        let attended = mixer.forward(index, &input, past, step, &mut stream.chosen)?;
        let attended = normalized(attended, self.post_attention_norm.as_ref())?;
        let attended = elementwise::add(&active, &attended)?;
        let both = elementwise::add(&attended, &lanes.beside(&input, updates)?)?;
        let mut inner = Stream::new(elementwise::scale(&both, FRAC_1_SQRT_2)?);
        let input = inner.read(self.mlp_norm.as_ref())?;
        let result = mlp.forward(&input, &input, updates, step.cancel)?;
        inner.add(
            normalized(result, self.post_mlp_norm.as_ref())?,
            &self.mlp_branch,
        )?;
        let (mut corrected, read) = lanes.correct(&predicted, &inner.read(None)?, updates)?;
        if let (Some(input), Some(own)) = (&self.input, step.inputs.get(index)) {
            let addition = input.forward(&read, own, step.config.mlp.activation, updates)?;
            // The first stream is left out, whichever layers compute on.
            for lane in corrected.iter_mut().skip(1) {
                *lane = elementwise::add(lane, &addition)?;
            }
        }
        stream.lanes = corrected;
        Ok(())
    }
}

fn one_sublayer(layer: usize) -> Error {
    Error::Internal(format!("layer {layer} has one sublayer where it needs two"))
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

impl Step<'_> {
    /// What a layer multiplies its queries by.
    pub(super) fn temperature_of(&self, layer: usize) -> Option<&Tensor> {
        let temperature = self.config.temperature?;
        let rotates = self
            .rotation
            .as_ref()
            .is_some_and(|rotation| rotation.applies(layer));
        if temperature.unrotated_only && rotates {
            None
        } else {
            self.temperature.as_ref()
        }
    }
}

impl FeedForward {
    /// Of what the layer's norm gives, and, where experts have norms of their own, of what it is given.
    fn forward(
        &self,
        x: &Tensor,
        before: &Tensor,
        updates: &LayerUpdates<'_>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        cancel.check()?;
        match self {
            Self::Mlp(mlp) => mlp.forward(x, updates, MlpOf::Layer),
            Self::Experts(experts) => experts.forward(x, updates, cancel),
            Self::State(_) => Err(Error::Internal("an MLP with a state beside others".into())),
            Self::Both(mlp, norm, experts) => {
                let plain = norm.forward(&mlp.forward(x, updates, MlpOf::Layer)?)?;
                elementwise::add(&plain, &experts.forward(before, updates, cancel)?)
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

    pub(super) fn forward(
        &self,
        x: &Tensor,
        updates: &LayerUpdates<'_>,
        of: MlpOf,
    ) -> Result<Tensor> {
        let given = &updates.mlp_input(of)[..];
        let inner = match &self.activation {
            MlpActivation::Plain(activation) => self.input.activated(x, *activation, given)?,
            MlpActivation::Clamped(glu) => match &self.input.parts(x, given)?[..] {
                [gate, up] => kernels::clamped_glu(gate, up, *glu)?,
                _ => return Err(Error::Internal("a gated activation needs two parts".into())),
            },
            MlpActivation::Xielu(xielu) => match &self.input.parts(x, given)?[..] {
                [x] => kernels::pointwise(x, Pointwise::Xielu(*xielu))?,
                _ => return Err(Error::Internal("an activation needs one part".into())),
            },
            MlpActivation::Scaled(activation, factor) => match &self.input.parts(x, given)?[..] {
                [gate, up] => kernels::gated(&elementwise::scale(gate, *factor)?, up, *activation)?,
                _ => return Err(Error::Internal("a gated activation needs two parts".into())),
            },
            MlpActivation::Sparse(gate) => gate.forward(&self.input.parts(x, given)?)?,
        };
        let inner = match &self.sub_norm {
            Some(norm) => norm.forward(&inner)?,
            None => inner,
        };
        self.output.forward_updated(&inner, &updates.mlp_output(of))
    }
}

fn through_gate(x: Tensor, gate: Option<&NormGate>, updates: &LayerUpdates<'_>) -> Result<Tensor> {
    match gate {
        Some(gate) => gate.forward(&x, updates),
        None => Ok(x),
    }
}

pub(super) fn normalized(x: Tensor, norm: Option<&Norm>) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}
