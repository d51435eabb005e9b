//! Selective state spaces whose channels each decay in their own way (Mamba).

use candle_core::Tensor;

use super::shared::{convolution, convolution_size, counted, rates};
use super::short_conv::MOST_TAPS;
use super::{as_type, beside, columns, floats, StateMixer};
use crate::models::config::{check_size, Checked, NormConfig};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear, Norm};
use crate::Result;
use formats::files::raw_config::WIDTH;
use kernels::scan::Scan;
use kernels::Activation;

#[derive(Clone, Debug, PartialEq)]
pub struct Selective {
    pub channels: usize,
    /// How many numbers each channel keeps.
    pub state_size: usize,
    /// The width that time steps pass between two matrices.
    pub rank: usize,
    /// How many tokens the convolution sees.
    pub taps: usize,
    /// Of what the convolution gives.
    pub activation: Activation,
    /// Of time steps, and of input and output of the state (Falcon Mamba, Jamba).
    pub norm: Option<NormConfig>,
}

impl Selective {
    pub fn sizes(&self) -> Vec<usize> {
        vec![
            convolution_size(self.channels, self.taps),
            self.channels * self.state_size,
        ]
    }

    pub fn check(&self) -> Checked {
        check_size("number of SSM channels", self.channels, WIDTH)?;
        check_size("size of SSM states", self.state_size, WIDTH)?;
        check_size("rank of time steps", self.rank, WIDTH)?;
        check_size("number of a convolution's taps", self.taps, 1..=MOST_TAPS)
    }

    pub fn load(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Box<dyn StateMixer>> {
        let (hidden, channels) = (config.hidden_size, self.channels);
        let (rank, kept) = (self.rank, self.state_size);
        let norm = |part: Part, width: usize| {
            let norm = self.norm;
            norm.map(|norm| parameters.norm(part.at(index), &[width], norm))
                .transpose()
        };
        let convolved = Part::StateConvolution.at(index);
        let selection = Part::StateSelection.at(index);
        let rates = rates(parameters, index, channels * kept)?;
        let skips = counted(parameters, Part::StateSkip.at(index), channels)?;
        Ok(Box::new(SelectiveLayer {
            input: parameters.linear(Part::StateInput.at(index), hidden, 2 * channels)?,
            convolution: convolution(
                parameters,
                convolved,
                (channels, self.taps),
                self.activation,
            )?,
            selection: parameters.linear(selection, channels, rank + 2 * kept)?,
            norms: [
                norm(Part::StateStepNorm, rank)?,
                norm(Part::StateIntoNorm, kept)?,
                norm(Part::StateFromNorm, kept)?,
            ],
            steps: parameters.linear(Part::StateSteps.at(index), rank, channels)?,
            channels: Scan::selective(&rates, skips, parameters.device())?,
            config: self.clone(),
            output: parameters.linear(Part::StateOutput.at(index), channels, hidden)?,
        }))
    }
}

struct SelectiveLayer {
    config: Selective,
    /// What is scanned, and the gate.
    input: Linear,
    convolution: Scan,
    /// Makes time steps, and input and output of the state.
    selection: Linear,
    /// Of these three.
    norms: [Option<Norm>; 3],
    steps: Linear,
    /// The scan of what the convolution gives, of time steps, and of input and output of the state.
    channels: Scan,
    output: Linear,
}

impl StateMixer for SelectiveLayer {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for linear in [&self.input, &self.selection, &self.steps, &self.output] {
            inventory.add_linear(linear)?;
        }
        for norm in self.norms.iter().flatten() {
            inventory.add_norm(norm)?;
        }
        Ok(())
    }

    fn modules(&self) -> Vec<Module> {
        vec![
            Module::single(Part::StateInput, 0, &self.input),
            Module::single(Part::StateSelection, 0, &self.selection),
            Module::single(Part::StateSteps, 0, &self.steps),
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
        let Selective {
            channels,
            state_size: kept,
            rank,
            ..
        } = self.config;
        let projected = step.through(index, Part::StateInput, &self.input, x)?;
        let projected = floats(&projected)?;
        let read = columns(&projected, 0, channels)?;
        let convolved = past.scan((index, 0), &self.convolution, &read, step.batch)?;
        let selected = as_type(&convolved, x.dtype())?;
        let selected = step.through(index, Part::StateSelection, &self.selection, &selected)?;
        let part = |at: usize, from: usize, width: usize| -> Result<Tensor> {
            let part = columns(&selected, from, width)?;
            match &self.norms[at] {
                Some(norm) => norm.forward(&part),
                None => Ok(part),
            }
        };
        let steps = part(0, 0, rank)?;
        let steps = step.through(index, Part::StateSteps, &self.steps, &steps)?;
        let into = part(1, rank, kept)?;
        let from = part(2, rank + kept, kept)?;
        let scanned = beside(&[&convolved, &steps, &into, &from])?;
        let given = past.scan((index, 1), &self.channels, &scanned, step.batch)?;
        let gate = projected.narrow(1, channels, channels)?;
        let given = kernels::gated(&gate, &given, Activation::Silu)?;
        let given = as_type(&given, x.dtype())?;
        step.through(index, Part::StateOutput, &self.output, &given)
    }
}
