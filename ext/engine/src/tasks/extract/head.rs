//! How well spans of words fit labels.

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use super::files::SpanMode;
use crate::nn::{pooling, Epilogue, Inventory, Linear};
use crate::{Error, Result};
use formats::weights::WeightSource;
use kernels::Activation;

/// Rows of words with labels that are computed at once.
const MOST_ROWS: usize = 4096;

/// Two matrices with a ReLU between them.
#[derive(Debug)]
pub struct Mlp {
    up: Linear,
    down: Linear,
}

/// Where tensors come from, and what they become.
pub type Target<'a> = (&'a dyn WeightSource, (&'a Device, DType));

pub fn tensor((source, (device, dtype)): Target<'_>, name: &str) -> Result<Tensor> {
    source.tensor(name, Some(dtype), device)
}

pub fn linear(target: Target<'_>, name: &str) -> Result<Linear> {
    let weight = tensor(target, &format!("{name}.weight"))?;
    Linear::new(weight, Some(tensor(target, &format!("{name}.bias"))?))
}

pub fn relu(linear: &Linear, x: &Tensor) -> Result<Tensor> {
    let epilogue = Epilogue {
        activation: Some(Activation::Relu),
        residual: None,
    };
    linear.forward_with(&x.to_dtype(linear.dtype())?, &epilogue)
}

pub fn plain(linear: &Linear, x: &Tensor) -> Result<Tensor> {
    linear.forward(&x.to_dtype(linear.dtype())?)
}

pub fn values(x: &Tensor) -> Result<Vec<f32>> {
    Ok(x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

pub fn misfit(what: &str) -> Error {
    Error::CorruptModel(format!("the matrices of the {what} do not fit each other"))
}

impl Mlp {
    pub fn read(target: Target<'_>, name: &str) -> Result<Self> {
        let mlp = Self {
            up: linear(target, &format!("{name}.0"))?,
            down: linear(target, &format!("{name}.3"))?,
        };
        if mlp.down.inputs() != mlp.up.outputs() {
            return Err(misfit(name));
        }
        Ok(mlp)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        plain(&self.down, &relu(&self.up, x)?)
    }

    /// The same behind another ReLU.
    fn forward_positive(&self, x: &Tensor) -> Result<Tensor> {
        relu(&self.down, &relu(&self.up, x)?)
    }

    fn linears(&self) -> [&Linear; 2] {
        [&self.up, &self.down]
    }
}

/// Scores of spans. What a span's first and last word add to its state is computed once for each word; and labels
/// are led through the last matrix instead of spans, of which there are many more.
#[derive(Debug)]
pub struct SpanHead {
    start: Mlp,
    end: Mlp,
    /// What makes a part of a span's state of each of them, and of the mean of all words.
    from_start: Linear,
    from_end: Linear,
    from_mean: Option<Linear>,
    last: Last,
    /// Of labels, before they meet spans.
    labels: Option<Mlp>,
}

/// What leads from the sum of the parts to a span's state.
#[derive(Debug)]
enum Last {
    Sum,
    /// A ReLU and a matrix: its transpose, and its bias as a matrix of one row.
    Matrix(Box<(Linear, Linear)>),
}

/// What is known of the words of a window and of labels: spans are scored out of it.
pub struct SpanScores {
    starts: Vec<f32>,
    ends: Vec<f32>,
    labels: Vec<f32>,
    offsets: Vec<f32>,
    width: usize,
    positive: bool,
}

impl SpanHead {
    /// `labelled`: labels have matrices of their own.
    pub fn read(target: Target<'_>, mode: SpanMode, labelled: bool) -> Result<Self> {
        Self::below(target, "span_rep_layer.span_rep_layer", mode, labelled)
    }

    /// The same where its tensors have other names.
    pub fn below(target: Target<'_>, body: &str, mode: SpanMode, labelled: bool) -> Result<Self> {
        let start = Mlp::read(target, &format!("{body}.project_start"))?;
        let end = Mlp::read(target, &format!("{body}.project_end"))?;
        let width = start.down.outputs();
        let name = match mode {
            SpanMode::Marker => format!("{body}.out_project"),
            _ => format!("{body}.out_project.0"),
        };
        let parts = if mode == SpanMode::MarkerV1 { 3 } else { 2 };
        let joined = tensor(target, &format!("{name}.weight"))?;
        let bias = tensor(target, &format!("{name}.bias"))?;
        if end.down.outputs() != width || joined.dims().get(1) != Some(&(parts * width)) {
            return Err(misfit("spans"));
        }
        let part = |at: usize, bias: Option<Tensor>| -> Result<Linear> {
            Linear::new(joined.narrow(1, at * width, width)?.contiguous()?, bias)
        };
        let last = if mode == SpanMode::Marker {
            Last::Sum
        } else {
            let weight = tensor(target, &format!("{body}.out_project.3.weight"))?;
            let bias = tensor(target, &format!("{body}.out_project.3.bias"))?;
            let (outputs, inputs) = weight.dims2()?;
            if joined.dims().first() != Some(&inputs) {
                return Err(misfit("spans"));
            }
            Last::Matrix(Box::new((
                Linear::new(weight.t()?.contiguous()?, None)?,
                Linear::new(bias.reshape((1, outputs))?, None)?,
            )))
        };
        Ok(Self {
            from_start: part(0, None)?,
            from_end: part(1, Some(bias))?,
            from_mean: if parts == 3 {
                Some(part(2, None)?)
            } else {
                None
            },
            start,
            end,
            last,
            labels: if labelled {
                Some(Mlp::read(target, "prompt_rep_layer")?)
            } else {
                None
            },
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let mlps = [Some(&self.start), Some(&self.end), self.labels.as_ref()];
        let mut linears: Vec<&Linear> = mlps.into_iter().flatten().flat_map(Mlp::linears).collect();
        linears.extend([&self.from_start, &self.from_end]);
        linears.extend(&self.from_mean);
        if let Last::Matrix(both) = &self.last {
            linears.extend([&both.0, &both.1]);
        }
        linears
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    /// `words` and `labels` are [rows, hidden].
    pub fn scores(&self, words: &Tensor, labels: &Tensor) -> Result<SpanScores> {
        let labels = match &self.labels {
            Some(mlp) => mlp.forward(labels)?,
            None => labels.clone(),
        };
        let (keys, offsets, positive) = match &self.last {
            Last::Sum => (values(&labels)?, vec![0.0; labels.dims2()?.0], false),
            Last::Matrix(both) => (
                values(&plain(&both.0, &labels)?)?,
                values(&plain(&both.1, &labels)?)?,
                true,
            ),
        };
        let starts = plain(&self.from_start, &self.start.forward_positive(words)?)?;
        let mut ends = values(&plain(&self.from_end, &self.end.forward_positive(words)?)?)?;
        let width = self.from_start.outputs();
        if let Some(from_mean) = &self.from_mean {
            let mean = positive_mean(words)?;
            let added = values(&plain(from_mean, &mean)?)?;
            for row in ends.chunks_exact_mut(width) {
                row.iter_mut()
                    .zip(&added)
                    .for_each(|(sum, more)| *sum += more);
            }
        }
        Ok(SpanScores {
            starts: values(&starts)?,
            ends,
            labels: keys,
            offsets,
            width,
            positive,
        })
    }
}

/// The mean of all rows behind a ReLU, [1, width].
fn positive_mean(words: &Tensor) -> Result<Tensor> {
    let (rows, width) = words.dims2()?;
    let mut sums = vec![0f32; width];
    for row in values(words)?.chunks_exact(width) {
        sums.iter_mut()
            .zip(row)
            .for_each(|(sum, value)| *sum += value);
    }
    let mean = sums.iter().map(|sum| (sum / rows.max(1) as f32).max(0.0));
    Ok(Tensor::from_vec(
        mean.collect::<Vec<f32>>(),
        (1, width),
        words.device(),
    )?)
}

impl SpanScores {
    pub fn words(&self) -> usize {
        self.starts.len() / self.width.max(1)
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// The state of the span from one word to another, before the last matrix.
    pub fn state(&self, first: usize, last: usize) -> Vec<f32> {
        let mut state = self.starts[first * self.width..(first + 1) * self.width].to_vec();
        let ends = &self.ends[last * self.width..(last + 1) * self.width];
        for (sum, end) in state.iter_mut().zip(ends) {
            *sum += end;
            if self.positive {
                *sum = sum.max(0.0);
            }
        }
        state
    }

    /// The logit of each label for the span from one word to another.
    pub fn of(&self, first: usize, last: usize) -> Vec<f32> {
        let state = self.state(first, last);
        let keys = self
            .labels
            .chunks_exact(self.width.max(1))
            .zip(&self.offsets);
        keys.map(|(key, offset)| dot(&state, key) + offset)
            .collect()
    }

    /// The logits of all spans of at most so many words: for each first word the last ones, for each the labels.
    pub fn all(&self, longest: usize) -> Vec<Vec<f32>> {
        let words = self.words();
        (0..words)
            .into_par_iter()
            .map(|first| {
                let lasts = first..words.min(first.saturating_add(longest));
                lasts.flat_map(|last| self.of(first, last)).collect()
            })
            .collect()
    }
}

/// Scores of two states with labels: both behind one matrix, a ReLU, and another matrix.
#[derive(Debug)]
pub struct PairHead {
    from_first: Linear,
    from_second: Linear,
    /// The transpose of the last matrix, and its bias as a matrix of one row.
    last: (Linear, Linear),
}

impl PairHead {
    pub fn read(target: Target<'_>, name: &str) -> Result<Self> {
        let joined = tensor(target, &format!("{name}.0.weight"))?;
        let bias = tensor(target, &format!("{name}.0.bias"))?;
        let weight = tensor(target, &format!("{name}.3.weight"))?;
        let last_bias = tensor(target, &format!("{name}.3.bias"))?;
        let ((inner, inputs), (outputs, last_inputs)) = (joined.dims2()?, weight.dims2()?);
        let width = inputs / 2;
        if inputs != 2 * width || last_inputs != inner || last_bias.dims() != [outputs] {
            return Err(misfit(name));
        }
        let half = |at: usize, bias: Option<Tensor>| -> Result<Linear> {
            Linear::new(joined.narrow(1, at * width, width)?.contiguous()?, bias)
        };
        Ok(Self {
            from_first: half(0, None)?,
            from_second: half(1, Some(bias))?,
            last: (
                Linear::new(weight.t()?.contiguous()?, None)?,
                Linear::new(last_bias.reshape((1, outputs))?, None)?,
            ),
        })
    }

    pub fn linears(&self) -> [&Linear; 4] {
        let (last, bias) = &self.last;
        [&self.from_first, &self.from_second, last, bias]
    }

    /// `states` and `labels` are [rows, hidden]; [`SpanScores::of`] takes the numbers of two states.
    pub fn scores(&self, states: &Tensor, labels: &Tensor) -> Result<SpanScores> {
        Ok(SpanScores {
            starts: values(&plain(&self.from_first, states)?)?,
            ends: values(&plain(&self.from_second, states)?)?,
            labels: values(&plain(&self.last.0, labels)?)?,
            offsets: values(&plain(&self.last.1, labels)?)?,
            width: self.from_first.outputs(),
            positive: true,
        })
    }
}

/// In sixteen sums, which the compiler keeps in registers.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0f32; LANES];
    let (left, right) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = left.remainder().iter().zip(right.remainder());
    let rest: f32 = rest.map(|(a, b)| a * b).sum();
    for (a, b) in left.zip(right) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Scores of words: that a span of a label starts there, ends there, and goes on there.
#[derive(Debug)]
pub struct TokenHead {
    /// Of labels, before all else.
    before: Option<Mlp>,
    words: Linear,
    labels: Linear,
    from_words: Linear,
    from_labels: Linear,
    from_products: Linear,
    /// [3, width] and [3].
    output: Vec<f32>,
    bias: Vec<f32>,
    width: usize,
}

impl TokenHead {
    /// `labelled`: labels have matrices of their own.
    pub fn read(target: Target<'_>, labelled: bool) -> Result<Self> {
        let words = linear(target, "scorer.proj_token")?;
        let labels = linear(target, "scorer.proj_label")?;
        let joined = tensor(target, "scorer.out_mlp.0.weight")?;
        let bias = tensor(target, "scorer.out_mlp.0.bias")?;
        let hidden = words.outputs() / 2;
        let (width, inputs) = joined.dims2()?;
        let output = tensor(target, "scorer.out_mlp.3.weight")?;
        let fits =
            inputs == 3 * hidden && labels.outputs() == 2 * hidden && output.dims() == [3, width];
        if !fits {
            return Err(misfit("scorer of words"));
        }
        let part = |at: usize, bias: Option<Tensor>| -> Result<Linear> {
            Linear::new(joined.narrow(1, at * hidden, hidden)?.contiguous()?, bias)
        };
        Ok(Self {
            before: if labelled {
                Some(Mlp::read(target, "prompt_rep_layer")?)
            } else {
                None
            },
            words,
            labels,
            from_words: part(0, None)?,
            from_labels: part(1, Some(bias))?,
            from_products: part(2, None)?,
            output: values(&output)?,
            bias: values(&tensor(target, "scorer.out_mlp.3.bias")?)?,
            width,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let linears = [
            &self.words,
            &self.labels,
            &self.from_words,
            &self.from_labels,
            &self.from_products,
        ];
        let before = self.before.iter().flat_map(Mlp::linears);
        linears
            .into_iter()
            .chain(before)
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    /// For each word and label the logits of start, end and inside.
    pub fn scores(&self, words: &Tensor, labels: &Tensor) -> Result<Vec<[f32; 3]>> {
        let (count, _) = words.dims2()?;
        let (label_count, _) = labels.dims2()?;
        let hidden = self.words.outputs() / 2;
        let half = |x: &Tensor, at: usize| -> Result<Tensor> {
            Ok(x.narrow(1, at * hidden, hidden)?.contiguous()?)
        };
        let words = plain(&self.words, words)?;
        let labels = match &self.before {
            Some(mlp) => plain(&self.labels, &mlp.forward(labels)?)?,
            None => plain(&self.labels, labels)?,
        };
        let of_words = values(&plain(&self.from_words, &half(&words, 0)?)?)?;
        let of_labels = values(&plain(&self.from_labels, &half(&labels, 0)?)?)?;
        let (second, other) = (values(&half(&words, 1)?)?, values(&half(&labels, 1)?)?);
        let mut scores = Vec::with_capacity(count * label_count);
        let step = (MOST_ROWS / label_count.max(1)).max(1);
        for first in (0..count).step_by(step) {
            let part = first..count.min(first + step);
            let mut products = Vec::with_capacity(part.len() * label_count * hidden);
            for word in second[part.start * hidden..part.end * hidden].chunks_exact(hidden) {
                for label in other.chunks_exact(hidden) {
                    products.extend(word.iter().zip(label).map(|(a, b)| a * b));
                }
            }
            let products =
                Tensor::from_vec(products, (part.len() * label_count, hidden), words.device())?;
            let products = values(&plain(&self.from_products, &products)?)?;
            for (row, product) in products.chunks_exact(self.width).enumerate() {
                let (word, label) = (part.start + row / label_count, row % label_count);
                let word = &of_words[word * self.width..(word + 1) * self.width];
                let label = &of_labels[label * self.width..(label + 1) * self.width];
                let sums = word.iter().zip(label).zip(product);
                let state: Vec<f32> = sums.map(|((a, b), c)| (a + b + c).max(0.0)).collect();
                let logit = |at: usize| {
                    dot(&state, &self.output[at * self.width..(at + 1) * self.width])
                        + self.bias[at]
                };
                scores.push([logit(0), logit(1), logit(2)]);
            }
        }
        Ok(scores)
    }
}

/// A matrix between the encoder and the head, where their sizes differ.
pub fn projection(target: Target<'_>, name: &str) -> Result<Option<Linear>> {
    if target.0.has(&format!("{name}.weight")) {
        return linear(target, name).map(Some);
    }
    Ok(None)
}

/// f32 rows of hidden states at these places, led through the projection where there is one.
pub fn rows(hidden: &Tensor, places: &[usize], projection: Option<&Linear>) -> Result<Tensor> {
    let places: Vec<Option<usize>> = places.iter().map(|&place| Some(place)).collect();
    let rows = pooling::pick(hidden, &places)?;
    match projection {
        Some(linear) => Ok(plain(linear, &rows)?.to_dtype(DType::F32)?),
        None => Ok(rows),
    }
}
