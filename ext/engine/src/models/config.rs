//! The vocabulary in which models of every shape are described.

use std::ops::RangeInclusive;
use std::path::Path;

use crate::{Error, Result};
use formats::files::raw_config::{HEADS, LAYERS, POSITIONS, VOCABULARY, WIDTH};
use kernels::{Activation, RopeKind};

/// A reason why a configuration can't be a model's; who reads it names the file.
pub type Checked = std::result::Result<(), String>;

/// How attention divides the hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    pub hidden_size: usize,
    pub head_count: usize,
    /// Fewer than `head_count` where several query heads share a key and a value.
    pub kv_head_count: usize,
    /// Of queries and keys.
    pub head_size: usize,
    pub value_size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    pub kind: NormKind,
    pub epsilon: f32,
    /// Added to the weight: 1 for Gemma's checkpoints.
    pub offset: f32,
    /// Whether it has a weight at all (OLMo and nanochat have none).
    pub weighted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    Layer,
    Rms,
}

/// Which points of a layer are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before attention and before the MLP.
    Pre,
    /// After each residual sum (BERT).
    Post,
    /// On what attention and the MLP add, before the sum (OLMo 2).
    Output,
    /// `Pre` and `Output` (Gemma 2 and 3, GLM-4).
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mlp {
    pub kind: MlpKind,
    pub activation: Activation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// `down(activation(up(x)))`
    Plain,
    /// `down(activation(gate(x)) * up(x))`
    Gated,
}

/// How the rows of one matrix for query, key and value are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvLayout {
    /// All queries, all keys, all values.
    Stacked,
    /// Per key-value head: its queries, its key, its value (GPT-NeoX, Falcon 40b, DeBERTa v1).
    ByHead,
    /// So many blocks of heads, each with its queries, its values, its keys (CodeGen).
    QueryValueKey { blocks: usize },
}

/// What is added to the token embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    None,
    /// A learned table, indexed from 0.
    Learned,
    /// A learned table whose row `padding_id + 1` is the first token's; padding tokens do not count.
    LearnedAfterPadding {
        padding_id: u32,
    },
    /// A learned table whose row `first` is the first token's (BART).
    LearnedFrom {
        first: u32,
    },
    /// Sines, then cosines, of which row `first` is the first token's, and one row is zero (XGLM).
    SinusoidalFrom {
        first: u32,
        zero_row: Option<u32>,
    },
    /// Sines, then cosines; with a padding token they are counted as in `LearnedAfterPadding`.
    Sinusoidal {
        frequencies: Frequencies,
        padding_id: Option<u32>,
    },
}

/// How the frequencies fall from 1 towards 1/10000, in even steps of their logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequencies {
    /// The step after the last one would be 1/10000 (Marian, Pegasus).
    Open,
    /// The last one is 1/10000 (M2M100).
    Closed,
}

/// What attention knows of distances.
#[derive(Clone, Debug, PartialEq)]
pub enum Relative {
    None,
    Rope(RopeConfig),
    /// Scores fall with the distance, by a slope per head; none where the heads' own are computed.
    Alibi {
        slopes: Vec<f32>,
    },
    /// One bias per head and distance bucket (MPNet, T5).
    Buckets {
        count: usize,
        farthest: usize,
        directions: Directions,
    },
    Disentangled(DisentangledConfig),
    /// The same buckets in both directions, weighed by each token (WavLM).
    GatedBuckets {
        count: usize,
        farthest: usize,
    },
}

/// Which distances have buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directions {
    Both,
    /// Back alone: what attends sees nothing that follows (T5's decoder).
    Back,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub theta: f32,
    /// Layers with a sliding window may have a base of their own (Gemma 3, ModernBERT).
    pub local_theta: Option<f32>,
    /// How many dimensions of a head are rotated.
    pub rotary_size: usize,
    pub pairing: RopeKind,
    pub scaling: RopeScaling,
    /// For each layer, whether it rotates at all (SmolLM 3 leaves out every fourth); empty where
    /// all do.
    pub layers: Vec<bool>,
    /// For each layer, what it rotates by instead of this (Laguna, Gemma 4); empty where all layers rotate alike.
    pub by_layer: Vec<Option<RopeConfig>>,
    /// Windowed layers rotate without the scaling of the others (OLMo 3).
    pub unscaled_windows: bool,
    /// By the opposite angles (nanochat).
    pub backwards: bool,
    pub axes: RopeAxes,
}

/// By which of its coordinates a token rotates.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeAxes {
    /// It has one.
    Line,
    /// Runs of so many frequencies belong to time, row and column, which are the same for texts (Qwen2-VL).
    Sections([usize; 3]),
    /// So many frequencies belong to time, row and column in turns; what is left of them is time's (Qwen3-VL).
    Turns([usize; 3]),
    /// One half of a head rotates by the row, the other by the column, by the same frequencies each
    /// (Qwen2-VL's patches).
    Grid,
    /// The same, where every second frequency of the whole is the row's and those between are the column's (Pixtral).
    GridTurns,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear {
        factor: f32,
    },
    /// A larger base, with all frequencies divided so that the fastest stays (GTE).
    Ntk {
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
    /// So many of the first frequencies, divided by the factor; the others don't turn (Gemma 4).
    Proportional {
        turning: usize,
        factor: f32,
    },
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

impl DisentangledConfig {
    /// How many scores are summed.
    pub fn scores(&self) -> usize {
        1 + usize::from(self.from_query) + usize::from(self.from_key)
    }
}

impl NormConfig {
    pub const fn new(kind: NormKind, epsilon: f32) -> Self {
        Self {
            kind,
            epsilon,
            offset: 0.0,
            weighted: true,
        }
    }

    /// The same without weights.
    pub const fn plain(self) -> Self {
        Self {
            weighted: false,
            ..self
        }
    }
}

impl RopeScaling {
    /// The frequencies between which YaRN blends are not rounded to whole ones (gpt-oss).
    pub fn keep_edges(&mut self) {
        if let Self::Yarn { truncate, .. } = self {
            *truncate = false;
        }
    }
}

impl Relative {
    pub fn rope(&self) -> Option<&RopeConfig> {
        match self {
            Self::Rope(rope) => Some(rope),
            _ => None,
        }
    }

    /// Neighbours of a head rotate together.
    pub fn interleave(&mut self) {
        if let Self::Rope(rope) = self {
            rope.pairing = RopeKind::Interleaved;
        }
    }

    pub fn rope_mut(&mut self) -> Option<&mut RopeConfig> {
        match self {
            Self::Rope(rope) => Some(rope),
            _ => None,
        }
    }
}

impl AttentionShape {
    /// The width of all queries.
    pub fn width(&self) -> usize {
        self.head_count * self.head_size
    }

    /// The width of all keys.
    pub fn key_width(&self) -> usize {
        self.kv_head_count * self.head_size
    }

    /// The width of all values.
    pub fn value_width(&self) -> usize {
        self.kv_head_count * self.value_size
    }

    /// The width of what attention gives.
    pub fn attended_width(&self) -> usize {
        self.head_count * self.value_size
    }

    pub fn check(&self) -> Checked {
        check_size("hidden size", self.hidden_size, WIDTH)?;
        check_size("number of attention heads", self.head_count, HEADS)?;
        check_size("number of key-value heads", self.kv_head_count, HEADS)?;
        check_size("size of a head", self.head_size, WIDTH)?;
        check_size("size of a value", self.value_size, WIDTH)?;
        if !self.head_count.is_multiple_of(self.kv_head_count) {
            return Err(format!(
                "{} attention heads can't share {} key-value heads evenly",
                self.head_count, self.kv_head_count
            ));
        }
        check_size("width of attention", self.width(), WIDTH)?;
        check_size("width of values", self.attended_width(), WIDTH)
    }
}

impl RopeConfig {
    pub fn check(&self, head_size: usize, layer_count: usize) -> Checked {
        let size = self.rotary_size;
        if size == 0 || !size.is_multiple_of(2) || size > head_size {
            return Err(format!(
                "rotary positions can't rotate {size} dimensions of heads of {head_size}"
            ));
        }
        let bases = [Some(self.theta), self.local_theta];
        for theta in bases.into_iter().flatten() {
            if !(theta.is_finite() && theta > 0.0) {
                return Err(format!("rotary positions can't have the base {theta}"));
            }
        }
        match self.axes {
            RopeAxes::Sections(lengths) | RopeAxes::Turns(lengths)
                if lengths.iter().sum::<usize>() != size / 2 =>
            {
                return Err(format!(
                    "rotary positions can't divide {} frequencies into {lengths:?}",
                    size / 2
                ));
            }
            RopeAxes::Grid | RopeAxes::GridTurns if !size.is_multiple_of(4) => {
                return Err(format!(
                    "rotary positions can't divide {size} dimensions among rows and columns"
                ));
            }
            _ => {}
        }
        for length in [self.layers.len(), self.by_layer.len()] {
            if length != 0 {
                check_layers("the list of rotated layers", length, layer_count)?;
            }
        }
        let mut others = self.by_layer.iter().flatten();
        if others.any(|own| own.variants() > 1 || own.axes != RopeAxes::Line) {
            Err("the rotation of some layers can't depend on more than positions".into())
        } else {
            Ok(())
        }
    }
}

pub fn check_size(what: &str, size: usize, range: RangeInclusive<usize>) -> Checked {
    if range.contains(&size) {
        Ok(())
    } else {
        Err(format!(
            "the {what} is {size}, and should be between {} and {}",
            range.start(),
            range.end()
        ))
    }
}

pub fn check_layer_count(count: usize) -> Checked {
    check_size("number of layers", count, LAYERS)
}

pub fn check_vocabulary(size: usize) -> Checked {
    check_size("vocabulary", size, VOCABULARY)
}

pub fn check_positions(count: usize) -> Checked {
    check_size("number of positions", count, POSITIONS)
}

/// A list has an entry per layer.
pub fn check_layers(what: &str, length: usize, layer_count: usize) -> Checked {
    if length == layer_count {
        Ok(())
    } else {
        Err(format!(
            "{what} has {length} entries for {layer_count} layers"
        ))
    }
}

/// Slopes 2^(−8i / n) for n a power of two; other head counts borrow every second slope of the next
/// power.
pub fn alibi_slopes(heads: usize) -> Vec<f32> {
    let powers = |n: usize| (1..=n).map(move |i| 2f64.powf(-8.0 * i as f64 / n as f64));
    let below = if heads.is_power_of_two() {
        heads
    } else {
        heads.next_power_of_two() / 2
    };
    powers(below)
        .chain(powers(2 * below).step_by(2))
        .take(heads)
        .map(|slope| slope as f32)
        .collect()
}

/// The activation that a configuration names; `file` is where.
pub fn activation(name: &str, file: &Path) -> Result<Activation> {
    match name {
        "gelu" | "gelu_python" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_accurate" => {
            Ok(Activation::GeluTanh)
        }
        "quick_gelu" => Ok(Activation::QuickGelu),
        "silu" | "swish" | "swiglu" => Ok(Activation::Silu),
        "relu" => Ok(Activation::Relu),
        "relu6" => Ok(Activation::Relu6),
        "relu2" | "relu_squared" => Ok(Activation::ReluSquared),
        "tanh" => Ok(Activation::Tanh),
        "sigmoid" => Ok(Activation::Sigmoid),
        "identity" | "linear" => Ok(Activation::Identity),
        _ => Err(Error::unsupported(
            file,
            format_args!(
                "the activation {name:?} is not one of gelu, gelu_new, quick_gelu, silu, relu, relu2, relu6, tanh, sigmoid"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_power_of_two_and_other_head_counts() {
        assert_eq!(alibi_slopes(8)[0], 0.5);
        assert_eq!(alibi_slopes(8)[7], 1.0 / 256.0);
        let twelve = alibi_slopes(12);
        assert_eq!(twelve.len(), 12);
        assert_eq!(twelve[8], 2f64.powf(-0.5) as f32);
        assert_eq!(twelve[9], 2f64.powf(-1.5) as f32);
    }
}
