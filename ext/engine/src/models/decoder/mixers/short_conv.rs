//! A gated convolution over a few tokens (LFM2).

use candle_core::Tensor;

use super::convolution::Convolution;
use super::{rows, values, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::decoder::states::Scan;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear};
use crate::Result;
use formats::files::raw_config::WIDTH;
use kernels::cpu::for_each_row;

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
    convolution: Convolution,
    output: Linear,
}

impl ShortConv {
    pub fn sizes(&self) -> Vec<usize> {
        vec![Convolution::size(self.channels, self.taps)]
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
        let convolution = Part::StateConvolution.at(index);
        let size = (channels, self.taps);
        Ok(Box::new(ShortConvLayer {
            input: parameters.linear(Part::StateInput.at(index), hidden, 3 * channels)?,
            convolution: Convolution::load(parameters, convolution, size, None)?,
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
        let projected = values(&step.through(index, Part::StateInput, &self.input, x)?)?;
        let channels = self.convolution.inputs();
        let part = |row: usize, at: usize| &projected[(3 * row + at) * channels..][..channels];
        let multiplied = |values: &mut [f32], by: &[f32]| {
            values.iter_mut().zip(by).for_each(|(x, by)| *x *= by);
        };
        let mut gated = vec![0.0; projected.len() / 3];
        for_each_row(&mut gated, channels, 2, |row, gated| {
            gated.copy_from_slice(part(row, 2));
            multiplied(gated, part(row, 0));
        });
        let mut convolved = past.scan((index, 0), &self.convolution, &gated, step.batch)?;
        for_each_row(&mut convolved, channels, 1, |row, convolved| {
            multiplied(convolved, part(row, 1));
        });
        let convolved = rows(convolved, channels, x)?;
        step.through(index, Part::StateOutput, &self.output, &convolved)
    }
}
