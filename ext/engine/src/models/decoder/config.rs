//! What tells one family of decoders from another.

use crate::models::config::{
    check_layer_count, check_layers, check_positions, check_size, check_vocabulary, AttentionShape,
    Checked, Mlp, NormConfig, NormPlacement, Positions, QkvLayout, Relative,
};
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
    pub relative: Relative,
    /// Tokens also see those after them (EmbeddingGemma); such a model can't generate.
    pub bidirectional: bool,
    /// The tokens of an image see each other, whichever comes first (Gemma 3).
    pub whole_guests: bool,
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

/// How the rows of query, key and value in transformers' checkpoints, and so in adapters, come to
/// lie in the loaded weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    Same,
    /// Sorted by part, from one group per key-value head.
    Grouped,
    /// With what rotates together side by side (GGUF).
    Neighbours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    Sequential,
    /// Attention and MLP read one normalized input (Phi-2, Falcon 7b).
    ParallelOneNorm,
    /// Attention and MLP read one input through norms of their own (GPT-NeoX, Falcon 40b).
    ParallelTwoNorms,
}

impl Residual {
    pub fn parallel(is_parallel: bool, two_norms: bool) -> Self {
        match (is_parallel, two_norms) {
            (false, _) => Self::Sequential,
            (true, false) => Self::ParallelOneNorm,
            (true, true) => Self::ParallelTwoNorms,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    None,
    /// Over each head (Qwen 3, Gemma 3).
    PerHead,
    /// Over all heads together (OLMo 2).
    Whole,
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
}

/// More than any model has.
const MOST_EXPERTS: usize = 65_536;

impl DecoderConfig {
    pub fn attention_shape(&self) -> AttentionShape {
        AttentionShape {
            hidden_size: self.hidden_size,
            head_count: self.head_count,
            kv_head_count: self.kv_head_count,
            head_size: self.head_size,
        }
    }

    /// How many positions the layer that sees the farthest sees; `None` where one sees all.
    pub fn reach(&self) -> Option<usize> {
        let windows = self.windows.iter().copied();
        windows
            .reduce(|one, other| Some(one?.max(other?)))
            .flatten()
    }

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

    /// The sizes fit each other and are possible at all.
    pub fn check(&self) -> Checked {
        self.attention_shape().check()?;
        check_layer_count(self.layer_count)?;
        check_vocabulary(self.vocab_size)?;
        check_positions(self.max_positions)?;
        check_layers("the list of windows", self.windows.len(), self.layer_count)?;
        if let Some(experts) = &self.experts {
            check_size("number of experts", experts.count, 1..=MOST_EXPERTS)?;
            check_size(
                "number of experts per token",
                experts.used,
                1..=experts.count,
            )?;
            check_layers(
                "the list of layers with experts",
                experts.layers.len(),
                self.layer_count,
            )?;
        }
        match self.relative.rope() {
            Some(rope) => rope.check(self.head_size, self.layer_count),
            None => Ok(()),
        }
    }
}
