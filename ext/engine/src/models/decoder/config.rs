//! What tells one family of decoders from another.

use super::blocks::SharedBlocks;
pub use super::factors::Factors;
pub use super::image_embeddings::ImageAttention;
use super::lanes::LaneConfig;
use super::mixers::{StateKind, Sublayers};
use super::shapes::LayerShape;
pub use super::temperature::{Growth, Temperature};
use crate::models::config::{
    check_layer_count, check_layers, check_positions, check_size, check_vocabulary, Checked, Mlp,
    NormConfig, NormPlacement, Positions, QkvLayout, Relative,
};
use crate::nn::AttentionKind;
use formats::files::raw_config::{HEADS, POSITIONS, WIDTH};
use kernels::{Activation, ClampedGlu, RopeKind};

#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// The family's name, as `model_type` or GGUF's `general.architecture` gives it.
    pub architecture: String,
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// How often a token passes a layer.
    pub layer_count: usize,
    /// Layers that run several times.
    pub stacks: Option<Stacks>,
    pub head_count: usize,
    pub kv_head_count: usize,
    pub head_size: usize,
    /// For each layer how it divides attention, where they differ; empty where all do as said above.
    pub shapes: Vec<LayerShape>,
    /// For each layer what it is made of, where they differ; empty where all have attention and an MLP.
    pub sublayers: Vec<Sublayers>,
    /// What keeps a state in the layers that have one.
    pub state: Option<StateKind>,
    /// Which points of these are normalized, where not those of layers with attention (OLMo Hybrid).
    pub state_norm_placement: Option<NormPlacement>,
    /// Layers have attention and MLP in common, before what keeps a state (Zamba 2).
    pub shared_blocks: Option<SharedBlocks>,
    /// Values are normalized over each head, without weights (Gemma 4).
    pub value_norm: bool,
    /// Factor on values (MiMo).
    pub value_scale: f32,
    /// The width of what every layer reads of tokens beside the residual stream (Gemma 3n and 4).
    pub layer_input_size: Option<usize>,
    /// Whose row of them images have.
    pub layer_input_padding: u32,
    /// Every layer multiplies the residual stream by a factor (Gemma 4).
    pub layer_scale: bool,
    /// There are several residual streams (Gemma 3n).
    pub lanes: Option<LaneConfig>,
    /// For each layer, what portion of its MLP's gates is closed (Gemma 3n); empty where none is.
    pub sparsity: Vec<f32>,
    pub max_positions: usize,
    pub norm: NormConfig,
    pub norm_placement: NormPlacement,
    /// The first layer's attention reads the embeddings as they are (ModernBERT).
    pub unnormed_first: bool,
    /// Whether there is a norm after the last layer (OPT 350m has none).
    pub final_norm: bool,
    /// The last norm's epsilon, where it has one of its own (JetMoE).
    pub final_epsilon: Option<f32>,
    pub residual: Residual,
    pub residual_weights: ResidualWeights,
    pub query_key_norm: QueryKeyNorm,
    /// Queries and keys are normalized after their rotation (Hunyuan).
    pub norm_after_rope: bool,
    /// Of the token embeddings (BLOOM).
    pub embedding_norm: Option<NormConfig>,
    /// Of the rows of the token table; `hidden_size` unless a matrix leads from one to the other (OPT 350m).
    pub embedding_size: usize,
    /// What stands between the last layer and the matrix of the head.
    pub head_transform: Option<HeadTransform>,
    /// Queries come from experts, as many as an MLP has (JetMoE).
    pub query_experts: bool,
    /// Heads attend twice, and one half of them is subtracted from the other (DiffLlama). `head_count` and
    /// `kv_head_count` count both times.
    pub differential: bool,
    /// The width between the two matrices of a gate behind the norms before attention and before experts (A.X K2).
    pub norm_gate: Option<usize>,
    /// Attention and MLP normalize what goes into their last matrices (BitNet).
    pub sub_norms: bool,
    pub qkv: QkvLayout,
    /// Keys and values are made of one short row per token (DeepSeek). What is cached of it is the only key, of
    /// `head_size`, and the only value.
    pub latent: Option<Latent>,
    /// Attention sees only the keys that an indexer chooses (DeepSeek V3.2).
    pub indexer: Option<Indexer>,
    /// Queries, keys and values are clamped to this size (OLMo, DBRX).
    pub qkv_limit: Option<f32>,
    pub sinks: Sinks,
    pub temperature: Option<Temperature>,
    pub output_gate: OutputGate,
    /// The activation of MLPs has parameters of its own (Apertus).
    pub xielu: bool,
    pub mlp: Mlp,
    pub experts: Option<Experts>,
    pub positions: Positions,
    pub relative: Relative,
    /// Tokens also see those after them (EmbeddingGemma); such a model can't generate.
    pub bidirectional: bool,
    /// Where the tokens of an image see each other, whichever comes first.
    pub bidirectional_images: ImageAttention,
    /// The tokens of a prompt with images see each other, whichever comes first (PaliGemma).
    pub bidirectional_prompts: bool,
    /// For each layer, how many positions it sees, its own included, backwards and, where it is
    /// bidirectional, forwards; `None` sees all.
    pub windows: Vec<Option<usize>>,
    /// Windows are chunks of so many positions, in which a token sees those before it (Llama 4).
    pub chunked: bool,
    pub attention_scale: f32,
    pub attention_soft_cap: Option<f32>,
    pub logit_soft_cap: Option<f32>,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Factor on what attention and MLP add to the residual stream.
    pub residual_scale: f32,
    pub factors: Factors,
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
    /// Otherwise sorted or multiplied, so that no adapter fits them (GGUF).
    Changed,
}

/// Which layers' heads have a score of their own that takes part in each softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sinks {
    None,
    /// All (gpt-oss).
    All,
    /// Those with a window (MiMo).
    Windowed,
}

/// What attention gives is multiplied by a function of a projection of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputGate {
    None,
    /// By its sigmoid (AFMoE), of a projection to which a bias per head may be added (Beam).
    Sigmoid,
    /// The same of each head (Bailing).
    SigmoidPerHead,
    /// By ln(1 + eˣ), of each element or of each head (Laguna).
    Softplus {
        per_head: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    Sequential,
    /// Attention and MLP read one normalized input (Phi-2, Falcon 7b).
    ParallelOneNorm,
    /// Attention and MLP read one input through norms of their own (GPT-NeoX, Falcon 40b).
    ParallelTwoNorms,
    /// One after the other, and what they add to is the normalized input (BLOOM with
    /// `apply_residual_connection_post_layernorm`).
    SequentialFromNorm,
}

/// Two stacks of so many layers each; the low one runs `low_cycles` times before each run of the high one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacks {
    pub layers: usize,
    pub low_cycles: usize,
    pub high_cycles: usize,
}

/// What the residual stream is multiplied by before attention or MLP add to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResidualWeights {
    None,
    /// The n-th addition counts 1/√n, the stream √((n − 1)/n); the embeddings are the first (Beam).
    Depth,
    /// A weight per dimension (Doge).
    Learned,
    /// Factors on the stream and on what is added, by what adds (MiniMax).
    Fixed {
        attention: [f32; 2],
        state: [f32; 2],
        mlp: [f32; 2],
    },
    /// After every so many layers the stream is halved, and so is all that later layers add (RWKV).
    Halved {
        every: usize,
        /// Whether that is part of the weights (GGUF).
        stored: bool,
    },
}

/// A linear layer, an activation and a norm before the head (ModernBERT), or a linear layer alone (OPT 350m).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadTransform {
    pub width: usize,
    pub activation: Option<Activation>,
    pub norm: bool,
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
    /// Over each head, with weights for every head (Cohere).
    EachHead,
    /// Over each head, without weights; only where queries and keys are rotated (Llama 4).
    Plain,
}

/// Multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// The width that queries pass between two matrices, where they have two.
    pub query_rank: Option<usize>,
    /// The width of a latent.
    pub rank: usize,
    /// How much of a query and of a key is not rotated.
    pub plain: usize,
    /// How much is; keys have this part in common.
    pub rotated: usize,
    /// Of a head's values.
    pub value_size: usize,
    /// Of latents, and of what passes between the matrices of queries.
    pub norm: NormConfig,
    /// Factor on latents (LongCat).
    pub scale: f32,
    /// The second matrix of queries also reads what is not normalized, and also gives a gate for each head's values
    /// (A.X K2).
    pub gated: bool,
}

impl Latent {
    /// What the last matrix of queries gives for a head.
    pub fn query_size(&self) -> usize {
        let gate = if self.gated { self.value_size } else { 0 };
        self.plain + self.rotated + gate
    }

    /// What the second matrix of queries reads.
    pub fn read_width(&self, rank: usize) -> usize {
        if self.gated {
            2 * rank
        } else {
            rank
        }
    }

    /// The width of what is cached of a token.
    pub fn width(&self) -> usize {
        self.rotated + self.rank
    }

    fn check(&self, head_count: usize) -> Checked {
        let sizes = [self.plain, self.rotated, self.rank, self.value_size];
        if sizes.iter().any(|size| !WIDTH.contains(size)) {
            return Err(format!(
                "latent attention can't have parts of the widths {sizes:?}"
            ));
        }
        let widest = self.query_size().max(self.plain + self.value_size);
        check_size("width of attention", head_count * widest, WIDTH)
    }
}

/// What chooses the keys of a sparse attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Indexer {
    pub heads: usize,
    pub size: usize,
    /// How many keys a token sees.
    pub used: usize,
    /// What rotates together in its queries and keys.
    pub pairing: RopeKind,
    /// For each layer, whether it chooses; others see what the one before them sees.
    pub layers: Vec<bool>,
}

impl Indexer {
    fn check(&self, layer_count: usize) -> Checked {
        check_size("number of heads that choose keys", self.heads, HEADS)?;
        check_size("size of heads that choose keys", self.size, WIDTH)?;
        check_size("width of a choice", self.heads * self.size, WIDTH)?;
        check_size("number of keys that are chosen", self.used, POSITIONS)?;
        check_layers("the list of indexers", self.layers.len(), layer_count)?;
        match self.layers.first() {
            Some(false) => Err("the first layer has no keys to share, and must choose some".into()),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    pub count: usize,
    pub used: usize,
    pub scoring: Scoring,
    /// Rescale the chosen experts' weights to sum to 1.
    pub normalize: bool,
    /// What the sum of weights is taken for at least.
    pub least_total: f32,
    /// Factor on the weights.
    pub scale: f32,
    /// A bias per expert changes which are chosen (DeepSeek V3).
    pub biased: bool,
    pub groups: Option<Groups>,
    /// Logits are squeezed below this size (Laguna).
    pub soft_cap: Option<f32>,
    /// Weights multiply what goes into an expert (Llama 4).
    pub weighs_input: bool,
    pub shared: Shared,
    /// So many more can be chosen, which give back what they get (LongCat).
    pub identities: usize,
    /// What all give together is normalized (A.X K1).
    pub normalized: bool,
    /// Experts stand beside the plain MLP of their layer, and what they give is added after the next layer's
    /// (LongCat).
    pub postponed: bool,
    /// Factor on the sum of the chosen and the shared experts (Cohere 2 MoE).
    pub total_scale: f32,
    /// They stand beside the layer's MLP, with norms of their own and a scale for each (Gemma 4).
    pub beside_mlp: bool,
    pub layout: ExpertLayout,
    /// Whether each has a gate, and so has the shared one.
    pub gated: bool,
    /// They read and give rows of this width, which matrices make of the hidden states and back (Nemotron H).
    pub latent: Option<usize>,
    pub glu: Option<ClampedGlu>,
    /// Where it is another one than that of MLPs (Aria).
    pub activation: Option<Activation>,
    /// For each layer, whether it has experts instead of a plain MLP.
    pub layers: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// Softmax of all logits.
    Softmax,
    Sigmoid,
    /// Experts are chosen by logit and weighed by its sigmoid (Llama 4).
    SigmoidOfChosen,
    /// Phi-3.5-MoE's.
    SparseMixer {
        jitter: f32,
    },
}

/// Experts are chosen from the best groups of neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groups {
    pub count: usize,
    pub used: usize,
    /// A group counts as much as so many of its best experts together.
    pub best_of: usize,
    /// The score of experts in other groups.
    pub left_out: f32,
}

/// The expert that every token passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    None,
    Plain,
    /// Weighed by a sigmoid (Qwen2-MoE).
    Gated,
}

/// How a checkpoint stores experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayout {
    /// Each by itself, or stacked `[experts, out, in]` where names have no number.
    Parts,
    /// Gate and up fused and stacked: `[experts, 2 · out, in]`, or `[experts, in, 2 · out]` where transposed, with
    /// gate and up in turns where interleaved.
    Fused { transposed: bool, interleaved: bool },
    /// All experts' rows in one matrix per part `[experts · inner, hidden]` (DBRX).
    Rows,
}

impl ExpertLayout {
    pub const fn fused(transposed: bool, interleaved: bool) -> Self {
        Self::Fused {
            transposed,
            interleaved,
        }
    }
}

impl Experts {
    /// Softmax over all, in every layer.
    pub fn softmax(count: usize, used: usize, layer_count: usize) -> Self {
        Self {
            count,
            used,
            scoring: Scoring::Softmax,
            normalize: false,
            least_total: 1e-20,
            scale: 1.0,
            biased: false,
            groups: None,
            soft_cap: None,
            weighs_input: false,
            shared: Shared::None,
            identities: 0,
            normalized: false,
            postponed: false,
            total_scale: 1.0,
            beside_mlp: false,
            layout: ExpertLayout::Parts,
            gated: true,
            latent: None,
            glu: None,
            activation: None,
            layers: vec![true; layer_count],
        }
    }
}

/// More than any model has.
const MOST_EXPERTS: usize = 65_536;
const MOST_LANES: usize = 64;

impl DecoderConfig {
    /// Whether a step depends on nothing but what a recording reads from the device.
    pub fn is_recordable(&self) -> bool {
        !self.query_experts
            && self.state.as_ref().is_none_or(StateKind::is_recordable)
            && (self.state.is_some() || self.sublayers.is_empty())
            && self.shared_blocks.is_none()
            && self.temperature.is_none()
            && self.embedding_norm.is_none()
            && self.qkv_limit.is_none()
            && self.latent.is_none()
            && self.norm_gate.is_none()
            && self.sinks == Sinks::None
            && self.layer_input_size.is_none()
            && self.lanes.is_none()
            && self.sparsity.is_empty()
            && self
                .shapes
                .iter()
                .all(|one| one.value_size == one.head_size)
            && matches!(self.output_gate, OutputGate::None | OutputGate::Sigmoid)
            && !self.chunked
            && !self.xielu
            && self.head_transform.is_none()
            && self.stacks.is_none()
            && !self.differential
            && self.embedding_size == self.hidden_size
            && self.first_position() == 0
    }

    /// The row of the first token in the table of positions.
    pub fn first_position(&self) -> u32 {
        match self.positions {
            Positions::LearnedFrom { first } | Positions::SinusoidalFrom { first, .. } => first,
            _ => 0,
        }
    }

    /// How many positions the layer that sees the farthest sees; `None` where one sees all.
    pub fn reach(&self) -> Option<usize> {
        let windows = self.windows.iter().copied().enumerate();
        let windows = windows.filter(|&(layer, _)| self.sublayers(layer).attention);
        let windows = windows.map(|(_, window)| window);
        windows
            .reduce(|one, other| Some(one?.max(other?)))
            .flatten()
    }

    /// Which points of a layer are normalized.
    pub fn placement(&self, layer: usize) -> NormPlacement {
        let own = self.state_norm_placement;
        let own = own.filter(|_| self.sublayers(layer).state);
        own.unwrap_or(self.norm_placement)
    }

    /// Which tokens those of a layer see.
    pub fn attention_kind(&self, layer: usize) -> AttentionKind {
        if let (Some(size), true) = (self.windows[layer], self.chunked) {
            return AttentionKind::Chunk { size };
        }
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
        if let Some(latent) = &self.latent {
            latent.check(self.head_count)?;
        }
        if let Some(indexer) = &self.indexer {
            indexer.check(self.layer_count)?;
        }
        if self.differential && !self.kv_head_count.is_multiple_of(4) {
            return Err(format!(
                "differential attention can't divide {} key-value heads in two halves",
                self.kv_head_count / 2
            ));
        }
        check_layer_count(self.layer_count)?;
        if let Some(stacks) = &self.stacks {
            check_size(
                "number of layers in a stack",
                stacks.layers,
                1..=self.layer_count,
            )?;
            let runs = stacks
                .low_cycles
                .saturating_add(1)
                .saturating_mul(stacks.high_cycles);
            let runs = runs.saturating_mul(stacks.layers);
            check_layers("the cycles of all stacks", runs, self.layer_count)?;
        }
        check_vocabulary(self.vocab_size)?;
        check_positions(self.max_positions)?;
        check_layers("the list of windows", self.windows.len(), self.layer_count)?;
        if let Some(experts) = &self.experts {
            check_size("number of experts", experts.count, 1..=MOST_EXPERTS)?;
            check_size("number of experts", experts.identities, 0..=MOST_EXPERTS)?;
            check_size(
                "number of experts per token",
                experts.used,
                1..=experts.count + experts.identities,
            )?;
            if let Some(groups) = experts.groups {
                check_size("number of expert groups", groups.count, 1..=experts.count)?;
                check_size(
                    "number of expert groups per token",
                    groups.used,
                    1..=groups.count,
                )?;
                if !experts.count.is_multiple_of(groups.count) {
                    return Err(format!(
                        "{} experts can't be divided into {} groups",
                        experts.count, groups.count
                    ));
                }
            }
            check_layers(
                "the list of layers with experts",
                experts.layers.len(),
                self.layer_count,
            )?;
        }
        if !self.sparsity.is_empty() {
            let length = self.sparsity.len();
            check_layers("the list of closed gates", length, self.layer_count)?;
        }
        if let Some(portion) = self.sparsity.iter().find(|one| !(0.0..1.0).contains(*one)) {
            return Err(format!("{portion} of the gates can't be closed"));
        }
        if let Some(width) = self.layer_input_size {
            check_size("width of layers' inputs", width, WIDTH)?;
        }
        if let Some(lanes) = self.lanes {
            check_size("number of residual streams", lanes.count, 1..=MOST_LANES)?;
            check_size("active residual stream", lanes.active, 0..=lanes.count - 1)?;
        }
        self.check_sublayers()?;
        self.check_shapes()
    }
}
