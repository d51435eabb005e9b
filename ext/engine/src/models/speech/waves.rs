//! Convolutions over samples, the first one's result normalized as a whole (Moonshine).

use candle_core::{DType, Tensor};

use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::nn::{elementwise, Conv1d, Inventory};
use crate::{CancelToken, Result};
use kernels::Activation;

/// Kernel and stride of each convolution.
const SHAPES: [(usize, usize); 3] = [(127, 64), (7, 3), (3, 2)];
/// Samples from one state to the next.
pub const STRIDE: usize = 64 * 3 * 2;
const EPSILON: f64 = 1e-5;

#[derive(Debug)]
pub struct Waves {
    layers: Vec<Conv1d>,
    /// Of each channel behind the first convolution.
    weight: Tensor,
    bias: Tensor,
}

impl Waves {
    pub fn load(hidden: usize, parameters: &Parameters<'_>) -> Result<Self> {
        let widths = [1, hidden, 2 * hidden, hidden];
        let layer = |number: usize| -> Result<Conv1d> {
            let place = Place::from(Part::StemConvolution).expert(number + 1);
            let (kernel, stride) = SHAPES[number];
            let shape = [widths[number + 1], widths[number], kernel];
            let weight = parameters.shaped(place, &shape)?;
            let bias = parameters.bias(place)?;
            Conv1d::new(&weight, bias.as_ref(), (stride, 0, 1))
        };
        let bias = parameters.bias(Part::StemNorm)?;
        let bias = bias.filter(|bias| bias.dims() == [hidden]);
        Ok(Self {
            layers: (0..SHAPES.len()).map(layer).collect::<Result<_>>()?,
            weight: parameters.shaped(Part::StemNorm, &[hidden])?,
            bias: bias.ok_or_else(|| parameters.missing(Part::StemNorm))?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for layer in &self.layers {
            layer.list(inventory)?;
        }
        inventory.add_tensor(&self.weight);
        inventory.add_tensor(&self.bias);
        Ok(())
    }

    pub fn states(&self, samples: usize) -> usize {
        let layers = self.layers.iter();
        layers.fold(samples, |frames, layer| layer.frames(frames))
    }

    /// [states, hidden] of [samples, 1].
    pub fn forward(&self, samples: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
        let mut x = samples.clone();
        for (number, layer) in self.layers.iter().enumerate() {
            let activation = match number {
                0 => Activation::Tanh,
                _ => Activation::Gelu,
            };
            x = layer.forward(&x, Some(activation), cancel)?;
            if number == 0 {
                x = self.normalized(&x)?;
            }
        }
        Ok(x)
    }

    /// All numbers of [frames, channels] together brought to a mean of 0 and a variance of 1.
    fn normalized(&self, x: &Tensor) -> Result<Tensor> {
        // Row by row first, since long sums lose digits.
        let mean = |x: &Tensor| x.mean_keepdim(1)?.mean_keepdim(0);
        let wide = x.to_dtype(DType::F32)?;
        let centred = elementwise::subtract(&wide, &mean(&wide)?)?;
        let variance = mean(&elementwise::multiply(&centred, &centred)?)?;
        let factor = (variance + EPSILON)?.sqrt()?.recip()?;
        let rows = elementwise::multiply(&centred, &factor)?.to_dtype(x.dtype())?;
        elementwise::add(&elementwise::multiply(&rows, &self.weight)?, &self.bias)
    }
}
