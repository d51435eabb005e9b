//! Where somebody speaks: Silero's voice activity detector.

use candle_core::{DType, Tensor};

use crate::nn::{Epilogue, Inventory, Linear};
use crate::{CancelToken, Device, Error, Result};
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::weights::{self, WeightSource};
use kernels::Activation;

use super::loading::{LoadOptions, ModelInfo};
use super::transcribe::Sound;

/// Of the audio that it reads.
const RATE: u32 = 16_000;
/// Steps that are computed together.
const STEPS: usize = 1024;
/// What the package of the model calls its weights.
const FILE: &str = "silero_vad_16k.safetensors";
/// Of the convolutions after the transform.
const STRIDES: [usize; 4] = [1, 2, 2, 1];
const KERNEL: usize = 3;

pub struct VoiceModel {
    /// Cosines and sines of a window of samples.
    transform: Linear,
    window: usize,
    convolutions: Vec<Linear>,
    /// What a step adds to the gates.
    input: Linear,
    /// What the state adds, [gates, hidden].
    recurrent: Vec<f32>,
    hidden: usize,
    output: (Vec<f32>, f32),
    place: candle_core::Device,
    device: Device,
    info: ModelInfo,
}

/// What the steps before leave.
struct State {
    hidden: Vec<f32>,
    cell: Vec<f32>,
}

impl VoiceModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let weight_files = match files.file(FILE, cancel)? {
            Some(path) => WeightFiles::Safetensors(vec![path]),
            None => files.weights(None, cancel)?,
        };
        let source = weights::open(&weight_files)?;
        let place = options.device.open()?;
        let reader = Reader {
            source: source.as_ref(),
            place: &place,
        };
        let transform = reader.tensor("stft_conv.weight")?;
        let (rows, channels, window) = transform.dims3()?;
        if channels != 1 || window < 8 || !window.is_multiple_of(8) || rows != window + 2 {
            return Err(reader.misshapen("stft_conv.weight", transform.dims()));
        }
        let transform = Linear::new(transform.reshape((rows, window))?, None)?;
        let mut inputs = window / 2 + 1;
        let mut convolutions = Vec::with_capacity(STRIDES.len());
        for number in 1..=STRIDES.len() {
            let name = format!("conv{number}");
            let linear = reader.convolution(&name, inputs, KERNEL)?;
            inputs = linear.outputs();
            convolutions.push(linear);
        }
        let recurrent = reader.tensor("lstm_cell.weight_hh")?;
        let (gates, hidden) = recurrent.dims2()?;
        let weight = reader.tensor("lstm_cell.weight_ih")?;
        if gates != 4 * hidden || hidden == 0 || weight.dims() != [gates, inputs] {
            return Err(reader.misshapen("lstm_cell.weight_hh", recurrent.dims()));
        }
        let biases = [
            reader.vector("lstm_cell.bias_ih", gates)?,
            reader.vector("lstm_cell.bias_hh", gates)?,
        ];
        let bias: Vec<f32> = biases[0]
            .iter()
            .zip(&biases[1])
            .map(|(a, b)| a + b)
            .collect();
        let input = Linear::new(weight, Some(Tensor::from_vec(bias, gates, &place)?))?;
        let output = reader.vector("final_conv.weight", hidden)?;
        let bias = reader.vector("final_conv.bias", 1)?;
        let mut inventory = Inventory::default();
        inventory.add_linear(&transform)?;
        convolutions
            .iter()
            .chain([&input])
            .try_for_each(|linear| inventory.add_linear(linear))?;
        let names = source.names();
        let counts = names.iter().filter_map(|name| source.info(name));
        let info = ModelInfo {
            architecture: "SileroVAD".to_owned(),
            family: "silero".to_owned(),
            parameters: counts
                .map(|info| info.shape.iter().product::<usize>())
                .sum(),
            hidden_size: hidden,
            layers: STRIDES.len() + 1,
            attention_heads: 0,
            vocabulary: 0,
            max_length: usize::MAX,
            device: options.device,
            dtype: DType::F32,
            int8: false,
            files: source.files(),
            inventory,
            verified: false,
        };
        Ok(Self {
            transform,
            window,
            convolutions,
            input,
            recurrent: recurrent.flatten_all()?.to_vec1()?,
            hidden,
            output: (output, bias[0]),
            place: place.clone(),
            device: options.device,
            info,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Samples per second that it reads.
    pub fn sample_rate(&self) -> u32 {
        RATE
    }

    /// Samples that one probability stands for.
    pub fn step(&self) -> usize {
        2 * self.window
    }

    /// How likely somebody speaks in each step of an audio, and how long it lasts in seconds.
    pub fn probabilities(&self, sound: &Sound, cancel: &CancelToken) -> Result<(Vec<f32>, f64)> {
        let audio = sound.load(RATE, cancel)?;
        let samples = audio.samples();
        let count = samples.len().div_ceil(self.step());
        let mut state = State {
            hidden: vec![0.0; self.hidden],
            cell: vec![0.0; self.hidden],
        };
        let mut found = Vec::with_capacity(count);
        for first in (0..count).step_by(STEPS) {
            cancel.check()?;
            let steps = first..(first + STEPS).min(count);
            let gates = self.device.compute(|| {
                let gates = self.gates(samples, steps)?;
                Ok::<_, Error>(gates.to_vec2::<f32>()?)
            });
            let gates = gates.and_then(|gates| gates)?;
            found.extend(gates.iter().map(|gates| self.next(gates, &mut state)));
        }
        self.info.check_numbers(&found)?;
        Ok((found, audio.duration()))
    }

    /// What steps add to the gates, [steps, gates].
    fn gates(&self, samples: &[f32], steps: std::ops::Range<usize>) -> Result<Tensor> {
        let (window, count) = (self.window, steps.len());
        let (step, around) = (self.step(), window / 4);
        let frames = (step + 2 * around - window) / (window / 2) + 1;
        let mut rows = Vec::with_capacity(count * frames * window);
        let mut piece = vec![0f32; step + 2 * around];
        for number in steps {
            let begin = (number * step) as i64 - around as i64;
            for (at, value) in piece[..step + around].iter_mut().enumerate() {
                let place = usize::try_from(begin + at as i64).ok();
                *value = place.and_then(|at| samples.get(at)).copied().unwrap_or(0.0);
            }
            // The end is mirrored.
            for at in 0..around {
                piece[step + around + at] = piece[step + around - 2 - at];
            }
            for frame in 0..frames {
                let from = frame * window / 2;
                rows.extend_from_slice(&piece[from..from + window]);
            }
        }
        let rows = Tensor::from_vec(rows, (count * frames, window), &self.place)?;
        let both = self.transform.forward(&rows)?;
        let half = window / 2 + 1;
        let both: Vec<f32> = both.flatten_all()?.to_vec1()?;
        let lengths = both.chunks_exact(2 * half).flat_map(|row| {
            let (cosines, sines) = row.split_at(half);
            let pairs = cosines.iter().zip(sines);
            pairs.map(|(a, b)| (a * a + b * b).sqrt())
        });
        let lengths: Vec<f32> = lengths.collect();
        let mut x = Tensor::from_vec(lengths, (count * frames, half), &self.place)?;
        let mut frames = frames;
        for (linear, stride) in self.convolutions.iter().zip(STRIDES) {
            (x, frames) = convolved(linear, &x, (count, frames), stride)?;
        }
        if frames != 1 {
            return Err(Error::Internal(format!("a step of {frames} frames")));
        }
        self.input.forward(&x)
    }

    /// The probability of a step, by an LSTM.
    fn next(&self, added: &[f32], state: &mut State) -> f32 {
        let hidden = self.hidden;
        let gate = |row: usize| {
            let weights = &self.recurrent[row * hidden..(row + 1) * hidden];
            let sum: f32 = weights.iter().zip(&state.hidden).map(|(a, b)| a * b).sum();
            added[row] + sum
        };
        let gates: Vec<f32> = (0..4 * hidden).map(gate).collect();
        for at in 0..hidden {
            let part = |number: usize| gates[number * hidden + at];
            let (taken, kept) = (sigmoid(part(0)), sigmoid(part(1)));
            let (new, shown) = (part(2).tanh(), sigmoid(part(3)));
            state.cell[at] = kept * state.cell[at] + taken * new;
            state.hidden[at] = shown * state.cell[at].tanh();
        }
        let (weights, bias) = &self.output;
        let shown = weights.iter().zip(&state.hidden);
        sigmoid(
            bias + shown
                .map(|(weight, value)| weight * value.max(0.0))
                .sum::<f32>(),
        )
    }
}

/// relu(convolution) of the frames of each step, [steps · frames, channels], and how many frames remain.
fn convolved(
    linear: &Linear,
    x: &Tensor,
    (steps, frames): (usize, usize),
    stride: usize,
) -> Result<(Tensor, usize)> {
    let channels = x.dim(1)?;
    let padded = x.reshape((steps, frames, channels))?;
    let padded = padded.pad_with_zeros(1, 1, 1)?.contiguous()?;
    let fewer = (frames + 2 - KERNEL) / stride + 1;
    let mut windows = Vec::with_capacity(fewer);
    for frame in 0..fewer {
        let window = padded.narrow(1, frame * stride, KERNEL)?.contiguous()?;
        windows.push(window.reshape((steps, 1, KERNEL * channels))?);
    }
    let windows = Tensor::cat(&windows, 1)?.contiguous()?;
    let windows = windows.reshape((steps * fewer, KERNEL * channels))?;
    let relu = Epilogue {
        activation: Some(Activation::Relu),
        ..Epilogue::default()
    };
    Ok((linear.forward_with(&windows, &relu)?, fewer))
}

fn sigmoid(value: f32) -> f32 {
    1.0 / (1.0 + (-value).exp())
}

struct Reader<'a> {
    source: &'a dyn WeightSource,
    place: &'a candle_core::Device,
}

impl Reader<'_> {
    fn tensor(&self, name: &str) -> Result<Tensor> {
        if !self.source.has(name) {
            return Err(Error::corrupt(
                &self.source.file(""),
                format!("it holds no tensor {name}: it is not a voice activity detector of Silero"),
            ));
        }
        self.source.tensor(name, Some(DType::F32), self.place)
    }

    fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        if tensor.elem_count() != length {
            return Err(self.misshapen(name, tensor.dims()));
        }
        Ok(tensor.flatten_all()?.to_vec1()?)
    }

    /// A convolution as the product with windows that are laid out frame by frame.
    fn convolution(&self, name: &str, inputs: usize, kernel: usize) -> Result<Linear> {
        let (weight_name, bias_name) = (format!("{name}.weight"), format!("{name}.bias"));
        let weight = self.tensor(&weight_name)?;
        let (outputs, found, width) = weight.dims3()?;
        if found != inputs || width != kernel {
            return Err(self.misshapen(&weight_name, weight.dims()));
        }
        let weight = weight.permute((0, 2, 1))?.contiguous()?;
        let bias = Tensor::from_vec(self.vector(&bias_name, outputs)?, outputs, self.place)?;
        Linear::new(weight.reshape((outputs, kernel * inputs))?, Some(bias))
    }

    fn misshapen(&self, name: &str, shape: &[usize]) -> Error {
        Error::corrupt(
            &self.source.file(name),
            format!("tensor {name} has the shape {shape:?}, which no detector of Silero has"),
        )
    }
}
