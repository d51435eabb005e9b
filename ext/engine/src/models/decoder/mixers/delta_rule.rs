//! The gated delta rule: a head's state is a matrix from keys to values. With every token it fades, and what the
//! token's key finds in it moves towards the token's value.
//!
//! Tokens follow each other in one fixed order of operations, so that a prompt in parts leaves the same bits.

use candle_core::Tensor;

use super::shared::{
    convolution, convolution_size, counted, joined_convolution, rates, row, Chain,
};
use super::short_conv::MOST_TAPS;
use super::{beside, floats, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::{joined, sorted_rows, Module, RowsAt};
use crate::models::decoder::adapter::Slot;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::nn::{elementwise, Inventory, Linear, Projection};
use crate::Result;
use formats::files::raw_config::{HEADS, WIDTH};
use kernels::scan::{
    unit_heads, Decay, Decays, MatrixHead, MatrixRule, MatrixShape, Scan, UnitHeads,
};
use kernels::{Activation, GateOrder, GatedNorm};

/// Of the lengths that queries and keys are divided by.
const EPSILON: f32 = 1e-6;

/// A layer with the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaRule {
    /// Of queries and keys; each serves several heads of values.
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_size: usize,
    pub value_size: usize,
    /// How many tokens the convolution of queries, keys and values sees.
    pub taps: usize,
    /// Of what the convolution gives.
    pub activation: Activation,
    /// Heads of values take turns with those of keys, instead of sharing one with their neighbours (GGUF).
    pub in_turns: bool,
    pub fading: Fading,
    /// How much of a value is written is between 0 and this.
    pub most_written: f32,
    /// What is read is multiplied by the sigmoid of a gate, or by x · sigmoid(x).
    pub sigmoid_gate: bool,
    /// Of the norm before the gate.
    pub epsilon: f32,
}

/// What a state is multiplied by, given a projection x of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fading {
    /// exp(−a · ln(1 + eˣ)), one for each head (Qwen 3 Next).
    Heads,
    /// The same for each element of a key (Kimi Linear).
    Elements,
    /// exp(least · sigmoid(a · x)) for each element of a key (Bailing).
    Bounded { least: f32 },
}

impl DeltaRule {
    fn key_width(&self) -> usize {
        self.key_heads * self.key_size
    }

    fn value_width(&self) -> usize {
        self.value_heads * self.value_size
    }

    /// Of queries, keys and values side by side.
    fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// How many factors a head's state has.
    fn factors(&self) -> usize {
        match self.fading {
            Fading::Heads => 1,
            Fading::Elements | Fading::Bounded { .. } => self.key_size,
        }
    }

    /// How many numbers a sequence keeps in a layer: of the convolution, and of all heads.
    pub fn sizes(&self) -> Vec<usize> {
        let matrix = self.key_size * self.value_size;
        vec![
            convolution_size(self.channels(), self.taps),
            self.value_heads * matrix,
        ]
    }

    pub fn check(&self) -> Checked {
        check_size("number of heads with keys", self.key_heads, HEADS)?;
        check_size("number of heads with values", self.value_heads, HEADS)?;
        check_size("size of keys", self.key_size, WIDTH)?;
        check_size("size of values", self.value_size, WIDTH)?;
        check_size("width of a convolution", self.taps, 1..=MOST_TAPS)?;
        check_size("width of keys", self.key_width(), WIDTH)?;
        check_size("width of values", self.value_width(), WIDTH)?;
        if self.value_heads.is_multiple_of(self.key_heads) {
            Ok(())
        } else {
            Err(format!(
                "{} heads with values can't share {} heads with keys",
                self.value_heads, self.key_heads
            ))
        }
    }
}

impl DeltaRule {
    /// A row has the query, key and value of each head, the first two divided by their lengths, then what states are
    /// multiplied by, then how much of each value is written.
    fn scan(&self, parameters: &Parameters<'_>) -> Result<Scan> {
        let (channels, factors) = (self.channels(), self.factors());
        let head = |head: usize| {
            let key_head = if self.in_turns {
                head % self.key_heads
            } else {
                head / (self.value_heads / self.key_heads)
            };
            MatrixHead {
                query: key_head * self.key_size,
                key: self.key_width() + key_head * self.key_size,
                value: 2 * self.key_width() + head * self.value_size,
                rule: MatrixRule::Delta {
                    fading: channels + head * factors,
                    factors,
                    written: channels + self.value_heads * factors + head,
                },
            }
        };
        let shape = MatrixShape {
            inputs: channels + self.value_heads * (factors + 1),
            keys: self.key_size,
            size: self.value_size,
        };
        let heads = (0..self.value_heads).map(head).collect();
        Scan::matrix(shape, heads, parameters.device())
    }

    /// What states are multiplied by.
    fn decays(&self, parameters: &Parameters<'_>, index: usize) -> Result<Decays> {
        let rates = rates(parameters, index, self.value_heads)?.into_iter();
        let rates = rates.flat_map(|rate| std::iter::repeat_n(-rate, self.factors()));
        let place = Part::StateStepBias.at(index);
        let biases = counted(parameters, place, self.value_heads * self.factors())?;
        let rule = match self.fading {
            Fading::Heads | Fading::Elements => Decay::Softplus,
            Fading::Bounded { least } => Decay::Bounded { least },
        };
        Decays::new(biases, rates.collect(), rule, parameters.device())
    }

    /// Queries and keys, which are divided by their lengths.
    fn unit_heads(&self) -> UnitHeads {
        UnitHeads {
            size: self.key_size,
            counts: [self.key_heads; 2],
            factors: [(self.key_size as f32).sqrt().recip(), 1.0],
            epsilon: EPSILON,
        }
    }
}

struct DeltaRuleLayer {
    config: DeltaRule,
    /// Queries, keys and values, in one matrix or in three, and what checkpoints call these.
    qkv: Projection,
    parts: &'static [Part],
    convolution: Scan,
    heads: Scan,
    fading: Chain,
    decays: Decays,
    written: Linear,
    gate: Chain,
    norm: GatedNorm,
    output: Linear,
}

impl DeltaRule {
    pub fn load(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Box<dyn StateMixer>> {
        let (hidden, width, heads) = (config.hidden_size, self.value_width(), self.value_heads);
        let at = |part: Part| part.at(index);
        let (qkv, gate) = if parameters.has(at(Part::StateQkvGate)) {
            self.grouped(parameters, index, hidden)?
        } else {
            let gate = [Part::StateGate, Part::StateGateDown, Part::StateGateUp];
            (
                self.qkv(parameters, index, hidden)?,
                Chain::load(parameters, gate.map(at), hidden, width)?,
            )
        };
        let (written, fading) = if parameters.has(at(Part::StateWrittenFading)) {
            self.grouped_scalars(parameters, index, hidden)?
        } else {
            let fading = [
                Part::StateFading,
                Part::StateFadingDown,
                Part::StateFadingUp,
            ];
            (
                parameters.exact_linear(at(Part::StateWritten), hidden, heads)?,
                Chain::load(parameters, fading.map(at), hidden, heads * self.factors())?,
            )
        };
        let (whole, size) = (at(Part::StateConvolution), (self.channels(), self.taps));
        let activation = self.activation;
        let convolution = if parameters.has(whole) {
            convolution(parameters, whole, size, activation)?
        } else {
            let parts = [
                Part::StateQueryConvolution,
                Part::StateKeyConvolution,
                Part::StateValueConvolution,
            ];
            joined_convolution(parameters, &parts.map(at), size, activation)?
        };
        Ok(Box::new(DeltaRuleLayer {
            config: *self,
            parts: match qkv.matrices().len() {
                1 => &[Part::StateQkv],
                _ => &[Part::StateQuery, Part::StateKey, Part::StateValue],
            },
            qkv,
            convolution,
            fading,
            written,
            gate,
            heads: self.scan(parameters)?,
            decays: self.decays(parameters, index)?,
            norm: GatedNorm::new(
                &row(parameters, at(Part::StateNorm), self.value_size)?,
                self.value_size,
                self.epsilon,
                if self.sigmoid_gate {
                    Activation::Sigmoid
                } else {
                    Activation::Silu
                },
                GateOrder::NormFirst,
            )?,
            output: parameters.linear(at(Part::StateOutput), width, hidden)?,
        }))
    }

    fn qkv(&self, parameters: &Parameters<'_>, index: usize, hidden: usize) -> Result<Projection> {
        let fused = Part::StateQkv.at(index);
        if parameters.has(fused) {
            let matrix = parameters.linear(fused, hidden, self.channels())?;
            return Projection::split(vec![matrix]);
        }
        let parts = [
            (Part::StateQuery.at(index), self.key_width()),
            (Part::StateKey.at(index), self.key_width()),
            (Part::StateValue.at(index), self.value_width()),
        ];
        parameters.split(&parts, hidden)
    }

    /// Qwen 3 Next sorts the rows of its matrices by heads of keys first.
    fn grouped(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        hidden: usize,
    ) -> Result<(Projection, Chain)> {
        let shared = self.value_heads / self.key_heads;
        let (key, value) = (self.key_size, shared * self.value_size);
        let place = Part::StateQkvGate.at(index);
        let mut parts = self.sorted(parameters, place, &[key, key, value, value], hidden)?;
        let gate = parts.split_off(3);
        let linear = |parts: &[Tensor]| parameters.assemble(Tensor::cat(parts, 0)?, None);
        Ok((
            Projection::split(vec![linear(&parts)?])?,
            Chain::one(Part::StateGate, linear(&gate)?),
        ))
    }

    /// The same of how much is written, and of what states fade by.
    fn grouped_scalars(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        hidden: usize,
    ) -> Result<(Linear, Chain)> {
        let shared = self.value_heads / self.key_heads;
        let place = Part::StateWrittenFading.at(index);
        let parts = self.sorted(parameters, place, &[shared, shared], hidden)?;
        let linear = |part: &Tensor| Linear::new(part.clone(), None);
        Ok((
            linear(&parts[0])?,
            Chain::one(Part::StateFading, linear(&parts[1])?),
        ))
    }

    /// The parts of a matrix that has parts of these sizes for every head with keys.
    fn sorted(
        &self,
        parameters: &Parameters<'_>,
        place: Place,
        sizes: &[usize],
        hidden: usize,
    ) -> Result<Vec<Tensor>> {
        let group: usize = sizes.iter().sum();
        let matrix = parameters.matrix(place, hidden, self.key_heads * group)?;
        let matrix = matrix.reshape((self.key_heads, group, hidden))?;
        let mut start = 0;
        let parts = sizes.iter().map(|&size| -> Result<Tensor> {
            let part = matrix.narrow(1, start, size)?.contiguous()?;
            start += size;
            Ok(part.reshape((self.key_heads * size, hidden))?)
        });
        parts.collect()
    }
}

impl StateMixer for DeltaRuleLayer {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_projection(&self.qkv)?;
        self.fading.list(inventory)?;
        self.gate.list(inventory)?;
        inventory.add_linear(&self.written)?;
        inventory.add_linear(&self.output)
    }

    /// Checkpoints may have the gate beside queries, keys and values, and what is written beside what fades, both by heads
    /// with keys.
    fn modules(&self) -> Vec<Module> {
        let rule = self.config;
        let qkv = self.qkv.matrices().iter().zip(self.parts);
        let qkv = qkv.map(|(linear, part)| Module::single(*part, 0, linear));
        let mut all: Vec<Module> = qkv
            .chain(self.gate.modules())
            .chain(self.fading.modules())
            .collect();
        all.push(Module::single(Part::StateWritten, 0, &self.written));
        all.push(Module::single(Part::StateOutput, 0, &self.output));
        let grouped = |part: Part, slots: [(Part, usize); 2], sizes: &[usize]| {
            let places = slots.map(|(part, outputs)| {
                let at = RowsAt {
                    slot: Slot::Part(part, 0),
                    outputs,
                    first: 0,
                };
                (at, outputs)
            });
            let order = sorted_rows(rule.key_heads, sizes);
            joined(part, self.written.inputs(), &places, Some(order))
        };
        if rule.fading == Fading::Heads && self.parts.len() == 1 {
            let shared = rule.value_heads / rule.key_heads;
            let (key, value) = (rule.key_size, shared * rule.value_size);
            let large = [
                (Part::StateQkv, rule.channels()),
                (Part::StateGate, rule.value_width()),
            ];
            let small = [Part::StateWritten, Part::StateFading];
            let small = small.map(|part| (part, rule.value_heads));
            let sizes = [key, key, value, value];
            all.push(grouped(Part::StateQkvGate, large, &sizes));
            all.push(grouped(Part::StateWrittenFading, small, &[shared, shared]));
        }
        all
    }

    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let rule = self.config;
        let updates = step.adapters.layer(index);
        let parts = self.parts.iter();
        let updates: Vec<_> = parts.map(|part| updates.part(*part)).collect();
        let qkv = self.qkv.parts(x, &updates)?;
        let qkv = beside(&qkv.iter().collect::<Vec<_>>())?;
        let mixed = past.scan((index, 0), &self.convolution, &qkv, step.batch)?;
        let mixed = unit_heads(&mixed, rule.unit_heads())?;
        let fading = self.decays.forward(&self.fading.forward(index, x, step)?)?;
        let written = step.through(index, Part::StateWritten, &self.written, x)?;
        let written = kernels::activate(&floats(&written)?, Activation::Sigmoid)?;
        let written = elementwise::scale(&written, rule.most_written)?;
        let inputs = beside(&[&mixed, &fading, &written])?;
        let read = past.scan((index, 1), &self.heads, &inputs, step.batch)?;
        let gates = self.gate.forward(index, x, step)?;
        let read = self.norm.forward(&read, &gates, x.dtype())?;
        step.through(index, Part::StateOutput, &self.output, &read)
    }
}
