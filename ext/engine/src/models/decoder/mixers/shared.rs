//! What several kinds of layers that keep a state are made of.

use candle_core::Tensor;

use super::values;
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::nn::{Inventory, Linear};
use crate::Result;
use kernels::scan::Scan;
use kernels::Activation;

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

/// A convolution of channels, of a weight `[channels, 1, taps]`, with or without a bias.
pub fn convolution(
    parameters: &Parameters<'_>,
    place: Place,
    (channels, taps): (usize, usize),
    activation: Activation,
) -> Result<Scan> {
    let by_channel = taps_of(parameters, place, taps)?;
    if by_channel.len() != channels * taps {
        return Err(parameters.misfit(place, &[channels, 1, taps]));
    }
    let bias = match parameters.bias(place)? {
        Some(bias) if bias.dims() == [channels] => values(&bias)?,
        Some(_) => return Err(parameters.misfit(place, &[channels])),
        None => vec![0.0; channels],
    };
    Scan::convolution(&by_channel, bias, activation, parameters.device())
}

/// The channels of several weights, one after the other.
pub fn joined_convolution(
    parameters: &Parameters<'_>,
    places: &[Place],
    (channels, taps): (usize, usize),
    activation: Activation,
) -> Result<Scan> {
    let mut by_channel = Vec::new();
    for &place in places {
        let own = taps_of(parameters, place, taps)?;
        if by_channel.len() + own.len() > channels * taps {
            return Err(parameters.misfit(place, &[channels, 1, taps]));
        }
        by_channel.extend(own);
    }
    match places.last() {
        Some(&last) if by_channel.len() < channels * taps => {
            Err(parameters.misfit(last, &[channels, 1, taps]))
        }
        _ => {
            let bias = vec![0.0; channels];
            Scan::convolution(&by_channel, bias, activation, parameters.device())
        }
    }
}

/// How many numbers a convolution of these channels keeps.
pub fn convolution_size(channels: usize, taps: usize) -> usize {
    channels * (taps - 1)
}

/// `[channels, 1, taps]`, or the same without or with more extents of one.
fn taps_of(parameters: &Parameters<'_>, place: Place, taps: usize) -> Result<Vec<f32>> {
    let shape = parameters.shape(place)?;
    let long = shape.iter().filter(|&&extent| extent != 1).count();
    if long > 2 || taps > 1 && shape.last() != Some(&taps) {
        return Err(parameters.misfit(place, &[shape.iter().product::<usize>() / taps, 1, taps]));
    }
    values(&parameters.tensor(place)?)
}

/// A tensor of so many elements, as a row of f32.
pub fn row(parameters: &Parameters<'_>, place: Place, count: usize) -> Result<Tensor> {
    on_device(counted(parameters, place, count)?, parameters)
}

/// Numbers as a row where the model is.
pub fn on_device(numbers: Vec<f32>, parameters: &Parameters<'_>) -> Result<Tensor> {
    let count = numbers.len();
    Ok(Tensor::from_vec(numbers, count, parameters.device())?)
}

/// ln(1 + eˣ), which above 20 is x in single precision.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 {
        x
    } else {
        x.exp().ln_1p()
    }
}
