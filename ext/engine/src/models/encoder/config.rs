//! What tells one family of encoders from another.

use crate::models::config::{
    check_layer_count, check_size, AttentionShape, Checked, Mlp, NormConfig, NormPlacement,
    Positions, QkvLayout, Relative,
};
use crate::nn::AttentionKind;
use formats::files::raw_config::WIDTH;
use kernels::Activation;

/// More than any model has.
const MOST_EXPERTS: std::ops::RangeInclusive<usize> = 1..=65_536;

#[derive(Clone, Debug)]
pub struct EncoderConfig {
    pub family: &'static str,
    pub hidden_size: usize,
    pub head_count: usize,
    pub head_size: usize,
    /// One entry per layer that is run.
    pub layers: Vec<LayerConfig>,
    /// Multiplies query · key; `None` is 1 / √width, over all that is added up to a score.
    pub attention_scale: Option<f32>,
    /// Multiplies the token embeddings, before positions are added.
    pub embedding_scale: f32,
    /// The width of the token embeddings; a projection follows when it is not `hidden_size`.
    pub embedding_size: usize,
    /// 0 when the family adds no token types.
    pub token_types: usize,
    pub positions: Positions,
    pub relative: Relative,
    /// The longest sequence that positions exist for; `None` when nothing limits it.
    pub max_positions: Option<usize>,
    pub norm: NormConfig,
    pub norm_placement: NormPlacement,
    pub mlp: Mlp,
    pub qkv: QkvLayout,
    pub heads_on_top: HeadConfigs,
    /// DeBERTa-v2's convolution beside the first layer.
    pub convolution: Option<Convolution>,
    pub mechanisms: Mechanisms,
}

/// What only some families have.
#[derive(Clone, Debug, Default)]
pub struct Mechanisms {
    /// Layers that share a number (ALBERT).
    pub sublayers: Option<usize>,
    pub mixer: Mixer,
    /// Fewer than the attention heads, where several share a key and a value.
    pub kv_head_count: Option<usize>,
    /// cap · tanh(score / cap) of attention's scores (Gemma 2).
    pub soft_cap: Option<f32>,
    /// Values rotate as queries and keys do (RoFormer).
    pub rotates_values: bool,
    /// The norms inside layers, where they are not those of the embeddings and the heads.
    pub layer_norm: Option<NormConfig>,
    pub embedding_order: EmbeddingOrder,
    /// Embeddings of this token are zero, and those of the others are larger the more there are of it (ESM).
    pub masked_token: Option<u32>,
    pub adapter: Option<Adapter>,
    pub narrow: Option<Narrow>,
    /// Which tokens see all others, and are seen by them, in a model of windows (Longformer).
    pub sees_all: SeesAll,
    /// Every sequence is continued to this length by tokens that are not attended to (Nyströmformer).
    pub padded_to: Option<usize>,
    pub experts: Option<MlpExperts>,
    /// How wide what a decoder attends to is, where that is not its own width (TrOCR).
    pub memory_size: Option<usize>,
}

/// Experts in the place of the MLPs of some layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlpExperts {
    pub count: usize,
    /// How many of them a token passes.
    pub used: usize,
    /// Every so many layers, the second of them, has experts.
    pub every: usize,
}

/// What mixes the tokens of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mixer {
    #[default]
    Attention,
    /// The real part of the Fourier transform over tokens and dimensions (FNet).
    Fourier,
    /// Attention, and beside it convolutions whose kernels each token makes (ConvBERT).
    Convolutions { kernel: usize },
    /// Attention through means of segments of tokens (Nyströmformer).
    Landmarks { count: usize },
    /// From sequences of `from` tokens on, blocks of queries see some blocks of keys (BigBird).
    Blocks {
        size: usize,
        random: usize,
        from: usize,
    },
}

/// Where the projection of embeddings to the hidden size stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmbeddingOrder {
    /// Behind positions and norm.
    #[default]
    Last,
    /// Before positions are added.
    First,
    /// The same, of each token's embedding between those of the next one and of the one before (MobileBERT).
    FirstOfThree,
}

/// What stands behind the MLP of a layer for each language (X-MOD).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    pub language: String,
    pub norm: AdapterNorm,
    /// What the adapter adds to is normalized.
    pub residual_behind_norm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterNorm {
    None,
    Own,
    /// That of the MLP.
    Shared,
}

/// Layers that compute on narrower rows (MobileBERT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrow {
    pub width: usize,
    pub attention: NarrowAttention,
    /// How many MLPs stand before the last one.
    pub earlier_mlps: usize,
    /// Norms only multiply and add.
    pub linear_norms: bool,
}

/// What attention reads in such a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NarrowAttention {
    /// Narrow rows.
    Narrow,
    /// Narrow rows of its own make queries and keys, wide ones values.
    Shared,
    /// Wide rows.
    Wide,
    /// There is no narrow part at all.
    Whole,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeesAll {
    #[default]
    None,
    /// The first token in classification, the question in answering.
    ByTask { separator: Option<u32> },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    pub attention: AttentionKind,
    /// Layers of one number share their weights (ALBERT).
    pub weights: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequencePooling {
    First,
    Mean,
    /// The last token's that is not this one, with which texts are padded.
    Last {
        padding: Option<u32>,
    },
    /// The mean of all tokens' logits (EuroBERT).
    MeanLogits,
}

/// How the heads on top of a family work; which tensors they have is found in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadConfigs {
    pub pooling: SequencePooling,
    pub sequence_activation: Activation,
    pub token_activation: Activation,
    pub masked_activation: Activation,
    /// Logits over the vocabulary are read off the token embedding, and nothing else says so in the file.
    pub masked_tied: bool,
    /// The file says that they are not, so that the matrix which makes them has a bias of its own.
    pub masked_untied: bool,
    /// Behind the logits of a sequence (XLM).
    pub sequence_last: Activation,
}

impl Default for HeadConfigs {
    fn default() -> Self {
        Self {
            pooling: SequencePooling::First,
            sequence_activation: Activation::Tanh,
            token_activation: Activation::Gelu,
            masked_activation: Activation::Gelu,
            masked_tied: false,
            masked_untied: false,
            sequence_last: Activation::Identity,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    pub kernel: usize,
    pub groups: usize,
    pub activation: Activation,
}

impl EncoderConfig {
    pub fn attention_shape(&self) -> AttentionShape {
        AttentionShape {
            hidden_size: self.hidden_size,
            head_count: self.head_count,
            kv_head_count: self.mechanisms.kv_head_count.unwrap_or(self.head_count),
            head_size: self.head_size,
            value_size: self.head_size,
        }
    }

    /// Of the norms inside layers.
    pub fn layer_norm(&self) -> NormConfig {
        self.mechanisms.layer_norm.unwrap_or(self.norm)
    }

    /// How many layers share a number in the names of tensors.
    pub fn sublayers(&self) -> usize {
        self.mechanisms.sublayers.unwrap_or(1)
    }

    /// How many layers have weights of their own.
    pub fn stored_layers(&self) -> usize {
        let numbers = self.layers.iter().map(|layer| layer.weights);
        numbers.max().map_or(0, |last| last + 1)
    }

    /// Whether a layer's attention keeps to a window, and so to the local base of rotary positions.
    pub fn is_local(&self, layer: usize) -> bool {
        let attention = self.layers.get(layer).map(|layer| layer.attention);
        matches!(attention, Some(AttentionKind::Window { .. }))
    }

    /// The sizes fit each other and are possible at all.
    pub fn check(&self) -> Checked {
        self.attention_shape().check()?;
        check_size("width of the token embeddings", self.embedding_size, WIDTH)?;
        check_layer_count(self.layers.len())?;
        if let Some(experts) = &self.mechanisms.experts {
            check_size("number of experts", experts.count, MOST_EXPERTS)?;
            if !(1..=experts.count).contains(&experts.used) {
                let (used, count) = (experts.used, experts.count);
                return Err(format!("{used} experts of {count} are to be used"));
            }
        }
        match self.relative.rope() {
            Some(rope) => rope.check(self.head_size, self.layers.len()),
            None => Ok(()),
        }
    }
}

/// Layers with weights of their own, whose attention sees everything.
pub fn plain_layers(count: usize) -> Vec<LayerConfig> {
    let attention = AttentionKind::Bidirectional;
    (0..count)
        .map(|weights| LayerConfig { attention, weights })
        .collect()
}
