//! What tells one family of encoders from another.

use crate::models::config::{
    check_layer_count, check_size, AttentionShape, Checked, Mlp, NormConfig, NormPlacement,
    Positions, QkvLayout, Relative,
};
use crate::nn::AttentionKind;
use formats::files::raw_config::WIDTH;
use kernels::Activation;

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

impl EncoderConfig {
    pub fn attention_shape(&self) -> AttentionShape {
        AttentionShape {
            hidden_size: self.hidden_size,
            head_count: self.head_count,
            kv_head_count: self.head_count,
            head_size: self.head_size,
            value_size: self.head_size,
        }
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
