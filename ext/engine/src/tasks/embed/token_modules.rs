//! What sentence-transformers' modules do to the states of tokens before they are pooled.

use candle_core::{DType, Device, Tensor};

use crate::nn::{elementwise, Inventory, Linear, PackedSequences, Pooling};
use crate::tasks::sentence::{join, module_weights, Dense};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::weights::WeightSource;

use super::words::word_weights;

#[derive(Debug)]
pub enum TokenModule {
    /// A factor per token.
    WordWeights(Vec<f32>),
    Lstm(Vec<LstmLayer>),
    /// Kernels over neighbouring tokens, side by side.
    Convolutions(Vec<Kernel>),
    Dense(Box<Dense>),
}

/// One or two directions, whose states stand side by side.
#[derive(Debug)]
pub struct LstmLayer {
    inputs: usize,
    directions: Vec<Direction>,
}

#[derive(Debug)]
struct Direction {
    /// With both biases: `[4 · width, inputs]`
    input: Linear,
    /// `[4 · width, width]`, row after row.
    state: Vec<f32>,
    width: usize,
    backwards: bool,
    device: Device,
}

#[derive(Debug)]
pub struct Kernel {
    size: usize,
    inputs: usize,
    /// `[outputs, size · inputs]`
    linear: Linear,
}

/// The states of tokens on their way to pooling.
pub struct TokenStates {
    /// [tokens, width]
    pub hidden: Tensor,
    /// The factors of each sequence's tokens together, where tokens have them.
    pub totals: Option<Vec<f32>>,
}

impl TokenModule {
    pub fn word_weights(files: &ModelFiles, folder: &str, cancel: &CancelToken) -> Result<Self> {
        let config = RawConfig::read(&files.require(&join(folder, "config.json"), cancel)?)?;
        let vocabulary = config.opt_strings("vocab")?.unwrap_or_default();
        Ok(Self::WordWeights(word_weights(&config, &vocabulary)?))
    }

    pub fn lstm(
        files: &ModelFiles,
        folder: &str,
        device: &Device,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let source = module_weights(files, folder, cancel)?;
        let mut layers: Vec<LstmLayer> = Vec::new();
        while source.has(&format!("encoder.weight_ih_l{}", layers.len())) {
            let number = layers.len();
            let mut directions = Vec::new();
            for (backwards, end) in [(false, ""), (true, "_reverse")] {
                let name = |part: &str| format!("encoder.{part}_l{number}{end}");
                if source.has(&name("weight_ih")) {
                    directions.push(direction(&source, name, backwards, device)?);
                }
            }
            let inputs = directions[0].input.inputs();
            let agree = directions.iter().all(|one| one.input.inputs() == inputs);
            let before = layers.last().map(LstmLayer::outputs);
            if !agree || before.is_some_and(|width| width != inputs) {
                let reason = format!("the LSTM's layer {number} does not fit the one before it");
                return Err(Error::corrupt(&source.file(""), reason));
            }
            layers.push(LstmLayer { inputs, directions });
        }
        if layers.is_empty() {
            let reason = "it holds no tensor encoder.weight_ih_l0";
            return Err(Error::corrupt(&source.file(""), reason));
        }
        Ok(Self::Lstm(layers))
    }

    pub fn convolutions(
        files: &ModelFiles,
        folder: &str,
        device: &Device,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let path = match files.file(&join(folder, "cnn_config.json"), cancel)? {
            Some(path) => path,
            None => files.require(&join(folder, "config.json"), cancel)?,
        };
        let config = RawConfig::read(&path)?;
        if let Some(strides) = config.opt_integers("stride_sizes")? {
            if strides.iter().any(|&stride| stride != 1) {
                let reason = "convolutions with stride_sizes other than 1 are not supported";
                return Err(Error::unsupported(config.file(), reason));
            }
        }
        let source = module_weights(files, folder, cancel)?;
        let mut kernels: Vec<Kernel> = Vec::new();
        while source.has(&format!("convs.{}.weight", kernels.len())) {
            let name = format!("convs.{}", kernels.len());
            let read = |name: String| source.tensor(&name, Some(DType::F32), device);
            let weight = read(format!("{name}.weight"))?;
            let (outputs, inputs, size) = weight.dims3()?;
            if size % 2 == 0 {
                let reason = format!("a convolution over {size} tokens, an even number");
                return Err(Error::unsupported(config.file(), reason));
            }
            let rows = weight.transpose(1, 2)?.reshape((outputs, size * inputs))?;
            let linear = Linear::new(rows.contiguous()?, Some(read(format!("{name}.bias"))?))?;
            kernels.push(Kernel {
                size,
                inputs,
                linear,
            });
        }
        let inputs = kernels.first().map(|kernel| kernel.inputs);
        if kernels.iter().any(|kernel| Some(kernel.inputs) != inputs) || kernels.is_empty() {
            let reason = "it holds no convolutions that read the same rows";
            return Err(Error::corrupt(&source.file(""), reason));
        }
        Ok(Self::Convolutions(kernels))
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match self {
            Self::WordWeights(_) => Ok(()),
            Self::Lstm(layers) => layers
                .iter()
                .flat_map(|layer| &layer.directions)
                .try_for_each(|direction| inventory.add_linear(&direction.input)),
            Self::Convolutions(kernels) => kernels
                .iter()
                .try_for_each(|kernel| inventory.add_linear(&kernel.linear)),
            Self::Dense(dense) => dense.list(inventory),
        }
    }

    /// How wide rows leave it that come in so wide; `None` where they do not fit.
    pub fn width(&self, width: usize) -> Option<usize> {
        match self {
            Self::WordWeights(_) => Some(width),
            Self::Lstm(layers) => {
                let fits = layers.first()?.inputs == width;
                fits.then(|| layers.last().map_or(0, LstmLayer::outputs))
            }
            Self::Convolutions(kernels) => {
                let fits = kernels.first()?.inputs == width;
                fits.then(|| kernels.iter().map(|kernel| kernel.linear.outputs()).sum())
            }
            Self::Dense(dense) => (dense.linear.inputs() == width).then(|| dense.linear.outputs()),
        }
    }

    pub fn forward(&self, states: TokenStates, sequences: &PackedSequences) -> Result<TokenStates> {
        match self {
            Self::WordWeights(weights) => weighted(weights, states, sequences),
            Self::Dense(dense) => changed(states, |hidden| dense.forward(hidden)),
            Self::Convolutions(kernels) => changed(states, |hidden| {
                let each: Result<Vec<_>> = kernels
                    .iter()
                    .map(|kernel| kernel.forward(hidden, sequences))
                    .collect();
                Ok(Tensor::cat(&each?, 1)?)
            }),
            Self::Lstm(layers) => changed(states, |hidden| {
                let device = hidden.device().clone();
                let hidden = hidden.to_dtype(DType::F32)?;
                let last = layers
                    .iter()
                    .try_fold(hidden, |hidden, layer| layer.forward(&hidden, sequences))?;
                Ok(last.to_device(&device)?)
            }),
        }
    }
}

fn changed(
    states: TokenStates,
    change: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<TokenStates> {
    Ok(TokenStates {
        hidden: change(&states.hidden)?,
        ..states
    })
}

fn weighted(
    weights: &[f32],
    states: TokenStates,
    sequences: &PackedSequences,
) -> Result<TokenStates> {
    let factor = |&id: &u32| {
        weights.get(id as usize).copied().ok_or_else(|| {
            let count = weights.len();
            Error::InvalidInput(format!(
                "token {id} is beyond the {count} weights of the model's WordWeights module"
            ))
        })
    };
    let factors: Vec<f32> = sequences.ids().iter().map(factor).collect::<Result<_>>()?;
    let totals = sequences.ranges().map(|range| factors[range].iter().sum());
    let totals = Some(totals.collect());
    let shape = (factors.len(), 1);
    let hidden = states.hidden.to_dtype(DType::F32)?;
    let factors = Tensor::from_vec(factors, shape, hidden.device())?;
    Ok(TokenStates {
        hidden: elementwise::multiply(&hidden, &factors)?,
        totals,
    })
}

impl Kernel {
    /// Each token with its neighbours in the same sequence, zeros beyond its ends.
    fn forward(&self, hidden: &Tensor, sequences: &PackedSequences) -> Result<Tensor> {
        let hidden = hidden.to_dtype(DType::F32)?;
        let (tokens, width) = hidden.dims2()?;
        let zero = Tensor::zeros((1, width), DType::F32, hidden.device())?;
        let table = Tensor::cat(&[&hidden, &zero], 0)?;
        let reach = self.size / 2;
        let mut rows = Vec::with_capacity(tokens * self.size);
        for range in sequences.ranges() {
            for token in range.clone() {
                rows.extend((0..self.size).map(|place| {
                    let row = (token + place).checked_sub(reach);
                    row.filter(|row| range.contains(row)).unwrap_or(tokens) as u32
                }));
            }
        }
        let count = rows.len();
        let rows = Tensor::from_vec(rows, count, hidden.device())?;
        let beside = table.index_select(&rows, 0)?;
        self.linear
            .forward(&beside.reshape((tokens, self.size * width))?)
    }
}

fn direction(
    source: &std::sync::Arc<dyn WeightSource>,
    name: impl Fn(&str) -> String,
    backwards: bool,
    device: &Device,
) -> Result<Direction> {
    let read = |part: &str, device: &Device| source.tensor(&name(part), Some(DType::F32), device);
    let (weight, state) = (read("weight_ih", device)?, read("weight_hh", &Device::Cpu)?);
    let (rows, width) = state.dims2()?;
    if rows != 4 * width || weight.dims2()?.0 != rows {
        let reason = format!("{} is not a matrix of four gates", name("weight_hh"));
        return Err(Error::corrupt(&source.file(""), reason));
    }
    let bias = elementwise::add(&read("bias_ih", device)?, &read("bias_hh", device)?)?;
    Ok(Direction {
        input: Linear::new(weight, Some(bias))?,
        state: state.flatten_all()?.to_vec1()?,
        width,
        backwards,
        device: device.clone(),
    })
}

impl LstmLayer {
    fn outputs(&self) -> usize {
        self.directions.iter().map(|one| one.width).sum()
    }

    /// The states of one sequence do not depend on others.
    fn forward(&self, x: &Tensor, sequences: &PackedSequences) -> Result<Tensor> {
        let (tokens, width) = (sequences.tokens(), self.outputs());
        let mut states = vec![0f32; tokens * width];
        let mut column = 0;
        for direction in &self.directions {
            let x = x.to_device(&direction.device)?;
            let gates: Vec<f32> = direction.input.forward(&x)?.flatten_all()?.to_vec1()?;
            for range in sequences.ranges() {
                let mut run = Run::new(direction);
                let mut step = |token: usize| {
                    run.step(&gates[token * 4 * direction.width..][..4 * direction.width]);
                    states[token * width + column..][..direction.width]
                        .copy_from_slice(&run.hidden);
                };
                if direction.backwards {
                    range.rev().for_each(&mut step);
                } else {
                    range.for_each(&mut step);
                }
            }
            column += direction.width;
        }
        Ok(Tensor::from_vec(states, (tokens, width), &Device::Cpu)?)
    }
}

/// An LSTM on its way through a sequence.
struct Run<'a> {
    direction: &'a Direction,
    hidden: Vec<f32>,
    cell: Vec<f32>,
    sums: Vec<f32>,
}

impl<'a> Run<'a> {
    fn new(direction: &'a Direction) -> Self {
        Self {
            direction,
            hidden: vec![0.0; direction.width],
            cell: vec![0.0; direction.width],
            sums: vec![0.0; 4 * direction.width],
        }
    }

    /// `gates` is what the token gives to the input, forget, cell and output gates.
    fn step(&mut self, gates: &[f32]) {
        let width = self.direction.width;
        let rows = self.direction.state.chunks_exact(width);
        for ((sum, row), gate) in self.sums.iter_mut().zip(rows).zip(gates) {
            let products = row.iter().zip(&self.hidden).map(|(a, b)| a * b);
            *sum = gate + products.sum::<f32>();
        }
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        for place in 0..width {
            let gate = |number: usize| self.sums[number * width + place];
            let kept = sigmoid(gate(1)) * self.cell[place];
            self.cell[place] = kept + sigmoid(gate(0)) * gate(2).tanh();
            self.hidden[place] = sigmoid(gate(3)) * self.cell[place].tanh();
        }
    }
}

/// Pooled rows, which were divided by the number of tokens, divided by the sum of the tokens' factors instead.
pub fn rescaled(
    pooled: Tensor,
    pooling: Pooling,
    totals: &[f32],
    sequences: &PackedSequences,
    skipped: usize,
) -> Result<Tensor> {
    let divided = |count: usize| match pooling {
        Pooling::Mean => Some(count as f32),
        Pooling::MeanSqrtLength => Some((count as f32).sqrt()),
        Pooling::WeightedMean => Some((skipped + 1..=skipped + count).sum::<usize>() as f32),
        Pooling::Cls | Pooling::Max | Pooling::Last => None,
    };
    let factors = sequences.ranges().zip(totals).map(|(range, &total)| {
        let total = match pooling {
            Pooling::MeanSqrtLength => total.max(1e-9).sqrt(),
            _ => total.max(1e-9),
        };
        divided(range.len().saturating_sub(skipped)).map_or(1.0, |divisor| divisor / total)
    });
    let factors: Vec<f32> = factors.collect();
    let shape = (factors.len(), 1);
    let factors = Tensor::from_vec(factors, shape, pooled.device())?;
    elementwise::multiply(&pooled, &factors)
}
