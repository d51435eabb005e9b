//! Selective state spaces whose heads decay as a whole (Mamba-2).

use candle_core::Tensor;

use super::convolution::Convolution;
use super::shared::{counted, rates, softplus};
use super::short_conv::MOST_TAPS;
use super::{recurrence, rows, silu, values, StateMixer};
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
    fn inner(&self) -> usize {
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
struct Heads {
    decays: Vec<f32>,
    skips: Vec<f32>,
    biases: Vec<f32>,
    config: Ssm,
}

impl Scan for Heads {
    fn inputs(&self) -> usize {
        self.config.channels() + self.config.heads
    }

    fn lanes(&self) -> usize {
        self.config.heads
    }

    fn lane_outputs(&self) -> usize {
        self.config.head_size
    }

    /// The state is `[head size, state size]`.
    fn run(&self, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let (size, kept) = (self.config.head_size, self.config.state_size);
        let (inner, shared) = (self.config.inner(), self.config.groups * kept);
        let group = lane / (self.config.heads / self.config.groups);
        let (least, most) = self.config.steps;
        let rows = inputs.chunks_exact(self.inputs());
        for (row, out) in rows.zip(outputs.chunks_exact_mut(size)) {
            let x = &row[lane * size..(lane + 1) * size];
            let into = &row[inner + group * kept..][..kept];
            let from = &row[inner + shared + group * kept..][..kept];
            let step = softplus(row[inner + 2 * shared + lane] + self.biases[lane]);
            let step = step.max(least).min(most);
            let decay = (step * self.decays[lane]).exp();
            for ((state, &x), out) in state.chunks_exact_mut(kept).zip(x).zip(out) {
                *out = recurrence(state, decay, step * x, into, from) + self.skips[lane] * x;
            }
        }
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
        let read = parts().flat_map(|row| &row[inner..inner + channels]);
        let read: Vec<f32> = read.copied().collect();
        let convolved = past.scan((index, 0), &self.convolution, &read, step.batch)?;
        let mut scanned = Vec::with_capacity(projected.len() / width * self.heads.inputs());
        for (convolved, row) in convolved.chunks_exact(channels).zip(parts()) {
            scanned.extend_from_slice(convolved);
            scanned.extend_from_slice(&row[inner + channels..]);
        }
        let mut given = past.scan((index, 1), &self.heads, &scanned, step.batch)?;
        for (given, row) in given.chunks_exact_mut(inner).zip(parts()) {
            self.gate_and_norm(given, &row[..inner]);
        }
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

    fn gate_and_norm(&self, row: &mut [f32], gate: &[f32]) {
        let multiply = |row: &mut [f32]| {
            for (x, &gate) in row.iter_mut().zip(gate) {
                *x *= silu(gate);
            }
        };
        let SsmNorm::Parts { count, before_gate } = self.heads.config.norm else {
            return multiply(row);
        };
        if !before_gate {
            multiply(row);
        }
        let (size, epsilon) = (row.len() / count.max(1), self.heads.config.epsilon);
        for (part, weights) in row.chunks_exact_mut(size).zip(self.norm.chunks_exact(size)) {
            let squares: f32 = part.iter().map(|x| x * x).sum();
            let scale = (squares / size as f32 + epsilon).sqrt().recip();
            for (x, weight) in part.iter_mut().zip(weights) {
                *x *= scale * weight;
            }
        }
        if before_gate {
            multiply(row);
        }
    }
}
