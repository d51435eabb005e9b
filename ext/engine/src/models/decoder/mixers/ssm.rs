//! Selective state spaces whose heads decay as a whole (Mamba-2).

use candle_core::Tensor;

use super::convolution::Convolution;
use super::shared::{counted, lane_columns, rates, GATE_COST};
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
use crate::nn::{elementwise, Inventory, Linear};
use crate::Result;
use formats::files::raw_config::{HEADS, WIDTH};
use kernels::cpu::scan::{self, MatrixLane, MatrixRule, ScanRows};
use kernels::cpu::{for_each_row, Isa};
use kernels::Activation;

#[derive(Clone, Debug, PartialEq)]
pub struct Ssm {
    pub heads: usize,
    pub head_size: usize,
    /// Heads of a group have their inputs and outputs of the state in common.
    pub groups: usize,
    /// How many numbers each element of a head keeps.
    pub state_size: usize,
    /// How many tokens the convolution sees.
    pub taps: usize,
    /// Of what the convolution gives.
    pub activation: Activation,
    pub norm: SsmNorm,
    pub epsilon: f32,
    /// Time steps are at least and at most so long.
    pub steps: (f32, f32),
    pub factors: SsmFactors,
}

/// The norm of what the scan gives, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SsmNorm {
    None,
    /// Of so many parts each, before or after the gate.
    Parts {
        count: usize,
        before_gate: bool,
    },
}

/// What an SSM multiplies (Falcon H1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsmFactors {
    pub input: f32,
    /// Gate, what is scanned, input and output of the state, and time steps.
    pub projected: [f32; 5],
    pub output: f32,
}

impl SsmFactors {
    pub const NONE: Self = Self {
        input: 1.0,
        projected: [1.0; 5],
        output: 1.0,
    };
}

impl Ssm {
    /// The width of what is scanned.
    pub fn inner(&self) -> usize {
        self.heads * self.head_size
    }

    /// What the convolution reads: what is scanned, and input and output of the state.
    fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_size
    }

    pub fn sizes(&self) -> Vec<usize> {
        vec![
            Convolution::size(self.channels(), self.taps),
            self.inner() * self.state_size,
        ]
    }

    pub fn check(&self) -> Checked {
        check_size("number of SSM heads", self.heads, HEADS)?;
        check_size("size of SSM heads", self.head_size, WIDTH)?;
        check_size("size of SSM states", self.state_size, WIDTH)?;
        check_size("width of SSM heads", self.inner(), WIDTH)?;
        check_size("number of SSM groups", self.groups, 1..=self.heads)?;
        let shared = self.groups * self.state_size;
        check_size("width of SSM groups", shared, WIDTH)?;
        check_size("number of a convolution's taps", self.taps, 1..=MOST_TAPS)?;
        let parts = match self.norm {
            SsmNorm::None => 1,
            SsmNorm::Parts { count, .. } => count.max(1),
        };
        if self.heads.is_multiple_of(self.groups) && self.inner().is_multiple_of(parts) {
            Ok(())
        } else {
            Err(format!(
                "{} SSM heads of {} can't be divided into {} groups",
                self.heads, self.head_size, self.groups
            ))
        }
    }

    pub fn load(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Box<dyn StateMixer>> {
        let (hidden, inner, heads) = (config.hidden_size, self.inner(), self.heads);
        let projected = inner + self.channels() + heads;
        let per_head = |part: Part| counted(parameters, part.at(index), heads);
        let convolution = Part::StateConvolution.at(index);
        let size = (self.channels(), self.taps);
        Ok(Box::new(SsmLayer {
            input: parameters.linear(Part::StateInput.at(index), hidden, projected)?,
            convolution: Convolution::load(parameters, convolution, size, Some(self.activation))?,
            heads: Heads {
                decays: rates(parameters, index, heads)?,
                skips: per_head(Part::StateSkip)?,
                biases: per_head(Part::StateStepBias)?,
                config: self.clone(),
            },
            norm: match self.norm {
                SsmNorm::None => Vec::new(),
                SsmNorm::Parts { .. } => counted(parameters, Part::StateNorm.at(index), inner)?,
            },
            output: parameters.linear(Part::StateOutput.at(index), inner, hidden)?,
        }))
    }
}

struct SsmLayer {
    /// The gate, what the convolution reads, and time steps.
    input: Linear,
    convolution: Convolution,
    heads: Heads,
    /// `[inner]`, or nothing where there is no norm.
    norm: Vec<f32>,
    output: Linear,
}

/// The scan of what the convolution gives and of time steps.
pub(super) struct Heads {
    pub decays: Vec<f32>,
    pub skips: Vec<f32>,
    pub biases: Vec<f32>,
    pub config: Ssm,
}

impl Scan for Heads {
    fn inputs(&self) -> usize {
        self.config.channels() + self.config.heads
    }

    fn lanes(&self) -> usize {
        self.config.inner() / self.lane_outputs()
    }

    fn lane_outputs(&self) -> usize {
        lane_columns(self.config.head_size)
    }

    /// Of a head's state, `[state size, head size]`, a lane has some columns.
    fn run(&self, isa: Isa, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let (columns, kept) = (self.lane_outputs(), self.config.state_size);
        let (inner, shared) = (self.config.inner(), self.config.groups * kept);
        let head = lane * columns / self.config.head_size;
        let group = head / (self.config.heads / self.config.groups);
        let columns = MatrixLane {
            keys: kept,
            columns,
            query: inner + shared + group * kept,
            key: inner + group * kept,
            value: lane * columns,
            rule: MatrixRule::Steps {
                time: inner + 2 * shared + head,
                bias: self.biases[head],
                bounds: self.config.steps,
                rate: self.decays[head],
                skip: self.skips[head],
            },
        };
        let width = self.inputs();
        scan::matrix(isa, &columns, ScanRows { inputs, width }, state, outputs);
    }
}

impl StateMixer for SsmLayer {
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
        let config = &self.heads.config;
        let (inner, channels) = (config.inner(), config.channels());
        let width = inner + channels + config.heads;
        let scaled = elementwise::scale(x, config.factors.input)?;
        let mut projected =
            values(&step.through(index, Part::StateInput, &self.input, &scaled)?)?;
        self.multiply(&mut projected);
        let parts = || projected.chunks_exact(width);
        let mut read = Vec::with_capacity(projected.len() / width * channels);
        parts().for_each(|row| read.extend_from_slice(&row[inner..inner + channels]));
        let convolved = past.scan((index, 0), &self.convolution, &read, step.batch)?;
        let mut scanned = Vec::with_capacity(projected.len() / width * self.heads.inputs());
        for (convolved, row) in convolved.chunks_exact(channels).zip(parts()) {
            scanned.extend_from_slice(convolved);
            scanned.extend_from_slice(&row[inner + channels..]);
        }
        let mut given = past.scan((index, 1), &self.heads, &scanned, step.batch)?;
        let isa = Isa::current()?;
        for_each_row(&mut given, inner, GATE_COST, |row, given| {
            self.gate_and_norm(isa, given, &projected[row * width..][..inner]);
        });
        let given = rows(given, inner, x)?;
        let output = step.through(index, Part::StateOutput, &self.output, &given)?;
        elementwise::scale(&output, config.factors.output)
    }
}

impl SsmLayer {
    /// By the factors of the parts of what is projected.
    fn multiply(&self, projected: &mut [f32]) {
        let config = &self.heads.config;
        if config.factors.projected == SsmFactors::NONE.projected {
            return;
        }
        let (inner, shared) = (config.inner(), config.groups * config.state_size);
        let widths = [inner, inner, shared, shared, config.heads];
        for mut row in projected.chunks_exact_mut(widths.iter().sum()) {
            for (width, factor) in widths.into_iter().zip(config.factors.projected) {
                let (part, rest) = row.split_at_mut(width);
                part.iter_mut().for_each(|x| *x *= factor);
                row = rest;
            }
        }
    }

    fn gate_and_norm(&self, isa: Isa, row: &mut [f32], gate: &[f32]) {
        let multiply = |row: &mut [f32]| scan::gate(isa, row, gate, Activation::Silu);
        let SsmNorm::Parts { count, before_gate } = self.heads.config.norm else {
            return multiply(row);
        };
        if !before_gate {
            multiply(row);
        }
        let (size, epsilon) = (row.len() / count.max(1), self.heads.config.epsilon);
        for (part, weights) in row.chunks_exact_mut(size).zip(self.norm.chunks_exact(size)) {
            scan::norm(isa, part, weights, epsilon);
        }
        if before_gate {
            multiply(row);
        }
    }
}
