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
        let parts = || {
            let rows = projected.chunks_exact(3 * channels);
            rows.map(|row| {
                (
                    &row[..channels],
                    &row[channels..2 * channels],
                    &row[2 * channels..],
                )
            })
        };
        let gated = parts().flat_map(|(gate, _, x)| gate.iter().zip(x).map(|(gate, x)| gate * x));
        let gated: Vec<f32> = gated.collect();
        let mut convolved = past.scan((index, 0), &self.convolution, &gated, step.batch)?;
        for (row, (_, gate, _)) in convolved.chunks_exact_mut(channels).zip(parts()) {
            row.iter_mut().zip(gate).for_each(|(x, gate)| *x *= gate);
        }
        let convolved = rows(convolved, channels, x)?;
        step.through(index, Part::StateOutput, &self.output, &convolved)
    }
}
