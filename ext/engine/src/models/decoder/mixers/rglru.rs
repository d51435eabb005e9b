//! The real-gated linear recurrent unit: each channel's state fades by a gate of its own, and takes as much of the
//! input as faded (RecurrentGemma).

use candle_core::Tensor;

use super::convolution::Convolution;
use super::shared::{counted, side_by_side, softplus, GATE_COST};
use super::short_conv::MOST_TAPS;
use super::{rows, values, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::decoder::states::Scan;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, HeadMatrices, Inventory, Linear};
use crate::Result;
use formats::files::raw_config::{HEADS, WIDTH};
use kernels::cpu::scan::{self, RglruGates, RglruLane, ScanRows};
use kernels::cpu::{for_each_row, Isa};
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
        vec![Convolution::size(self.width, self.taps), self.width]
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

/// A row has for each channel what is added to its state, and what it is multiplied by before.
impl Scan for Rglru {
    fn inputs(&self) -> usize {
        2 * self.width
    }

    fn lanes(&self) -> usize {
        self.blocks
    }

    fn lane_outputs(&self) -> usize {
        self.width / self.blocks
    }

    fn run(&self, isa: Isa, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let first = lane * state.len();
        let block = RglruLane {
            channels: state.len(),
            taken: first,
            kept: self.width + first,
        };
        let width = self.inputs();
        scan::rglru(isa, &block, ScanRows { inputs, width }, state, outputs);
    }
}

struct RglruLayer {
    config: Rglru,
    /// The branch that the states are multiplied by.
    beside: Linear,
    input: Linear,
    convolution: Convolution,
    input_gate: BlockGate,
    fading_gate: BlockGate,
    /// How fast each channel fades where its gate is open, in powers of e.
    rates: Vec<f32>,
    output: Linear,
}

/// A matrix for each block of channels, and a bias.
struct BlockGate {
    matrices: HeadMatrices,
    bias: Vec<f32>,
}

impl BlockGate {
    fn load(
        parameters: &Parameters<'_>,
        index: usize,
        [weight, bias]: [Part; 2],
        config: &Rglru,
    ) -> Result<Self> {
        let size = config.width / config.blocks;
        let matrices = parameters.shaped(weight.at(index), &[config.blocks, size, size])?;
        Ok(Self {
            matrices: HeadMatrices::new(&matrices)?,
            bias: counted(parameters, bias.at(index), config.width)?,
        })
    }

    /// Of `x`, `[tokens, blocks, size]`, before their sigmoid and without the bias.
    fn forward(&self, x: &Tensor) -> Result<Vec<f32>> {
        let size = x.dim(2)?;
        values(&self.matrices.forward(x, 0..size)?)
    }
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
        let gate = |parts| BlockGate::load(parameters, index, parts, self);
        let (convolution, size) = (at(Part::StateConvolution), (width, self.taps));
        let rates = counted(parameters, at(Part::StateDecay), width)?;
        Ok(Box::new(RglruLayer {
            config: *self,
            beside: linear(Part::StateGate, hidden, width)?,
            input: linear(Part::StateInput, hidden, width)?,
            convolution: Convolution::load(parameters, convolution, size, None)?,
            input_gate: gate([Part::StateInputGate, Part::StateInputGateBias])?,
            fading_gate: gate([Part::StateFading, Part::StateFadingBias])?,
            rates: rates.into_iter().map(|x| RATE * softplus(x)).collect(),
            output: linear(Part::StateOutput, width, hidden)?,
        }))
    }
}

impl StateMixer for RglruLayer {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_head_matrices(&self.input_gate.matrices);
        inventory.add_head_matrices(&self.fading_gate.matrices);
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
        let given = values(&step.through(index, Part::StateInput, &self.input, x)?)?;
        let given = past.scan((index, 0), &self.convolution, &given, step.batch)?;
        let cut = rows(given.clone(), width, x)?;
        let cut = cut.reshape((x.dim(0)?, blocks, width / blocks))?;
        let gates = [
            &self.input_gate.forward(&cut)?[..],
            &self.fading_gate.forward(&cut)?,
        ];
        let mut inputs = side_by_side(gates, [width; 2]);
        let begins: Vec<bool> = step.batch.positions().map(|at| at == 0).collect();
        self.open(Isa::current()?, &given, &begins, &mut inputs);
        let read = past.scan((index, 1), &self.config, &inputs, step.batch)?;
        let read = elementwise::multiply(&rows(read, width, x)?, &beside)?;
        step.through(index, Part::StateOutput, &self.output, &read)
    }
}

impl RglruLayer {
    /// Makes of both gates, side by side in rows, what is taken of each input, and what states keep.
    fn open(&self, isa: Isa, given: &[f32], begins: &[bool], gates: &mut [f32]) {
        let width = self.config.width;
        for_each_row(gates, 2 * width, 2 * GATE_COST, |token, gates| {
            let (taken, kept) = gates.split_at_mut(width);
            let gates = RglruGates {
                given: &given[token * width..][..width],
                biases: [&self.input_gate.bias, &self.fading_gate.bias],
                rates: &self.rates,
                begins: begins[token],
            };
            scan::open_rglru(isa, &gates, taken, kept);
        });
    }
}
