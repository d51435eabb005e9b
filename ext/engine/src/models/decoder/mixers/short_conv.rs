//! A gated convolution over a few tokens (LFM2).

use candle_core::Tensor;

use super::shared::{convolution, convolution_size};
use super::{as_type, floats, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear};
use crate::Result;
use formats::files::raw_config::WIDTH;
use kernels::scan::Scan;
use kernels::Activation;

/// More tokens than any convolution sees.
pub const MOST_TAPS: usize = 1024;

#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    pub channels: usize,
    /// How many tokens it sees.
    pub taps: usize,
}

struct ShortConvLayer {
    /// Two gates and what is convolved, `[3 · channels, hidden]`.
    input: Linear,
    convolution: Scan,
    output: Linear,
}

impl ShortConv {
    pub fn sizes(&self) -> Vec<usize> {
        vec![convolution_size(self.channels, self.taps)]
    }

    pub fn check(&self) -> Checked {
        check_size("number of convolved channels", self.channels, WIDTH)?;
        check_size("number of a convolution's taps", self.taps, 1..=MOST_TAPS)
    }

    pub fn load(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Box<dyn StateMixer>> {
        let (hidden, channels) = (config.hidden_size, self.channels);
        let place = Part::StateConvolution.at(index);
        let size = (channels, self.taps);
        Ok(Box::new(ShortConvLayer {
            input: parameters.linear(Part::StateInput.at(index), hidden, 3 * channels)?,
            convolution: convolution(parameters, place, size, Activation::Identity)?,
            output: parameters.linear(Part::StateOutput.at(index), channels, hidden)?,
        }))
    }
}

impl StateMixer for ShortConvLayer {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.input)?;
        inventory.add_linear(&self.output)
    }

    fn modules(&self) -> Vec<Module> {
        vec![
            Module::single(Part::StateInput, 0, &self.input),
            Module::single(Part::StateOutput, 0, &self.output),
        ]
    }

    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let projected = step.through(index, Part::StateInput, &self.input, x)?;
        let (projected, channels) = (floats(&projected)?, self.convolution.inputs());
        let part = |at: usize| projected.narrow(1, at * channels, channels);
        let multiplied = |a: &Tensor, b: &Tensor| kernels::gated(a, b, Activation::Identity);
        let gated = multiplied(&part(0)?, &part(2)?)?;
        let convolved = past.scan((index, 0), &self.convolution, &gated, step.batch)?;
        let convolved = as_type(&multiplied(&part(1)?, &convolved)?, x.dtype())?;
        step.through(index, Part::StateOutput, &self.output, &convolved)
    }
}
