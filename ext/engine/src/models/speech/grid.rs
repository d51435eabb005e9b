//! Convolutions over frames and bands that make both fewer (Parakeet).

use candle_core::Tensor;

use super::config::GridStem;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::nn::{elementwise, Epilogue, Inventory, Linear};
use crate::{Error, Result};
use kernels::Activation;

#[derive(Debug)]
pub struct Grid {
    config: GridStem,
    first: Linear,
    rest: Vec<Depthwise>,
    out: Linear,
}

#[derive(Debug)]
struct Depthwise {
    /// For each place of the kernel a factor per channel.
    taps: Vec<Tensor>,
    bias: Option<Tensor>,
    pointwise: Linear,
}

impl Grid {
    pub fn load(config: &GridStem, hidden: usize, parameters: &Parameters<'_>) -> Result<Self> {
        let (channels, kernel) = (config.channels, config.kernel);
        let place = |number: usize| Place::from(Part::StemConvolution).expert(number);
        let first = parameters.shaped(place(0), &[channels, 1, kernel, kernel])?;
        let first = first.reshape((channels, kernel * kernel))?;
        let mut rest = Vec::with_capacity(config.layers - 1);
        for number in 1..config.layers {
            // After each convolution stands an activation, and before the pointwise one none.
            let (depthwise, pointwise) = (place(3 * number - 1), place(3 * number));
            let taps = parameters.shaped(depthwise, &[channels, 1, kernel, kernel])?;
            let taps = taps
                .reshape((channels, kernel * kernel))?
                .t()?
                .contiguous()?;
            let taps = (0..kernel * kernel).map(|tap| Ok(taps.get(tap)?.contiguous()?));
            let weight = parameters.shaped(pointwise, &[channels, channels, 1, 1])?;
            let weight = weight.reshape((channels, channels))?;
            rest.push(Depthwise {
                taps: taps.collect::<Result<_>>()?,
                bias: parameters.bias(depthwise)?,
                pointwise: parameters.assemble(weight, parameters.bias(pointwise)?)?,
            });
        }
        let bands = config.bins / config.stride.pow(config.layers as u32);
        let out = parameters.shaped(Part::FeatureProjection, &[hidden, channels * bands])?;
        // Rows are laid out band by band here, and channel by channel in checkpoints.
        let out = out.reshape((hidden, channels, bands))?.transpose(1, 2)?;
        let out = out.contiguous()?.reshape((hidden, bands * channels))?;
        Ok(Self {
            config: config.clone(),
            first: parameters.assemble(first, parameters.bias(place(0))?)?,
            rest,
            out: parameters.assemble(out, parameters.bias(Part::FeatureProjection)?)?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.first)?;
        for layer in &self.rest {
            inventory.add_linear(&layer.pointwise)?;
            for tensor in layer.taps.iter().chain(&layer.bias) {
                inventory.add_tensor(tensor);
            }
        }
        inventory.add_linear(&self.out)
    }

    pub fn states(&self, frames: usize) -> usize {
        (0..self.config.layers).fold(frames, |frames, _| self.config.fewer(frames))
    }

    /// [states, hidden] of [frames, bands].
    pub fn forward(&self, features: &Tensor) -> Result<Tensor> {
        let relu = Epilogue {
            activation: Some(Activation::Relu),
            ..Epilogue::default()
        };
        let taps = self.taps(&features.unsqueeze(2)?)?;
        let x = Tensor::cat(&taps, 2)?;
        let (mut frames, mut bands, places) = x.dims3()?;
        let x = x.reshape((frames * bands, places))?;
        let mut x = self.first.forward_with(&x, &relu)?;
        for layer in &self.rest {
            let taps = self.taps(&x.reshape((frames, bands, self.config.channels))?)?;
            let sum = layer.sum(&taps)?;
            (frames, bands, _) = sum.dims3()?;
            let rows = sum.reshape((frames * bands, self.config.channels))?;
            x = layer.pointwise.forward_with(&rows, &relu)?;
        }
        let x = x.reshape((frames, bands * self.config.channels))?;
        elementwise::scale(&self.out.forward(&x)?, self.config.scale)
    }

    /// For each place of the kernel what it sees of [frames, bands, channels].
    fn taps(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        let (frames, bands, _) = x.dims3()?;
        let (kernel, stride) = (self.config.kernel, self.config.stride);
        let padding = (kernel - 1) / 2;
        let x = x.pad_with_zeros(0, padding, padding)?;
        let x = x.pad_with_zeros(1, padding, padding)?.contiguous()?;
        let places = |count: usize, from: usize| {
            let places: Vec<u32> = (0..count).map(|at| (at * stride + from) as u32).collect();
            Tensor::from_vec(places, count, x.device())
        };
        let (frames, bands) = (self.config.fewer(frames), self.config.fewer(bands));
        let mut taps = Vec::with_capacity(kernel * kernel);
        for down in 0..kernel {
            let rows = x.index_select(&places(frames, down)?, 0)?;
            for right in 0..kernel {
                taps.push(rows.index_select(&places(bands, right)?, 1)?);
            }
        }
        Ok(taps)
    }
}

impl Depthwise {
    fn sum(&self, seen: &[Tensor]) -> Result<Tensor> {
        let mut sum: Option<Tensor> = None;
        for (seen, tap) in seen.iter().zip(&self.taps) {
            let part = elementwise::multiply(seen, tap)?;
            sum = Some(match sum {
                Some(sum) => elementwise::add(&sum, &part)?,
                None => part,
            });
        }
        let sum = sum.ok_or_else(|| Error::Internal("a convolution without a kernel".into()))?;
        match &self.bias {
            Some(bias) => elementwise::add(&sum, bias),
            None => Ok(sum),
        }
    }
}
