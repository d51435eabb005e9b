//! The queries of every instance of a structure, out of the states of its fields.

use candle_core::{DType, Device, Tensor};

use super::super::head::{dot, linear, misfit, plain, relu, tensor, values, Target};
use super::config::Counting;
use crate::nn::{Epilogue, Inventory, Linear};
use crate::Result;
use kernels::Activation;

const NAME: &str = "count_embed";
/// Of the small transformer; its file does not say it.
const HEADS: usize = 4;
const EPSILON: f32 = 1e-5;

/// A recurrent layer that counts instances, from the states of fields on.
#[derive(Debug)]
pub struct Counter {
    /// What each instance feeds the recurrent layer, [instances, 3 × hidden]: reset, update and new gate.
    steps: Vec<f32>,
    recurrent: Linear,
    hidden: usize,
    output: Output,
}

#[derive(Debug)]
enum Output {
    /// Of both states side by side.
    Matrices(Box<[Linear; 2]>),
    Transformer(Box<Transformer>),
    Experts(Box<Experts>),
}

impl Counter {
    pub fn read(target: Target<'_>, kind: Counting) -> Result<Self> {
        let named = |part: &str| format!("{NAME}.{part}");
        let input = Linear::new(
            tensor(target, &named("gru.weight_ih_l0"))?,
            Some(tensor(target, &named("gru.bias_ih_l0"))?),
        )?;
        let recurrent = Linear::new(
            tensor(target, &named("gru.weight_hh_l0"))?,
            Some(tensor(target, &named("gru.bias_hh_l0"))?),
        )?;
        let positions = tensor(target, &named("pos_embedding.weight"))?;
        let hidden = recurrent.inputs();
        let fits = positions.dims().get(1) == Some(&input.inputs())
            && [input.outputs(), recurrent.outputs()] == [3 * hidden; 2];
        if !fits {
            return Err(misfit("recurrent layer"));
        }
        let output = match kind {
            Counting::Lstm => {
                let first = linear(target, &named("projector.0"))?;
                let second = linear(target, &named("projector.2"))?;
                if first.inputs() != 2 * hidden || second.inputs() != first.outputs() {
                    return Err(misfit("counting layer"));
                }
                Output::Matrices(Box::new([first, second]))
            }
            Counting::LstmTransformer => {
                Output::Transformer(Box::new(Transformer::read(target, hidden)?))
            }
            Counting::LstmExperts => Output::Experts(Box::new(Experts::read(target, hidden)?)),
        };
        Ok(Self {
            steps: values(&plain(&input, &positions)?)?,
            recurrent,
            hidden,
            output,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.recurrent)?;
        match &self.output {
            Output::Matrices(matrices) => {
                let [first, second] = matrices.as_ref();
                inventory.add_linear(first)?;
                inventory.add_linear(second)
            }
            Output::Transformer(transformer) => transformer.list(inventory),
            Output::Experts(experts) => experts.list(inventory),
        }
    }

    /// Instances that it counts at most.
    pub fn most(&self) -> usize {
        self.steps.len() / (3 * self.hidden).max(1)
    }

    /// f32 [instances × fields, hidden] of fields, f32 [fields, hidden].
    pub fn queries(&self, fields: &Tensor, instances: usize) -> Result<Tensor> {
        let (count, width) = fields.dims2()?;
        if width != self.hidden {
            return Err(misfit("counting layer"));
        }
        let own = values(fields)?;
        let mut state = own.clone();
        let mut states = Vec::with_capacity(instances.min(self.most()) * state.len());
        for step in self.steps.chunks_exact(3 * width).take(instances) {
            let x = Tensor::from_slice(&state, (count, width), fields.device())?;
            let gates = values(&plain(&self.recurrent, &x)?)?;
            for (row, gates) in state
                .chunks_exact_mut(width)
                .zip(gates.chunks_exact(3 * width))
            {
                advance(row, step, gates);
            }
            states.extend_from_slice(&state);
        }
        let device = fields.device();
        match &self.output {
            Output::Matrices(matrices) => {
                let [first, second] = matrices.as_ref();
                let both = beside(&states, width, &repeated(&own, states.len()), width);
                let x = Tensor::from_vec(both, (states.len() / width, 2 * width), device)?;
                f32_rows(&plain(second, &relu(first, &x)?)?)
            }
            Output::Transformer(transformer) => {
                let sums = states.iter().zip(own.iter().cycle());
                let sums: Vec<f32> = sums.map(|(state, own)| state + own).collect();
                transformer.forward(&sums, count, device)
            }
            Output::Experts(experts) => experts.forward(&states, device),
        }
    }
}

/// One step of a recurrent layer: reset, update and new gate, in this order.
fn advance(state: &mut [f32], step: &[f32], gates: &[f32]) {
    let width = state.len();
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    for (at, value) in state.iter_mut().enumerate() {
        let reset = sigmoid(step[at] + gates[at]);
        let update = sigmoid(step[width + at] + gates[width + at]);
        let new = (step[2 * width + at] + reset * gates[2 * width + at]).tanh();
        *value = (1.0 - update) * new + update * *value;
    }
}

fn repeated(values: &[f32], length: usize) -> Vec<f32> {
    values.iter().copied().cycle().take(length).collect()
}

/// Rows of two matrices side by side.
fn beside(left: &[f32], left_width: usize, right: &[f32], right_width: usize) -> Vec<f32> {
    let rows = left
        .chunks_exact(left_width)
        .zip(right.chunks_exact(right_width));
    rows.flat_map(|(left, right)| left.iter().chain(right).copied())
        .collect()
}

fn f32_rows(x: &Tensor) -> Result<Tensor> {
    Ok(x.to_dtype(DType::F32)?)
}

/// Attention among the fields of an instance, in few dimensions.
#[derive(Debug)]
struct Transformer {
    input: Linear,
    layers: Vec<Layer>,
    output: [Linear; 3],
}

#[derive(Debug)]
struct Layer {
    joined: Linear,
    attended: Linear,
    up: Linear,
    down: Linear,
    norms: [(Vec<f32>, Vec<f32>); 2],
}

impl Transformer {
    fn read(target: Target<'_>, hidden: usize) -> Result<Self> {
        let body = format!("{NAME}.transformer");
        let input = linear(target, &format!("{body}.in_projector"))?;
        let width = input.outputs();
        let mut layers = Vec::new();
        while target
            .0
            .has(&layer_name(&body, layers.len(), "self_attn.in_proj_weight"))
        {
            layers.push(Layer::read(target, &body, layers.len(), width)?);
        }
        let output = [0, 2, 4].map(|at| linear(target, &format!("{body}.out_projector.{at}")));
        let [first, second, third] = output;
        let output = [first?, second?, third?];
        let fits = input.inputs() == hidden
            && width % HEADS == 0
            && output[0].inputs() == width + hidden
            && output[1].inputs() == output[0].outputs()
            && output[2].inputs() == output[1].outputs();
        if !fits || layers.is_empty() {
            return Err(misfit("counting layer"));
        }
        Ok(Self {
            input,
            layers,
            output,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let own = [&self.input].into_iter().chain(&self.output);
        let layers = self
            .layers
            .iter()
            .flat_map(|layer| [&layer.joined, &layer.attended, &layer.up, &layer.down]);
        own.chain(layers)
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    /// Rows of `fields` are read together.
    fn forward(&self, rows: &[f32], fields: usize, device: &Device) -> Result<Tensor> {
        let (hidden, width) = (self.input.inputs(), self.input.outputs());
        let count = rows.len() / hidden.max(1);
        let x = Tensor::from_slice(rows, (count, hidden), device)?;
        let mut state = values(&plain(&self.input, &x)?)?;
        for layer in &self.layers {
            state = layer.forward(&state, width, fields, device)?;
        }
        let both = beside(&state, width, rows, hidden);
        let mut x = Tensor::from_vec(both, (count, width + hidden), device)?;
        x = relu(&self.output[0], &x)?;
        x = relu(&self.output[1], &x)?;
        f32_rows(&plain(&self.output[2], &x)?)
    }
}

fn layer_name(body: &str, number: usize, part: &str) -> String {
    format!("{body}.transformer.layers.{number}.{part}")
}

impl Layer {
    fn read(target: Target<'_>, body: &str, number: usize, width: usize) -> Result<Self> {
        let named = |part: &str| layer_name(body, number, part);
        let norm = |name: &str| -> Result<(Vec<f32>, Vec<f32>)> {
            Ok((
                values(&tensor(target, &named(&format!("{name}.weight")))?)?,
                values(&tensor(target, &named(&format!("{name}.bias")))?)?,
            ))
        };
        let layer = Self {
            joined: Linear::new(
                tensor(target, &named("self_attn.in_proj_weight"))?,
                Some(tensor(target, &named("self_attn.in_proj_bias"))?),
            )?,
            attended: linear(target, &named("self_attn.out_proj"))?,
            up: linear(target, &named("linear1"))?,
            down: linear(target, &named("linear2"))?,
            norms: [norm("norm1")?, norm("norm2")?],
        };
        let shapes = [
            (layer.joined.inputs(), layer.joined.outputs()),
            (layer.attended.inputs(), layer.attended.outputs()),
            (layer.up.inputs(), layer.down.outputs()),
            (layer.up.outputs(), layer.down.inputs()),
        ];
        let inner = layer.up.outputs();
        let norms = layer.norms.iter();
        let fits = shapes
            == [
                (width, 3 * width),
                (width, width),
                (width, width),
                (inner, inner),
            ]
            && norms
                .map(|(scale, bias)| [scale.len(), bias.len()])
                .all(|lengths| lengths == [width; 2]);
        if fits {
            Ok(layer)
        } else {
            Err(misfit("counting layer"))
        }
    }

    /// Norms stand behind both halves.
    fn forward(
        &self,
        state: &[f32],
        width: usize,
        fields: usize,
        device: &Device,
    ) -> Result<Vec<f32>> {
        let tensor = |rows: &[f32]| Tensor::from_slice(rows, (rows.len() / width, width), device);
        let joined = values(&plain(&self.joined, &tensor(state)?)?)?;
        let mixed: Vec<f32> = joined
            .chunks_exact(3 * width * fields.max(1))
            .flat_map(|group| attend(group, width))
            .collect();
        let mixed = values(&plain(&self.attended, &tensor(&mixed)?)?)?;
        let state = normed(state, &mixed, width, &self.norms[0]);
        let more = plain(&self.down, &relu(&self.up, &tensor(&state)?)?)?;
        Ok(normed(&state, &values(&more)?, width, &self.norms[1]))
    }
}

/// Attention of all rows to all, each [query, key, value].
fn attend(rows: &[f32], width: usize) -> Vec<f32> {
    let size = width / HEADS;
    let rows: Vec<&[f32]> = rows.chunks_exact(3 * width).collect();
    let scale = 1.0 / (size as f32).sqrt();
    let mut mixed = vec![0f32; rows.len() * width];
    for (row, result) in rows.iter().zip(mixed.chunks_exact_mut(width)) {
        for (head, result) in result.chunks_exact_mut(size).enumerate() {
            let part = |row: &[f32], at: usize| -> std::ops::Range<usize> {
                debug_assert!(row.len() == 3 * width);
                at * width + head * size..at * width + (head + 1) * size
            };
            let query = &row[part(row, 0)];
            let logits = rows
                .iter()
                .map(|row| scale * dot(query, &row[part(row, 1)]));
            let logits: Vec<f32> = logits.collect();
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = logits.iter().map(|x| (x - highest).exp()).collect();
            let total: f32 = weights.iter().sum();
            for (weight, row) in weights.iter().zip(&rows) {
                for (sum, value) in result.iter_mut().zip(&row[part(row, 2)]) {
                    *sum += weight / total * value;
                }
            }
        }
    }
    mixed
}

/// The sum of both, each row brought to mean 0 and variance 1.
fn normed(a: &[f32], b: &[f32], width: usize, (scale, bias): &(Vec<f32>, Vec<f32>)) -> Vec<f32> {
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
    rows.flat_map(|(a, b)| {
        let sums: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
        let mean = sums.iter().sum::<f32>() / width as f32;
        let squares = sums.iter().map(|x| (x - mean) * (x - mean));
        let variance = squares.sum::<f32>() / width as f32;
        let factor = 1.0 / (variance + EPSILON).sqrt();
        let each = sums.into_iter().zip(scale.iter().zip(bias));
        each.map(move |(x, (scale, bias))| (x - mean) * factor * scale + bias)
            .collect::<Vec<f32>>()
    })
    .collect()
}

/// Two matrices each, mixed by a router.
#[derive(Debug)]
struct Experts {
    router: [Linear; 2],
    experts: Vec<(Linear, Linear)>,
    hidden: usize,
}

impl Experts {
    fn read(target: Target<'_>, hidden: usize) -> Result<Self> {
        let named = |part: &str| format!("{NAME}.{part}");
        let router = [
            linear(target, &named("router.0"))?,
            linear(target, &named("router.2"))?,
        ];
        let parts = ["w1", "b1", "w2", "b2"].map(|part| tensor(target, &named(part)));
        let [up, up_bias, down, down_bias] = parts;
        let (up, up_bias, down, down_bias) = (up?, up_bias?, down?, down_bias?);
        let (count, inputs, inner) = up.dims3()?;
        let fits = inputs == hidden
            && down.dims() == [count, inner, hidden]
            && up_bias.dims() == [count, inner]
            && down_bias.dims() == [count, hidden]
            && router[0].inputs() == hidden
            && router[1].inputs() == router[0].outputs()
            && router[1].outputs() == count;
        if !fits {
            return Err(misfit("counting layer"));
        }
        let one = |weight: &Tensor, bias: &Tensor, at: usize| -> Result<Linear> {
            Linear::new(weight.get(at)?.t()?.contiguous()?, Some(bias.get(at)?))
        };
        let experts =
            (0..count).map(|at| Ok((one(&up, &up_bias, at)?, one(&down, &down_bias, at)?)));
        Ok(Self {
            router,
            experts: experts.collect::<Result<_>>()?,
            hidden,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let experts = self.experts.iter().flat_map(|(up, down)| [up, down]);
        self.router
            .iter()
            .chain(experts)
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    fn forward(&self, states: &[f32], device: &Device) -> Result<Tensor> {
        let rows = states.len() / self.hidden.max(1);
        let x = Tensor::from_slice(states, (rows, self.hidden), device)?;
        let mut gates = values(&plain(&self.router[1], &gelu(&self.router[0], &x)?)?)?;
        gates.chunks_exact_mut(self.experts.len()).for_each(softmax);
        let mut mixed = vec![0f32; states.len()];
        for (number, (up, down)) in self.experts.iter().enumerate() {
            let own = values(&plain(down, &gelu(up, &x)?)?)?;
            let gates = gates.iter().skip(number).step_by(self.experts.len());
            let each = mixed
                .chunks_exact_mut(self.hidden)
                .zip(own.chunks_exact(self.hidden));
            for ((sums, own), gate) in each.zip(gates) {
                sums.iter_mut()
                    .zip(own)
                    .for_each(|(sum, own)| *sum += gate * own);
            }
        }
        Ok(Tensor::from_vec(mixed, (rows, self.hidden), device)?)
    }
}

fn gelu(linear: &Linear, x: &Tensor) -> Result<Tensor> {
    let epilogue = Epilogue {
        activation: Some(Activation::Gelu),
        residual: None,
    };
    linear.forward_with(&x.to_dtype(linear.dtype())?, &epilogue)
}

fn softmax(row: &mut [f32]) {
    let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = (*x - highest).exp());
    let total: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= total);
}
