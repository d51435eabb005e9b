//! The real-gated linear recurrent unit: each channel's state fades by a gate of its own, and takes as much of the
//! input as faded (RecurrentGemma).

use candle_core::Tensor;

use super::shared::{convolution, convolution_size, counted, softplus};
use super::short_conv::MOST_TAPS;
use super::{floats, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, HeadMatrices, Inventory, Linear};
use crate::Result;
use formats::files::raw_config::{HEADS, WIDTH};
use kernels::scan::{RecurrentGates, Scan};
use kernels::Activation;

/// How fast an open gate lets a state fade.
const RATE: f32 = -8.0;

/// A layer of recurrent units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rglru {
    pub width: usize,
    /// Gates are made of the channels of one block each.
    pub blocks: usize,
    /// How many tokens the convolution sees.
    pub taps: usize,
    /// Of the branch that the states are multiplied by.
    pub activation: Activation,
}

impl Rglru {
    /// How many numbers a sequence keeps in a layer: of the convolution, and of all units.
    pub fn sizes(&self) -> Vec<usize> {
        vec![convolution_size(self.width, self.taps), self.width]
    }

    pub fn check(&self) -> Checked {
        check_size("width of recurrent units", self.width, WIDTH)?;
        check_size("number of blocks", self.blocks, HEADS)?;
        check_size("width of a convolution", self.taps, 1..=MOST_TAPS)?;
        if self.width.is_multiple_of(self.blocks) {
            Ok(())
        } else {
            Err(format!(
                "{} recurrent units can't be divided into {} blocks",
                self.width, self.blocks
            ))
        }
    }
}

struct RglruLayer {
    config: Rglru,
    /// The branch that the states are multiplied by.
    beside: Linear,
    input: Linear,
    convolution: Scan,
    units: Scan,
    /// A matrix for each block of channels, of the gates of inputs and of fading.
    input_gate: HeadMatrices,
    fading_gate: HeadMatrices,
    gates: RecurrentGates,
    output: Linear,
}

impl Rglru {
    pub fn load(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Box<dyn StateMixer>> {
        let (hidden, width) = (config.hidden_size, self.width);
        let at = |part: Part| part.at(index);
        let linear = |part: Part, inputs, outputs| parameters.linear(at(part), inputs, outputs);
        let block = width / self.blocks;
        let gate = |part: Part| -> Result<HeadMatrices> {
            let shape = [self.blocks, block, block];
            HeadMatrices::new(&parameters.shaped(at(part), &shape)?)
        };
        let row = |part: Part| counted(parameters, at(part), width);
        let rates = row(Part::StateDecay)?.into_iter();
        let rates = rates.map(|x| RATE * softplus(x)).collect();
        let biases = [row(Part::StateInputGateBias)?, row(Part::StateFadingBias)?];
        let (convolved, size) = (at(Part::StateConvolution), (width, self.taps));
        Ok(Box::new(RglruLayer {
            config: *self,
            beside: linear(Part::StateGate, hidden, width)?,
            input: linear(Part::StateInput, hidden, width)?,
            convolution: convolution(parameters, convolved, size, Activation::Identity)?,
            units: Scan::rglru(width, parameters.device())?,
            input_gate: gate(Part::StateInputGate)?,
            fading_gate: gate(Part::StateFading)?,
            gates: RecurrentGates::new(biases, rates, parameters.device())?,
            output: linear(Part::StateOutput, width, hidden)?,
        }))
    }
}

impl StateMixer for RglruLayer {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_head_matrices(&self.input_gate);
        inventory.add_head_matrices(&self.fading_gate);
        let linears = [&self.beside, &self.input, &self.output];
        linears
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    fn modules(&self) -> Vec<Module> {
        vec![
            Module::single(Part::StateGate, 0, &self.beside),
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
        let Rglru { width, blocks, .. } = self.config;
        let activation = self.config.activation;
        let beside = step.activated(index, Part::StateGate, &self.beside, x, activation)?;
        let given = step.through(index, Part::StateInput, &self.input, x)?;
        let given = past.scan((index, 0), &self.convolution, &given, step.batch)?;
        let (tokens, block) = (x.dim(0)?, width / blocks);
        let cut = given
            .to_dtype(x.dtype())?
            .reshape((tokens, blocks, block))?;
        let gate = |matrices: &HeadMatrices| -> Result<Tensor> {
            let gate = matrices.forward(&cut, 0..block)?;
            floats(&gate.reshape((tokens, width))?)
        };
        let gates = [gate(&self.input_gate)?, gate(&self.fading_gate)?];
        let begins = step.batch.positions().map(|at| u32::from(at == 0));
        let begins: Vec<u32> = begins.collect();
        let inputs = self.gates.open(&given, [&gates[0], &gates[1]], &begins)?;
        let read = past.scan((index, 1), &self.units, &inputs, step.batch)?;
        let read = elementwise::multiply(&read.to_dtype(x.dtype())?, &beside)?;
        step.through(index, Part::StateOutput, &self.output, &read)
    }
}
