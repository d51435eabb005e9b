//! What each kind of scan is made of, and its lanes on the CPU.

use crate::cpu::scan::{ConvolutionLane, MatrixLane, MatrixRule, RwkvLane, SelectiveLane};
use crate::Activation;

/// So many channels of a convolution, columns of a head's values, channels of Mamba and recurrent units are a lane,
/// where they can be divided so.
const CONVOLVED: usize = 64;
const COLUMNS: usize = 32;
/// How many parts of the channels of RWKV are lanes.
const MOST_LANES: usize = 16;

fn block(count: usize, wanted: usize) -> usize {
    if count.is_multiple_of(wanted) {
        wanted
    } else {
        count
    }
}

/// The numbers of each block's channels, `[blocks, block, count]`, as `[blocks, count, block]`.
fn by_number(values: &[f32], block: usize, count: usize) -> Vec<f32> {
    let blocks = values.chunks_exact(block * count);
    let sorted = blocks.flat_map(|block| {
        let of_number = move |number: usize| block.iter().skip(number).step_by(count).copied();
        (0..count).flat_map(of_number)
    });
    sorted.collect()
}

pub(crate) enum Kind {
    Convolution(Convolution),
    Matrix(Matrix),
    Selective(Selective),
    Rglru { width: usize },
    Rwkv(Rwkv),
}

impl Kind {
    /// How many numbers a GPU holds in registers for a column.
    pub fn held(&self) -> usize {
        match self {
            Self::Matrix(one) => one.shape.keys,
            Self::Selective(one) => one.kept,
            Self::Convolution(_) | Self::Rglru { .. } | Self::Rwkv(_) => 0,
        }
    }

    pub fn lanes(&self) -> usize {
        match self {
            Self::Convolution(one) => one.bias.len() / one.block,
            Self::Matrix(one) => one.heads.len() * one.shape.size / one.columns,
            Self::Selective(one) => one.skips.len() / one.block,
            Self::Rglru { width } => width / block(*width, COLUMNS),
            Self::Rwkv(one) => one.lanes(),
        }
    }

    pub fn lane_outputs(&self) -> usize {
        match self {
            Self::Convolution(one) => one.block,
            Self::Matrix(one) => one.columns,
            Self::Selective(one) => one.block,
            Self::Rglru { width } => block(*width, COLUMNS),
            Self::Rwkv(one) => one.block(),
        }
    }

    pub fn state(&self) -> usize {
        match self {
            Self::Convolution(one) => one.weights.len() - one.bias.len(),
            Self::Matrix(one) => one.heads.len() * one.shape.size * one.shape.keys,
            Self::Selective(one) => one.rates.len(),
            Self::Rglru { width } => *width,
            Self::Rwkv(one) => 3 * one.bonus.len(),
        }
    }
}

/// The state of a block is what it read before, `[taps - 1, block]`, the oldest first.
pub(crate) struct Convolution {
    pub block: usize,
    pub taps: usize,
    /// `[blocks, taps, block]`, the oldest tap first.
    pub weights: Vec<f32>,
    /// `[channels]`
    pub bias: Vec<f32>,
    /// Of what it gives.
    pub activation: Activation,
}

impl Convolution {
    pub fn new(by_channel: &[f32], bias: Vec<f32>, activation: Activation) -> Self {
        let (block, taps) = (block(bias.len(), CONVOLVED), by_channel.len() / bias.len());
        Self {
            block,
            taps,
            weights: by_number(by_channel, block, taps),
            bias,
            activation,
        }
    }

    pub fn lane(&self, lane: usize) -> ConvolutionLane<'_> {
        let size = self.block * self.taps;
        ConvolutionLane {
            channels: self.block,
            first: lane * self.block,
            weights: &self.weights[lane * size..][..size],
            bias: &self.bias[lane * self.block..][..self.block],
            activation: self.activation,
        }
    }
}

/// How many lanes of a GPU share a column of a state of so many keys: each holds at most 64 of them.
#[cfg(any(test, feature = "metal", feature = "cuda"))]
pub(crate) fn groups(keys: usize) -> usize {
    match keys {
        0..=128 => 4,
        129..=256 => 8,
        _ => 32,
    }
}

/// What heads do with their states, as the sources for GPUs know it.
#[cfg(any(test, feature = "metal", feature = "cuda"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    Plain,
    Steps,
    OneFactor,
    FactorEach,
    Earlier,
    Replace,
}

#[cfg(any(test, feature = "metal"))]
impl Rule {
    /// In the source for Metal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Steps => "STEPS",
            Self::OneFactor => "ONE_FACTOR",
            Self::FactorEach => "FACTOR_EACH",
            Self::Earlier => "EARLIER",
            Self::Replace => "REPLACE",
        }
    }
}

/// Of heads that keep matrices.
#[derive(Clone, Copy, Debug)]
pub struct MatrixShape {
    /// The width of rows.
    pub inputs: usize,
    pub keys: usize,
    /// Of values.
    pub size: usize,
}

/// Where the inputs of a head lie in a row.
#[derive(Clone, Copy, Debug)]
pub struct MatrixHead {
    pub query: usize,
    pub key: usize,
    pub value: usize,
    /// Of one kind for all heads.
    pub rule: MatrixRule,
}

/// The state of a lane is `[keys, columns]`.
pub(crate) struct Matrix {
    pub shape: MatrixShape,
    pub heads: Vec<MatrixHead>,
    pub columns: usize,
}

impl Matrix {
    pub fn new(shape: MatrixShape, heads: Vec<MatrixHead>) -> Self {
        Self {
            columns: block(shape.size, COLUMNS),
            shape,
            heads,
        }
    }

    pub fn lane(&self, lane: usize) -> MatrixLane {
        let first = lane * self.columns;
        let (head, column) = (first / self.shape.size, first % self.shape.size);
        let head = self.heads[head];
        MatrixLane {
            keys: self.shape.keys,
            columns: self.columns,
            query: head.query,
            key: head.key,
            value: head.value + column,
            rule: head.rule,
        }
    }
}

/// What a launch on a GPU is told.
#[cfg(any(test, feature = "metal", feature = "cuda"))]
impl Matrix {
    /// Of all heads.
    pub fn rule(&self) -> Rule {
        self.heads
            .first()
            .map_or(Rule::Plain, |head| match head.rule {
                MatrixRule::Plain { .. } => Rule::Plain,
                MatrixRule::Steps { .. } => Rule::Steps,
                MatrixRule::Delta { factors: 1, .. } => Rule::OneFactor,
                MatrixRule::Delta { .. } => Rule::FactorEach,
                MatrixRule::Earlier { .. } => Rule::Earlier,
                MatrixRule::Replace { .. } => Rule::Replace,
            })
    }

    /// Of time steps.
    pub fn bounds(&self) -> (f32, f32) {
        match self.heads.first().map(|head| head.rule) {
            Some(MatrixRule::Steps { bounds, .. }) => bounds,
            _ => (0.0, 0.0),
        }
    }

    /// How many groups of 32 lanes a GPU has for all heads.
    pub fn tasks(&self) -> usize {
        let columns = 32 / groups(self.shape.keys);
        self.heads.len() * self.shape.size.div_ceil(columns)
    }
}

/// The state of a block is `[kept, block]`.
pub(crate) struct Selective {
    pub block: usize,
    pub kept: usize,
    /// `[blocks, kept, block]`
    pub rates: Vec<f32>,
    pub skips: Vec<f32>,
}

impl Selective {
    pub fn new(by_channel: &[f32], skips: Vec<f32>) -> Self {
        let (block, kept) = (block(skips.len(), COLUMNS), by_channel.len() / skips.len());
        Self {
            block,
            kept,
            rates: by_number(by_channel, block, kept),
            skips,
        }
    }

    pub fn lane(&self, lane: usize) -> SelectiveLane<'_> {
        let (first, size) = (lane * self.block, self.block * self.kept);
        let channels = self.skips.len();
        SelectiveLane {
            channels: self.block,
            kept: self.kept,
            x: first,
            time: channels + first,
            into: 2 * channels,
            from: 2 * channels + self.kept,
            rates: &self.rates[lane * size..][..size],
            skips: &self.skips[first..][..self.block],
        }
    }
}

/// The state of a lane is for each of its channels the sums of values and of weights, both divided by e to the power of a
/// third number.
pub(crate) struct Rwkv {
    /// What a token's own exponent is larger by.
    pub bonus: Vec<f32>,
    /// What the exponents of a channel's sums change by with every token.
    pub fading: Vec<f32>,
}

impl Rwkv {
    fn lanes(&self) -> usize {
        let lanes = (1..=MOST_LANES).rev();
        let mut lanes = lanes.filter(|lanes| self.bonus.len().is_multiple_of(*lanes));
        lanes.next().unwrap_or(1)
    }

    pub fn block(&self) -> usize {
        self.bonus.len() / self.lanes()
    }

    pub fn lane(&self, lane: usize) -> RwkvLane<'_> {
        let channels = self.block();
        let first = lane * channels;
        RwkvLane {
            channels,
            key: first,
            value: self.bonus.len() + first,
            bonus: &self.bonus[first..][..channels],
            fading: &self.fading[first..][..channels],
        }
    }
}
