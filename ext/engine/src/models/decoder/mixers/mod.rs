//! What tokens of a layer learn of those before them: attention, or a state that the layer keeps.

mod delta_rule;
mod linear_attention;
mod rglru;
mod rwkv;
mod rwkv_heads;
mod selected_heads;
mod selective;
mod shared;
mod short_conv;
mod ssm;

use candle_core::{DType, Tensor};

use super::adaptable::Module;
use super::attention::AttentionLayer;
use super::batch::Past;
use super::config::DecoderConfig;
use super::indexer::Chosen;
use super::layer::Step;
use super::loading;
use crate::models::config::{check_layers, check_size, Checked};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear};
use crate::Result;
use kernels::Activation;

pub use delta_rule::{DeltaRule, Fading};
pub use linear_attention::LinearAttention;
pub use rglru::Rglru;
pub use rwkv::Rwkv;
pub use rwkv_heads::{Generation, RwkvHeads};
pub use selected_heads::SelectedHeads;
pub use selective::Selective;
pub use short_conv::ShortConv;
pub use ssm::{Ssm, SsmFactors, SsmNorm};

/// More numbers than the states of a sequence have in any model.
const MOST_NUMBERS: usize = 1 << 28;

/// What a layer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sublayers {
    pub attention: bool,
    /// With attention, what both give is added.
    pub state: bool,
    pub mlp: bool,
}

impl Sublayers {
    pub const ATTENTION: Self = Self {
        attention: true,
        state: false,
        mlp: true,
    };

    pub const STATE: Self = Self {
        attention: false,
        state: true,
        mlp: true,
    };
}

/// What keeps a state in the layers of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum StateKind {
    ShortConv(ShortConv),
    DeltaRule(DeltaRule),
    LinearAttention(LinearAttention),
    Rglru(Rglru),
    Rwkv(Rwkv),
    RwkvHeads(RwkvHeads),
    SelectedHeads(SelectedHeads),
    Ssm(Ssm),
    Selective(Selective),
}

impl StateKind {
    /// How many numbers each scan of a layer keeps.
    pub fn sizes(&self) -> Vec<usize> {
        match self {
            Self::ShortConv(one) => one.sizes(),
            Self::DeltaRule(one) => one.sizes(),
            Self::LinearAttention(one) => one.sizes(),
            Self::Rglru(one) => one.sizes(),
            Self::Rwkv(one) => one.sizes(),
            Self::RwkvHeads(one) => one.sizes(),
            Self::SelectedHeads(one) => one.sizes(),
            Self::Ssm(one) => one.sizes(),
            Self::Selective(one) => one.sizes(),
        }
    }

    /// Whether its layers launch the same work for every token, with nothing from the host.
    pub fn is_recordable(&self) -> bool {
        match self {
            Self::ShortConv(_)
            | Self::DeltaRule(_)
            | Self::LinearAttention(_)
            | Self::Ssm(_)
            | Self::Selective(_) => true,
            Self::Rglru(_) | Self::Rwkv(_) | Self::RwkvHeads(_) | Self::SelectedHeads(_) => false,
        }
    }

    fn check(&self) -> Checked {
        match self {
            Self::ShortConv(one) => one.check(),
            Self::DeltaRule(one) => one.check(),
            Self::LinearAttention(one) => one.check(),
            Self::Rglru(one) => one.check(),
            Self::Rwkv(one) => one.check(),
            Self::RwkvHeads(one) => one.check(),
            Self::SelectedHeads(one) => one.check(),
            Self::Ssm(one) => one.check(),
            Self::Selective(one) => one.check(),
        }
    }

    fn load(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Box<dyn StateMixer>> {
        match self {
            Self::ShortConv(one) => one.load(parameters, index, config),
            Self::DeltaRule(one) => one.load(parameters, index, config),
            Self::LinearAttention(one) => one.load(parameters, index, config),
            Self::Rglru(one) => one.load(parameters, index, config),
            Self::Rwkv(one) => one.load(parameters, index),
            Self::RwkvHeads(one) => one.load(parameters, index),
            Self::SelectedHeads(one) => one.load(parameters, index, config),
            Self::Ssm(one) => one.load(parameters, index, config),
            Self::Selective(one) => one.load(parameters, index, config),
        }
    }
}

impl StateKind {
    /// The MLP of a layer, where that keeps a state too.
    pub fn load_mlp(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
    ) -> Result<Option<Box<dyn StateMixer>>> {
        match self {
            Self::Rwkv(one) => one.load_mlp(parameters, index).map(Some),
            Self::RwkvHeads(one) => one.load_mlp(parameters, index).map(Some),
            _ => Ok(None),
        }
    }
}

/// A layer that keeps a state.
pub trait StateMixer: Send + Sync {
    fn list(&self, inventory: &mut Inventory) -> Result<()>;

    /// What an adapter can change.
    fn modules(&self) -> Vec<Module>;

    /// What it makes of `[tokens, hidden]`; its scans go through [`Past::scan`].
    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor>;
}

#[allow(clippy::large_enum_variant, reason = "one per layer")]
pub enum Mixer {
    Attention(AttentionLayer),
    State(Box<dyn StateMixer>),
    /// The sum of both.
    Both(AttentionLayer, Box<dyn StateMixer>),
}

impl Mixer {
    /// `None` in a layer that is an MLP alone.
    pub fn load(
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Option<Self>> {
        let has = config.sublayers(index);
        // Shared ones stand before the mixer.
        let attends = has.attention && config.shared_blocks.is_none();
        let attention = attends
            .then(|| loading::attention(parameters, index, config))
            .transpose()?;
        let state = config.state.as_ref().filter(|_| has.state);
        let state = state
            .map(|state| state.load(parameters, index, config))
            .transpose()?;
        Ok(match (attention, state) {
            (None, None) => None,
            (Some(attention), None) => Some(Self::Attention(attention)),
            (None, Some(state)) => Some(Self::State(state)),
            (Some(attention), Some(state)) => Some(Self::Both(attention, state)),
        })
    }

    /// What keeps a state.
    pub fn state(&self) -> Option<&dyn StateMixer> {
        match self {
            Self::State(state) | Self::Both(_, state) => Some(state.as_ref()),
            Self::Attention(_) => None,
        }
    }

    pub fn attention(&self) -> Option<&AttentionLayer> {
        match self {
            Self::Attention(attention) | Self::Both(attention, _) => Some(attention),
            Self::State(_) => None,
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if let Some(attention) = self.attention() {
            attention.list(inventory)?;
        }
        match self {
            Self::Attention(_) => Ok(()),
            Self::State(state) | Self::Both(_, state) => state.list(inventory),
        }
    }

    pub(super) fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
        chosen: &mut Option<Chosen>,
    ) -> Result<Tensor> {
        match self {
            Self::Attention(attention) => {
                let updates = step.adapters.layer(index);
                attention.forward(index, x, past, step, chosen, &updates)
            }
            Self::State(state) => {
                step.cancel.check()?;
                state.forward(index, x, past, step)
            }
            Self::Both(attention, state) => {
                let factors = &step.config.factors;
                let input = elementwise::scale(x, factors.attention_input)?;
                let updates = step.adapters.layer(index);
                let attended = attention.forward(index, &input, past, step, chosen, &updates)?;
                let attended = elementwise::scale(&attended, factors.attention_output)?;
                elementwise::add(&attended, &state.forward(index, x, past, step)?)
            }
        }
    }
}

impl DecoderConfig {
    /// What a layer is made of.
    pub fn sublayers(&self, layer: usize) -> Sublayers {
        let own = self.sublayers.get(layer).copied();
        own.unwrap_or(Sublayers::ATTENTION)
    }

    pub(super) fn check_sublayers(&self) -> Checked {
        if !self.sublayers.is_empty() {
            let length = self.sublayers.len();
            check_layers("the list of layers' kinds", length, self.layer_count)?;
        }
        let keeping = self.sublayers.iter().filter(|layer| layer.state).count();
        let Some(state) = &self.state else {
            return match keeping {
                0 => Ok(()),
                _ => Err("layers keep a state, and it is not said which".to_owned()),
            };
        };
        state.check()?;
        let sizes = state.sizes().into_iter();
        let numbers = sizes.fold(0, usize::saturating_add).saturating_mul(keeping);
        check_size("size of all layers' states", numbers, 0..=MOST_NUMBERS)
    }
}

impl Step<'_> {
    /// What a matrix of a layer that keeps a state gives, with what an adapter adds.
    fn through(&self, layer: usize, part: Part, linear: &Linear, x: &Tensor) -> Result<Tensor> {
        linear.forward_updated(x, &self.adapters.layer(layer).part(part))
    }

    /// A function of it.
    fn activated(
        &self,
        layer: usize,
        part: Part,
        linear: &Linear,
        x: &Tensor,
        activation: Activation,
    ) -> Result<Tensor> {
        let updates = self.adapters.layer(layer).part(part);
        linear.forward_activated(x, activation, &updates)
    }
}

/// The numbers of a tensor in their order, on the host and in f32.
fn values(x: &Tensor) -> Result<Vec<f32>> {
    Ok(floats(x)?.flatten_all()?.to_vec1()?)
}

/// The same in f32, as scans and what stands around them compute.
fn floats(x: &Tensor) -> Result<Tensor> {
    as_type(x, DType::F32)
}

/// The same in the type that the layer computes in.
fn as_type(x: &Tensor, dtype: DType) -> Result<Tensor> {
    match x.rank() {
        2 => kernels::join_columns(&[x], dtype),
        _ => Ok(x.to_dtype(dtype)?),
    }
}

/// Some columns of rows.
fn columns(x: &Tensor, first: usize, width: usize) -> Result<Tensor> {
    kernels::join_columns(&[&x.narrow(1, first, width)?], x.dtype())
}

/// What scans read: rows of f32 beside each other.
fn beside(parts: &[&Tensor]) -> Result<Tensor> {
    kernels::join_columns(parts, DType::F32)
}

/// Every column multiplied by a factor of its own, of the same type.
fn multiply_columns(x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    kernels::gated(x, &factors.broadcast_as(x.shape())?, Activation::Identity)
}
