//! Selective state spaces whose channels each decay in their own way (Mamba).

use candle_core::Tensor;

use super::convolution::Convolution;
use super::shared::{counted, rates, GATE_COST};
use super::short_conv::MOST_TAPS;
use super::{rows, values, StateMixer};
use crate::models::config::{check_size, Checked, NormConfig};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::decoder::states::Scan;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear, Norm};
use crate::Result;
use formats::files::raw_config::WIDTH;
use kernels::cpu::scan::{self, ScanRows, SelectiveLane};
use kernels::cpu::{for_each_row, Isa};
use kernels::Activation;

/// So many channels are a lane, where they can be divided so.
const BLOCK: usize = 32;

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
            Convolution::size(self.channels, self.taps),
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
        let convolution = Part::StateConvolution.at(index);
        let selection = Part::StateSelection.at(index);
        let block = if channels.is_multiple_of(BLOCK) {
            BLOCK
        } else {
            channels
        };
        Ok(Box::new(SelectiveLayer {
            input: parameters.linear(Part::StateInput.at(index), hidden, 2 * channels)?,
            convolution: Convolution::load(
                parameters,
                convolution,
                (channels, self.taps),
                Some(self.activation),
            )?,
            selection: parameters.linear(selection, channels, rank + 2 * kept)?,
            norms: [
                norm(Part::StateStepNorm, rank)?,
                norm(Part::StateIntoNorm, kept)?,
                norm(Part::StateFromNorm, kept)?,
            ],
            steps: parameters.linear(Part::StateSteps.at(index), rank, channels)?,
            channels: Channels {
                decays: by_number(&rates(parameters, index, channels * kept)?, block, kept),
                skips: counted(parameters, Part::StateSkip.at(index), channels)?,
                block,
                config: self.clone(),
            },
            output: parameters.linear(Part::StateOutput.at(index), channels, hidden)?,
        }))
    }
}

/// The rates of each block's channels `[block, kept]` as `[kept, block]`.
fn by_number(rates: &[f32], block: usize, kept: usize) -> Vec<f32> {
    let blocks = rates.chunks_exact(block * kept);
    let sorted = blocks.flat_map(|block| {
        let of_number = move |number: usize| block.iter().skip(number).step_by(kept).copied();
        (0..kept).flat_map(of_number)
    });
    sorted.collect()
}

struct SelectiveLayer {
    /// What is scanned, and the gate.
    input: Linear,
    convolution: Convolution,
    /// Makes time steps, and input and output of the state.
    selection: Linear,
    /// Of these three.
    norms: [Option<Norm>; 3],
    steps: Linear,
    channels: Channels,
    output: Linear,
}

/// The scan of what the convolution gives, of time steps, and of input and output of the state.
struct Channels {
    /// `[blocks, state size, block]`
    decays: Vec<f32>,
    skips: Vec<f32>,
    block: usize,
    config: Selective,
}

impl Scan for Channels {
    fn inputs(&self) -> usize {
        2 * (self.config.channels + self.config.state_size)
    }

    fn lanes(&self) -> usize {
        self.config.channels / self.block
    }

    fn lane_outputs(&self) -> usize {
        self.block
    }

    fn run(&self, isa: Isa, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let (channels, kept) = (self.config.channels, self.config.state_size);
        let (first, size) = (lane * self.block, self.block * kept);
        let block = SelectiveLane {
            channels: self.block,
            kept,
            x: first,
            time: channels + first,
            into: 2 * channels,
            from: 2 * channels + kept,
            rates: &self.decays[lane * size..][..size],
            skips: &self.skips[first..][..self.block],
        };
        let width = self.inputs();
        scan::selective(isa, &block, ScanRows { inputs, width }, state, outputs);
    }
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
        } = self.channels.config;
        let projected = values(&step.through(index, Part::StateInput, &self.input, x)?)?;
        let mut read = Vec::with_capacity(projected.len() / 2);
        for row in projected.chunks_exact(2 * channels) {
            read.extend_from_slice(&row[..channels]);
        }
        let convolved = past.scan((index, 0), &self.convolution, &read, step.batch)?;
        let selected = rows(convolved.clone(), channels, x)?;
        let selected = step.through(index, Part::StateSelection, &self.selection, &selected)?;
        let part = |at: usize, from: usize, width: usize| -> Result<Tensor> {
            let part = selected.narrow(1, from, width)?.contiguous()?;
            match &self.norms[at] {
                Some(norm) => norm.forward(&part),
                None => Ok(part),
            }
        };
        let steps = part(0, 0, rank)?;
        let steps = values(&step.through(index, Part::StateSteps, &self.steps, &steps)?)?;
        let into = values(&part(1, rank, kept)?)?;
        let from = values(&part(2, rank + kept, kept)?)?;
        let mut scanned = Vec::with_capacity(steps.len() / channels * self.channels.inputs());
        for (row, steps) in steps.chunks_exact(channels).enumerate() {
            scanned.extend_from_slice(&convolved[row * channels..(row + 1) * channels]);
            scanned.extend_from_slice(steps);
            scanned.extend_from_slice(&into[row * kept..(row + 1) * kept]);
            scanned.extend_from_slice(&from[row * kept..(row + 1) * kept]);
        }
        let mut given = past.scan((index, 1), &self.channels, &scanned, step.batch)?;
        let isa = Isa::current()?;
        for_each_row(&mut given, channels, GATE_COST, |row, given| {
            let gate = &projected[(2 * row + 1) * channels..][..channels];
            scan::gate(isa, given, gate, Activation::Silu);
        });
        let given = rows(given, channels, x)?;
        step.through(index, Part::StateOutput, &self.output, &given)
    }
}
