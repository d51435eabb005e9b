//! Long short-term memory over whole sequences, forwards and backwards.

use candle_core::{DType, Device, Tensor};

use super::{elementwise, Inventory, Linear};
use crate::{Error, Result};
use formats::weights::WeightSource;

#[derive(Debug)]
pub struct Lstm {
    /// One direction each, or two whose outputs stand side by side.
    layers: Vec<Vec<Direction>>,
}

#[derive(Debug)]
struct Direction {
    /// Gates out of the input, with both biases: input, forget, cell, output.
    input: Linear,
    /// Gates out of the state before, [state, 4 × state].
    recurrent: Vec<f32>,
    state: usize,
    backwards: bool,
}

impl Lstm {
    /// As PyTorch stores it, below `prefix`.
    pub fn read(
        source: &dyn WeightSource,
        prefix: &str,
        layers: usize,
        (device, dtype): (&Device, DType),
    ) -> Result<Self> {
        let read = |layer: usize| -> Result<Vec<Direction>> {
            let both = source.has(&format!("{prefix}weight_ih_l{layer}_reverse"));
            let backwards: &[bool] = if both { &[false, true] } else { &[false] };
            let each = backwards.iter();
            each.map(|&backwards| {
                let end = if backwards { "_reverse" } else { "" };
                let name = |part: &str| format!("{prefix}{part}_l{layer}{end}");
                Direction::read(source, name, backwards, (device, dtype))
            })
            .collect()
        };
        let layers = (0..layers).map(read).collect::<Result<Vec<_>>>()?;
        for pair in layers.windows(2) {
            let width: usize = pair[0].iter().map(|one| one.state).sum();
            if pair[1].iter().any(|one| one.input.inputs() != width) {
                return Err(Error::CorruptModel(format!(
                    "the LSTM layers below {prefix:?} do not fit each other"
                )));
            }
        }
        Ok(Self { layers })
    }

    /// How many numbers it reads of each row.
    pub fn inputs(&self) -> usize {
        let first = self.layers.first().and_then(|layer| layer.first());
        first.map_or(0, |one| one.input.inputs())
    }

    /// How many numbers it makes of each row.
    pub fn outputs(&self) -> usize {
        let last = self.layers.last();
        last.map_or(0, |layer| layer.iter().map(|one| one.state).sum())
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for direction in self.layers.iter().flatten() {
            inventory.add_linear(&direction.input)?;
        }
        Ok(())
    }

    /// f32 [rows, outputs] from the rows of one sequence.
    pub fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        let mut x = rows.clone();
        for layer in &self.layers {
            let (count, _) = x.dims2()?;
            let width: usize = layer.iter().map(|one| one.state).sum();
            let mut out = vec![0f32; count * width];
            let mut first = 0;
            for direction in layer {
                let gates = direction
                    .input
                    .forward(&x.to_dtype(direction.input.dtype())?)?;
                let gates: Vec<f32> = gates.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
                direction.run(&gates, count, &mut out, (width, first));
                first += direction.state;
            }
            x = Tensor::from_vec(out, (count, width), x.device())?;
        }
        Ok(x)
    }
}

impl Direction {
    fn read(
        source: &dyn WeightSource,
        name: impl Fn(&str) -> String,
        backwards: bool,
        (device, dtype): (&Device, DType),
    ) -> Result<Self> {
        let wrong = || {
            Error::CorruptModel(format!(
                "the tensors of the LSTM {:?} do not fit each other",
                name("weight_ih")
            ))
        };
        let recurrent = source.tensor(&name("weight_hh"), Some(DType::F32), &Device::Cpu)?;
        let (gates, state) = recurrent.dims2().map_err(|_| wrong())?;
        let weight = source.tensor(&name("weight_ih"), Some(dtype), device)?;
        let bias = |part: &str| source.tensor(&name(part), Some(dtype), device);
        let bias = if source.has(&name("bias_ih")) {
            Some(elementwise::add(&bias("bias_ih")?, &bias("bias_hh")?)?)
        } else {
            None
        };
        if gates != 4 * state || weight.dims().first() != Some(&gates) {
            return Err(wrong());
        }
        Ok(Self {
            input: Linear::new(weight, bias)?,
            recurrent: recurrent.t()?.flatten_all()?.to_vec1()?,
            state,
            backwards,
        })
    }

    /// Writes the state after each row to the columns of `out` from `first` on.
    fn run(&self, gates: &[f32], rows: usize, out: &mut [f32], (width, first): (usize, usize)) {
        let size = self.state;
        let mut cell = vec![0f32; size];
        let mut state = vec![0f32; size];
        for step in 0..rows {
            let row = if self.backwards {
                rows - 1 - step
            } else {
                step
            };
            let mut sums = gates[4 * size * row..4 * size * (row + 1)].to_vec();
            for (&value, weights) in state.iter().zip(self.recurrent.chunks_exact(4 * size)) {
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum += value * weight;
                }
            }
            for (at, (cell, state)) in cell.iter_mut().zip(&mut state).enumerate() {
                let gate = |number: usize| sums[number * size + at];
                *cell = sigmoid(gate(1)) * *cell + sigmoid(gate(0)) * gate(2).tanh();
                *state = sigmoid(gate(3)) * cell.tanh();
            }
            out[row * width + first..row * width + first + size].copy_from_slice(&state);
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
