//! What several kinds of layers that keep a state are made of.

use candle_core::Tensor;

use super::values;
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::nn::{Inventory, Linear};
use crate::Result;

/// A gate takes as long as copying about so many numbers.
pub const GATE_COST: usize = 4;

/// So many columns of a head's values are a lane, where they can be divided so.
const COLUMNS: usize = 32;

/// How many columns of a head's values, which know nothing of each other, are a lane.
pub fn lane_columns(head_size: usize) -> usize {
    if head_size.is_multiple_of(COLUMNS) {
        COLUMNS
    } else {
        head_size
    }
}

/// A tensor of so many elements, on the host and in f32.
pub fn counted(parameters: &Parameters<'_>, place: Place, count: usize) -> Result<Vec<f32>> {
    let shape = parameters.shape(place)?;
    if shape.iter().product::<usize>() == count {
        values(&parameters.tensor(place)?)
    } else {
        Err(parameters.misfit(place, &[count]))
    }
}

/// How fast so many states decay, in powers of e and negative.
pub fn rates(parameters: &Parameters<'_>, index: usize, count: usize) -> Result<Vec<f32>> {
    let ready = Part::StateRates.at(index);
    if parameters.has(ready) {
        return counted(parameters, ready, count);
    }
    let logarithms = counted(parameters, Part::StateDecay.at(index), count)?;
    Ok(logarithms.into_iter().map(|log| -log.exp()).collect())
}

/// One matrix, or two with a shorter row between them.
pub struct Chain(Vec<(Part, Linear)>);

impl Chain {
    pub fn one(part: Part, linear: Linear) -> Self {
        Self(vec![(part, linear)])
    }

    pub fn load(
        parameters: &Parameters<'_>,
        [one, down, up]: [Place; 3],
        inputs: usize,
        outputs: usize,
    ) -> Result<Self> {
        if parameters.has(one) {
            let linear = parameters.linear(one, inputs, outputs)?;
            return Ok(Self::one(one.part, linear));
        }
        let rank = parameters.outputs(down)?;
        Ok(Self(vec![
            (down.part, parameters.linear(down, inputs, rank)?),
            (up.part, parameters.linear(up, rank, outputs)?),
        ]))
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let mut linears = self.0.iter();
        linears.try_for_each(|(_, linear)| inventory.add_linear(linear))
    }

    pub fn modules(&self) -> impl Iterator<Item = Module> + '_ {
        let linears = self.0.iter();
        linears.map(|(part, linear)| Module::single(*part, 0, linear))
    }

    pub fn forward(&self, index: usize, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let mut linears = self.0.iter();
        linears.try_fold(x.clone(), |x, (part, linear)| {
            step.through(index, *part, linear, &x)
        })
    }
}

/// The rows of several parts, each of its width, in one.
pub fn side_by_side<const COUNT: usize>(
    parts: [&[f32]; COUNT],
    widths: [usize; COUNT],
) -> Vec<f32> {
    let count = parts[0].len() / widths[0].max(1);
    let mut out = Vec::with_capacity(count * widths.iter().sum::<usize>());
    for row in 0..count {
        for (part, width) in parts.iter().zip(widths) {
            out.extend_from_slice(&part[row * width..][..width]);
        }
    }
    out
}

pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// ln(1 + eˣ), which above 20 is x in single precision.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 {
        x
    } else {
        x.exp().ln_1p()
    }
}
