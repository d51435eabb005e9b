//! What tells one encoder from another: the whole of a family is a value of `EncoderConfig`.

use crate::kernels::Activation;
use crate::nn::AttentionKind;
use crate::{Error, Result};

#[derive(Clone, Debug)]
pub struct EncoderConfig {
    pub family: &'static str,
    pub vocabulary: usize,
    pub hidden: usize,
    pub heads: usize,
    pub head_width: usize,
    pub intermediate: usize,
    /// One entry per layer that is run.
    pub layers: Vec<LayerConfig>,
    /// The width of the token table; a projection follows when it is not `hidden`.
    pub embedding_width: usize,
    /// 0 when the family adds no token types.
    pub token_types: usize,
    pub positions: Positions,
    pub relative: Relative,
    /// The longest sequence that positions exist for; `None` when nothing limits it.
    pub max_positions: Option<usize>,
    pub norm: NormKind,
    pub epsilon: f32,
    pub placement: NormPlacement,
    pub mlp: Mlp,
    pub activation: Activation,
    pub fused_qkv: FusedQkv,
    pub heads_on_top: HeadConfigs,
    /// The padding token, which RoBERTa-like positions are counted from.
    pub padding_id: Option<u32>,
    /// DeBERTa-v2's convolution beside the first layer.
    pub convolution: Option<Convolution>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    pub attention: AttentionKind,
    /// Which of `Relative::Rope`'s tables this layer turns by.
    pub rope: usize,
    /// Layers of one number share their weights (ALBERT).
    pub weights: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    None,
    /// A learned table, indexed from 0.
    Learned,
    /// A learned table whose row `padding_id + 1` is the first token's; padding tokens do not count.
    LearnedAfterPadding,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Relative {
    None,
    Rope(Vec<RopeConfig>),
    Alibi,
    /// One bias per head and distance bucket (MPNet).
    Buckets {
        count: usize,
        farthest: usize,
    },
    Disentangled(DisentangledConfig),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    pub theta: f32,
    /// How many elements of a head turn.
    pub rotary: usize,
    /// Divides every frequency.
    pub divisor: f32,
    pub interleaved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisentangledConfig {
    /// The content of a query scores positions.
    pub from_query: bool,
    /// The content of a key scores positions.
    pub from_key: bool,
    /// Distances are told apart up to this one, in each direction.
    pub farthest: usize,
    /// Distances fall into this many logarithmic buckets (v2/v3) instead of one each.
    pub buckets: Option<usize>,
    /// Positions go through the layer's own query and key projections.
    pub shared: bool,
    pub normed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    Layer,
    Rms,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// After each residual sum.
    Post,
    /// Before each sublayer, and once at the end.
    Pre,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    Plain,
    /// activation(gate) · up.
    Gated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedQkv {
    /// All queries, all keys, all values.
    Stacked,
    /// Query, key and value of the first head, then of the second (DeBERTa v1).
    PerHead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequencePooling {
    First,
    Mean,
}

/// How the heads on top of a family work; which tensors they have is found in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadConfigs {
    pub pooling: SequencePooling,
    pub sequence_activation: Activation,
    pub token_activation: Activation,
    pub masked_activation: Activation,
}

impl Default for HeadConfigs {
    fn default() -> Self {
        Self {
            pooling: SequencePooling::First,
            sequence_activation: Activation::Tanh,
            token_activation: Activation::Gelu,
            masked_activation: Activation::Gelu,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    pub kernel: usize,
    pub groups: usize,
    pub activation: Activation,
}

/// Sizes beyond these are not those of a model but of a damaged or hostile file.
const MOST_LAYERS: usize = 1024;
const WIDEST: usize = 1 << 20;

impl EncoderConfig {
    /// The sizes fit each other and are possible at all.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::CorruptModel(format!("config: {what}")));
        let sizes = [
            ("hidden size", self.hidden),
            ("number of attention heads", self.heads),
            ("head width", self.head_width),
            ("intermediate size", self.intermediate),
            ("embedding size", self.embedding_width),
        ];
        for (name, size) in sizes {
            if size == 0 || size > WIDEST {
                return bad(format!("the {name} cannot be {size}"));
            }
        }
        if self.layers.is_empty() || self.layers.len() > MOST_LAYERS {
            return bad(format!(
                "a model of {} layers is not possible",
                self.layers.len()
            ));
        }
        if let Relative::Rope(ropes) = &self.relative {
            let sound = |rope: &RopeConfig| {
                rope.rotary > 0 && rope.rotary.is_multiple_of(2) && rope.rotary <= self.head_width
            };
            if !ropes.iter().all(sound) || self.layers.iter().any(|layer| layer.rope >= ropes.len())
            {
                return bad("the rotary positions do not fit the heads".into());
            }
        }
        Ok(())
    }
}

/// The activation of a config's name for it.
pub fn activation(name: &str) -> Result<Activation> {
    Activation::from_name(name).ok_or_else(|| {
        Error::UnsupportedModel(format!(
            "the activation {name:?} is not one of gelu, gelu_new, quick_gelu, silu, relu, tanh, sigmoid"
        ))
    })
}
