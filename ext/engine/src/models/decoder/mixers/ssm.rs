//! Selective state spaces whose heads decay as a whole (Mamba-2).

use candle_core::Tensor;

use super::shared::{convolution, convolution_size, counted, on_device, rates, row};
use super::short_conv::MOST_TAPS;
use super::{as_type, beside, floats, multiply_columns, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear};
use crate::Result;
use formats::files::raw_config::{HEADS, WIDTH};
use kernels::scan::{MatrixHead, MatrixRule, MatrixShape, Scan};
use kernels::{Activation, GateOrder, GatedNorm};

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
            convolution_size(self.channels(), self.taps),
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
        let at = Part::StateConvolution.at(index);
        let size = (self.channels(), self.taps);
        let biases = counted(parameters, Part::StateStepBias.at(index), heads)?;
        Ok(Box::new(SsmLayer {
            input: parameters.linear(Part::StateInput.at(index), hidden, projected)?,
            factors: if self.factors.projected == SsmFactors::NONE.projected {
                None
            } else {
                Some(on_device(self.columns_factors(), parameters)?)
            },
            convolution: convolution(parameters, at, size, self.activation)?,
            heads: self.scan(parameters, index, &biases)?,
            norm: match self.norm {
                SsmNorm::None => None,
                SsmNorm::Parts { count, before_gate } => Some(GatedNorm::new(
                    &row(parameters, Part::StateNorm.at(index), inner)?,
                    inner / count.max(1),
                    self.epsilon,
                    Activation::Silu,
                    if before_gate {
                        GateOrder::NormFirst
                    } else {
                        GateOrder::GateFirst
                    },
                )?),
            },
            output: parameters.linear(Part::StateOutput.at(index), inner, hidden)?,
            config: self.clone(),
        }))
    }

    /// What each column that is projected is multiplied by.
    fn columns_factors(&self) -> Vec<f32> {
        let (inner, shared) = (self.inner(), self.groups * self.state_size);
        let widths = [inner, inner, shared, shared, self.heads].into_iter();
        let parts = widths.zip(self.factors.projected);
        parts
            .flat_map(|(width, factor)| std::iter::repeat_n(factor, width))
            .collect()
    }

    /// The scan of what the convolution gives, with inputs and outputs of the state, and of time steps.
    pub(super) fn scan(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        biases: &[f32],
    ) -> Result<Scan> {
        let (inner, kept) = (self.inner(), self.state_size);
        let shared = self.groups * kept;
        let rates = rates(parameters, index, self.heads)?;
        let skips = counted(parameters, Part::StateSkip.at(index), self.heads)?;
        let head = |head: usize| {
            let group = head / (self.heads / self.groups);
            MatrixHead {
                query: inner + shared + group * kept,
                key: inner + group * kept,
                value: head * self.head_size,
                rule: MatrixRule::Steps {
                    time: inner + 2 * shared + head,
                    bias: biases[head],
                    bounds: self.steps,
                    rate: rates[head],
                    skip: skips[head],
                },
            }
        };
        let shape = MatrixShape {
            inputs: inner + 2 * shared + self.heads,
            keys: kept,
            size: self.head_size,
        };
        Scan::matrix(
            shape,
            (0..self.heads).map(head).collect(),
            parameters.device(),
        )
    }
}

struct SsmLayer {
    config: Ssm,
    /// The gate, what the convolution reads, and time steps.
    input: Linear,
    /// What these are multiplied by.
    factors: Option<Tensor>,
    convolution: Scan,
    heads: Scan,
    norm: Option<GatedNorm>,
    output: Linear,
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
        let config = &self.config;
        let (inner, channels) = (config.inner(), config.channels());
        let scaled = elementwise::scale(x, config.factors.input)?;
        let projected = step.through(index, Part::StateInput, &self.input, &scaled)?;
        let projected = match &self.factors {
            Some(factors) => multiply_columns(&floats(&projected)?, factors)?,
            None => projected,
        };
        let read = beside(&[&projected.narrow(1, inner, channels)?])?;
        let convolved = past.scan((index, 0), &self.convolution, &read, step.batch)?;
        let steps = projected.narrow(1, inner + channels, config.heads)?;
        let scanned = beside(&[&convolved, &steps])?;
        let given = past.scan((index, 1), &self.heads, &scanned, step.batch)?;
        let gate = projected.narrow(1, 0, inner)?;
        let given = match &self.norm {
            Some(norm) => norm.forward(&given, &gate, x.dtype())?,
            None => as_type(
                &kernels::gated(&floats(&gate)?, &given, Activation::Silu)?,
                x.dtype(),
            )?,
        };
        let output = step.through(index, Part::StateOutput, &self.output, &given)?;
        elementwise::scale(&output, config.factors.output)
    }
}
