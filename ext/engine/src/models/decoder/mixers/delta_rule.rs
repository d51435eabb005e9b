//! The gated delta rule: a head's state is a matrix from keys to values. With every token it fades, and what the
//! token's key finds in it moves towards the token's value.
//!
//! Tokens follow each other in one fixed order of operations, so that a prompt in parts leaves the same bits.

use candle_core::Tensor;

use super::convolution::Convolution;
use super::shared::{counted, lane_columns, rates, side_by_side, Chain, GATE_COST};
use super::short_conv::MOST_TAPS;
use super::{rows, values, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::{joined, sorted_rows, Module, RowsAt};
use crate::models::decoder::adapter::Slot;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::decoder::states::Scan;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::nn::{Inventory, Linear, Projection};
use crate::Result;
use formats::files::raw_config::{HEADS, WIDTH};
use kernels::cpu::scan::{self, Decay, MatrixLane, MatrixRule, ScanRows};
use kernels::cpu::{for_each_row, Isa};
use kernels::Activation;

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
            Convolution::size(self.channels(), self.taps),
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

/// A row has the query, key and value of each head, the first two divided by their lengths, then what states are
/// multiplied by, then how much of each value is written.
impl Scan for DeltaRule {
    fn inputs(&self) -> usize {
        self.channels() + self.value_heads * (self.factors() + 1)
    }

    fn lanes(&self) -> usize {
        self.value_width() / self.lane_outputs()
    }

    fn lane_outputs(&self) -> usize {
        lane_columns(self.value_size)
    }

    fn run(&self, isa: Isa, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let columns = self.lane_outputs();
        let head = lane * columns / self.value_size;
        let key_head = if self.in_turns {
            head % self.key_heads
        } else {
            head / (self.value_heads / self.key_heads)
        };
        let (channels, factors) = (self.channels(), self.factors());
        let columns = MatrixLane {
            keys: self.key_size,
            columns,
            query: key_head * self.key_size,
            key: self.key_width() + key_head * self.key_size,
            value: 2 * self.key_width() + lane * columns,
            rule: MatrixRule::Delta {
                fading: channels + head * factors,
                factors,
                written: channels + self.value_heads * factors + head,
            },
        };
        let width = self.inputs();
        scan::matrix(isa, &columns, ScanRows { inputs, width }, state, outputs);
    }
}

impl DeltaRule {
    /// Divides the queries and keys of rows by their lengths.
    fn normalize(&self, isa: Isa, rows: &mut [f32]) {
        let scale = (self.key_size as f32).sqrt().recip();
        for_each_row(rows, self.channels(), 1, |_, row| {
            let (queries, rest) = row.split_at_mut(self.key_width());
            for query in queries.chunks_exact_mut(self.key_size) {
                scan::unit(isa, query, EPSILON, scale);
            }
            for key in rest[..self.key_width()].chunks_exact_mut(self.key_size) {
                scan::unit(isa, key, EPSILON, 1.0);
            }
        });
    }
}

struct DeltaRuleLayer {
    config: DeltaRule,
    /// Queries, keys and values, in one matrix or in three, and what checkpoints call these.
    qkv: Projection,
    parts: &'static [Part],
    convolution: Convolution,
    fading: Chain,
    written: Linear,
    gate: Chain,
    /// How fast states fade, of every factor.
    rates: Vec<f32>,
    /// Added to what fading depends on.
    bias: Vec<f32>,
    norm: Vec<f32>,
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
        let activation = Some(self.activation);
        let convolution = if parameters.has(whole) {
            Convolution::load(parameters, whole, size, activation)?
        } else {
            let parts = [
                Part::StateQueryConvolution,
                Part::StateKeyConvolution,
                Part::StateValueConvolution,
            ];
            Convolution::join(parameters, &parts.map(at), size, activation)?
        };
        let rates = rates(parameters, index, heads)?;
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
            rates: rates
                .into_iter()
                .flat_map(|rate| std::iter::repeat_n(-rate, self.factors()))
                .collect(),
            bias: counted(parameters, at(Part::StateStepBias), heads * self.factors())?,
            norm: counted(parameters, at(Part::StateNorm), self.value_size)?,
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
        let qkv = values(&Tensor::cat(&self.qkv.parts(x, &updates)?, 1)?)?;
        let isa = Isa::current()?;
        let mut mixed = past.scan((index, 0), &self.convolution, &qkv, step.batch)?;
        rule.normalize(isa, &mut mixed);
        let fading = self.faded(isa, values(&self.fading.forward(index, x, step)?)?);
        let written = step.through(index, Part::StateWritten, &self.written, x)?;
        let mut written = values(&written)?;
        scan::sigmoid(isa, &mut written, rule.most_written);
        let widths = [
            rule.channels(),
            rule.value_heads * rule.factors(),
            rule.value_heads,
        ];
        let inputs = side_by_side([&mixed, &fading, &written], widths);
        let mut read = past.scan((index, 1), &rule, &inputs, step.batch)?;
        self.finish(
            isa,
            &values(&self.gate.forward(index, x, step)?)?,
            &mut read,
        );
        let read = rows(read, rule.value_width(), x)?;
        step.through(index, Part::StateOutput, &self.output, &read)
    }
}

impl DeltaRuleLayer {
    /// What states are multiplied by.
    fn faded(&self, isa: Isa, mut inputs: Vec<f32>) -> Vec<f32> {
        let rule = match self.config.fading {
            Fading::Heads | Fading::Elements => Decay::Softplus,
            Fading::Bounded { least } => Decay::Bounded { least },
        };
        for_each_row(&mut inputs, self.bias.len(), 2 * GATE_COST, |_, row| {
            scan::decays(isa, row, &self.bias, &self.rates, rule);
        });
        inputs
    }

    /// Normalizes what every head reads, and applies its gates.
    fn finish(&self, isa: Isa, gates: &[f32], read: &mut [f32]) {
        let size = self.config.value_size;
        let activation = if self.config.sigmoid_gate {
            Activation::Sigmoid
        } else {
            Activation::Silu
        };
        for_each_row(read, size, GATE_COST, |index, row| {
            scan::norm(isa, row, &self.norm, self.config.epsilon);
            scan::gate(isa, row, &gates[index * size..][..size], activation);
        });
    }
}
