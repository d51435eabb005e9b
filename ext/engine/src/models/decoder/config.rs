//! What tells one family of decoders from another.

use crate::kernels::{Activation, RopeKind};
use crate::nn::AttentionKind;

#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// The family's name, as `model_type` or GGUF's `general.architecture` gives it.
    pub architecture: String,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub layer_count: usize,
    pub head_count: usize,
    pub kv_head_count: usize,
    pub head_size: usize,
    pub max_positions: usize,
    pub norm: NormConfig,
    pub norm_placement: NormPlacement,
    pub residual: Residual,
    pub query_key_norm: QueryKeyNorm,
    pub qkv: QkvLayout,
    pub mlp: Mlp,
    pub experts: Option<Experts>,
    pub positions: Positions,
    /// Tokens also see those after them (EmbeddingGemma); such a model can't generate.
    pub bidirectional: bool,
    /// For each layer, how many positions it sees, its own included, backwards and, where it is
    /// bidirectional, forwards; `None` sees all.
    pub windows: Vec<Option<usize>>,
    pub attention_scale: f32,
    pub attention_soft_cap: Option<f32>,
    pub logit_soft_cap: Option<f32>,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Factor on what attention and MLP add to the residual stream.
    pub residual_scale: f32,
    /// Factor on the final logits.
    pub logit_scale: f32,
    /// The output head is the token embedding.
    pub tied_head: bool,
    pub row_order: RowOrder,
}

impl DecoderConfig {
    /// Which tokens those of a layer see.
    pub fn attention_kind(&self, layer: usize) -> AttentionKind {
        let reach = self.windows[layer].map(|window| window.saturating_sub(1));
        match (reach, self.bidirectional) {
            (None, false) => AttentionKind::Causal,
            (None, true) => AttentionKind::Bidirectional,
            (Some(left), false) => AttentionKind::Window { left, right: 0 },
            (Some(reach), true) => AttentionKind::Window {
                left: reach,
                right: reach,
            },
        }
    }
}

/// How the rows of query, key and value in transformers' checkpoints, and so in adapters, come to
/// lie in the loaded weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    Same,
    /// Sorted by part, from one group per key-value head.
    Grouped,
    /// With what turns together side by side (GGUF).
    Neighbours,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormConfig {
    /// `offset` is added to the weight: 1 for Gemma's checkpoints.
    Rms {
        epsilon: f32,
        offset: f32,
    },
    Layer {
        epsilon: f32,
    },
}

/// Which points of a layer are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before attention and before the MLP.
    Pre,
    /// On what attention and the MLP add (OLMo 2).
    Post,
    /// Both (Gemma 2 and 3, GLM-4).
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    Sequential,
    /// Attention and MLP read the same normalized input (Phi-2, Falcon 7b).
    ParallelOneNorm,
    /// Attention and MLP read the same input through norms of their own (GPT-NeoX, Falcon 40b).
    ParallelTwoNorms,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    None,
    /// Over each head (Qwen 3, Gemma 3).
    PerHead,
    /// Over all heads together (OLMo 2).
    Whole,
}

/// How the rows of query, key and value weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvLayout {
    Split,
    /// One matrix: all queries, all keys, all values (Phi-3, GPT-2, Falcon 7b).
    Fused,
    /// One matrix, per key-value head: its queries, its key, its value (GPT-NeoX, Falcon 40b).
    FusedByHead,
    /// Like `Fused`, but stored transposed (GPT-2's safetensors).
    FusedTransposed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mlp {
    pub kind: MlpKind,
    pub activation: Activation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// `down(act(gate(x)) * up(x))`
    Gated,
    /// The same with gate and up in one matrix (Phi-3, GLM-4).
    GatedFused,
    /// `down(act(up(x)))`
    Plain,
    /// `Plain` with weights stored transposed (GPT-2's safetensors).
    PlainTransposed,
}

#[derive(Clone, Debug)]
pub struct Experts {
    pub count: usize,
    pub used: usize,
    /// Rescale the chosen experts' weights to sum to 1.
    pub normalize: bool,
    /// An expert that every token passes, gated by a sigmoid (Qwen2-MoE).
    pub shared: bool,
    /// For each layer, whether it has experts instead of a plain MLP.
    pub layers: Vec<bool>,
    pub layout: ExpertLayout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayout {
    /// One set of tensors per expert.
    Separate,
    /// All experts stacked, gate and up apart (GGUF).
    Stacked,
}

#[derive(Clone, Debug)]
pub enum Positions {
    Rope(RopeConfig),
    /// A learned table added to the embeddings (GPT-2).
    Learned,
}

#[derive(Clone, Debug)]
pub struct RopeConfig {
    pub theta: f32,
    /// Layers with a sliding window may have a base of their own (Gemma 3).
    pub local_theta: Option<f32>,
    /// How many dimensions of a head are rotated.
    pub rotary_size: usize,
    pub pairing: RopeKind,
    pub scaling: RopeScaling,
    /// For each layer, whether it rotates at all (SmolLM 3 leaves out every fourth).
    pub layers: Vec<bool>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear {
        factor: f32,
    },
    Llama3 {
        factor: f32,
        low_frequency_factor: f32,
        high_frequency_factor: f32,
        original_positions: usize,
    },
    Yarn {
        factor: f32,
        beta_fast: f32,
        beta_slow: f32,
        original_positions: usize,
        attention_factor: f32,
        truncate: bool,
    },
    /// Divisors per frequency, one set for contexts up to the original length and one beyond.
    LongRope {
        short: Vec<f32>,
        long: Vec<f32>,
        original_positions: usize,
        attention_factor: f32,
    },
    /// Divisors per frequency, as GGUF stores llama3's scaling.
    Divisors(Vec<f32>),
}
