//! RWKV 6 and 7: each head of a layer keeps a matrix that fades, and attention and MLP read a mixture of each token and
//! the one before it.
//!
//! In RWKV 6 the mixture depends on the tokens, and a matrix fades by rows of its keys. In RWKV 7 what is written also
//! takes back what the matrix holds under the same key, and the values of all layers are drawn to those of the first.

use candle_core::Tensor;

use super::rwkv::{load_mlp, Before, Share};
use super::shared::{counted, side_by_side, sigmoid, silu, GATE_COST};
use super::{rows, values, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::layer::Step;
use crate::models::decoder::states::Scan;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear};
use crate::{Error, Result};
use formats::files::raw_config::WIDTH;
use kernels::cpu::{for_each_row, Isa};

/// Of the norm of each head.
const EPSILON: f32 = 64e-5;
/// The least length that a key is divided by.
const LEAST_LENGTH: f32 = 1e-12;
/// The most that a matrix of RWKV 7 fades by, in powers of e: 1/√e.
const MOST_FADING: f32 = 0.606531;

/// A layer of RWKV 6 or 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RwkvHeads {
    pub hidden: usize,
    pub head_size: usize,
    /// The width of the MLP.
    pub inner: usize,
    pub generation: Generation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    Six,
    Seven,
}

impl RwkvHeads {
    /// How many numbers a sequence keeps in a layer: the last inputs of both parts, and matrices between them.
    pub fn sizes(&self) -> Vec<usize> {
        vec![self.hidden, self.hidden * self.head_size, self.hidden]
    }

    pub fn check(&self) -> Checked {
        check_size("size of a head", self.head_size, WIDTH)?;
        check_size("width of the MLP", self.inner, WIDTH)?;
        if self.hidden.is_multiple_of(self.head_size) {
            Ok(())
        } else {
            Err(format!(
                "the hidden size {} can't be divided into heads of {}",
                self.hidden, self.head_size
            ))
        }
    }

    pub fn load(&self, parameters: &Parameters<'_>, index: usize) -> Result<Box<dyn StateMixer>> {
        let hidden = self.hidden;
        let row = |part: Part| counted(parameters, part.at(index), hidden);
        let linear = |part: Part| -> Result<(Part, Linear)> {
            Ok((part, parameters.linear(part.at(index), hidden, hidden)?))
        };
        let generation = match self.generation {
            Generation::Six => Mechanism::Six(Six::load(parameters, index, hidden)?),
            Generation::Seven => Mechanism::Seven(Seven::load(parameters, index, hidden)?),
        };
        let fading = [Part::StateFadingDown, Part::StateFadingUp];
        Ok(Box::new(HeadLayer {
            config: *self,
            fading: Narrow::load(
                parameters,
                index,
                fading,
                Some(Part::StateDecay),
                (hidden, f32::tanh),
            )?,
            query: linear(Part::StateQuery)?,
            key: linear(Part::StateKey)?,
            value: linear(Part::StateValue)?,
            output: linear(Part::StateOutput)?,
            norm: row(Part::StateNorm)?,
            norm_bias: match parameters.bias(Part::StateNorm.at(index))? {
                Some(bias) if bias.dims() == [hidden] => values(&bias)?,
                _ => return Err(parameters.misfit(Part::StateNorm.at(index), &[hidden])),
            },
            generation,
        }))
    }

    pub fn load_mlp(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
    ) -> Result<Box<dyn StateMixer>> {
        let sizes = (self.hidden, self.inner);
        let gated = self.generation == Generation::Six;
        load_mlp(parameters, index, sizes, Share::Before, gated)
    }
}

/// Two matrices with a short row between them, of which a function goes on, and what is added behind.
struct Narrow {
    down: Linear,
    up: Linear,
    between: fn(f32) -> f32,
    bias: Vec<f32>,
}

impl Narrow {
    fn load(
        parameters: &Parameters<'_>,
        index: usize,
        [down, up]: [Part; 2],
        bias: Option<Part>,
        (hidden, between): (usize, fn(f32) -> f32),
    ) -> Result<Self> {
        let (down, up) = (down.at(index), up.at(index));
        let rank = parameters.outputs(down)?;
        Ok(Self {
            down: parameters.linear(down, hidden, rank)?,
            up: parameters.linear(up, rank, hidden)?,
            between,
            bias: match bias {
                Some(bias) => counted(parameters, bias.at(index), hidden)?,
                None => vec![0.0; hidden],
            },
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Vec<f32>> {
        let mut short = values(&self.down.forward(x)?)?;
        short.iter_mut().for_each(|x| *x = (self.between)(*x));
        let short = rows(short, self.down.outputs(), x)?;
        let mut given = values(&self.up.forward(&short)?)?;
        for row in given.chunks_exact_mut(self.bias.len()) {
            row.iter_mut()
                .zip(&self.bias)
                .for_each(|(x, bias)| *x += bias);
        }
        Ok(given)
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.down)?;
        inventory.add_linear(&self.up)
    }
}

/// Each token moved towards the one before it, by a share per element.
fn mixed(given: &[f32], before: &[f32], share: impl Fn(usize) -> f32) -> Vec<f32> {
    let pairs = given.iter().zip(before).enumerate();
    pairs
        .map(|(at, (x, before))| x + (before - x) * share(at))
        .collect()
}

struct HeadLayer {
    config: RwkvHeads,
    /// What matrices fade by.
    fading: Narrow,
    query: (Part, Linear),
    key: (Part, Linear),
    value: (Part, Linear),
    output: (Part, Linear),
    /// Of each head of what is read.
    norm: Vec<f32>,
    norm_bias: Vec<f32>,
    generation: Mechanism,
}

#[allow(clippy::large_enum_variant, reason = "one per layer")]
enum Mechanism {
    Six(Six),
    Seven(Seven),
}

/// What is mixed for what fades, keys, values, queries and gates.
const MIXTURES: usize = 5;

struct Six {
    /// The share of the token before in what shares are made of.
    first: Vec<f32>,
    /// Its share in each mixture, `[mixtures, hidden]`.
    shares: Vec<f32>,
    /// What is added to shares, made of a row that all mixtures have a part of.
    down: Linear,
    up: Vec<Linear>,
    /// What a token's own value counts more than later ones see it, by element of the key.
    bonus: Vec<f32>,
    gate: (Part, Linear),
}

impl Six {
    fn load(parameters: &Parameters<'_>, index: usize, hidden: usize) -> Result<Self> {
        let count = |part: Part, count| counted(parameters, part.at(index), count);
        let down = Part::StateMixDown.at(index);
        let short = parameters.outputs(down)?;
        let rank = short / MIXTURES;
        let up = parameters.shaped(Part::StateMixUp.at(index), &[MIXTURES, hidden, rank])?;
        let up = (0..MIXTURES).map(|at| {
            let own = up.narrow(0, at, 1)?.squeeze(0)?.contiguous()?;
            Linear::new(own, None)
        });
        let (part, gate) = (Part::StateGate, Part::StateGate.at(index));
        let apart = [
            Part::StateFadingMix,
            Part::StateKeyMix,
            Part::StateValueMix,
            Part::StateQueryMix,
            Part::StateGateMix,
        ];
        Ok(Self {
            first: count(Part::StateFirstMix, hidden)?,
            shares: if parameters.has(Part::StateMixes.at(index)) {
                count(Part::StateMixes, MIXTURES * hidden)?
            } else {
                // As older files have them.
                let rows = apart.into_iter().map(|part| count(part, hidden));
                rows.collect::<Result<Vec<_>>>()?.concat()
            },
            down: parameters.linear(down, hidden, MIXTURES * rank)?,
            up: up.collect::<Result<_>>()?,
            bonus: count(Part::StateStepBias, hidden)?,
            gate: (part, parameters.linear(gate, hidden, hidden)?),
        })
    }

    /// The five mixtures.
    fn mixtures(&self, x: &Tensor, given: &[f32], before: &[f32]) -> Result<Vec<Tensor>> {
        let hidden = self.first.len();
        let first = mixed(given, before, |at| self.first[at % hidden]);
        let mut short = values(&self.down.forward(&rows(first, hidden, x)?)?)?;
        short.iter_mut().for_each(|x| *x = x.tanh());
        let rank = self.down.outputs() / MIXTURES;
        let parts = self.up.iter().enumerate();
        let parts = parts.map(|(at, up)| {
            let own = short.chunks_exact(MIXTURES * rank);
            let own = own.flat_map(|row| &row[at * rank..(at + 1) * rank]);
            let added = values(&up.forward(&rows(own.copied().collect(), rank, x)?)?)?;
            let shares = &self.shares[at * hidden..(at + 1) * hidden];
            let mixture = mixed(given, before, |at| shares[at % hidden] + added[at]);
            rows(mixture, hidden, x)
        });
        parts.collect()
    }
}

struct Seven {
    /// The share of the token before in what queries, fading, keys, values, rates and gates are made of.
    shares: Vec<f32>,
    /// How much of what a key holds is replaced.
    rate: Narrow,
    /// How much the values of the first layer count; `None` in that one.
    first: Option<Narrow>,
    gate: Narrow,
    /// Factors of keys by which matrices are searched, and of how much rates change keys.
    key_scale: Vec<f32>,
    rate_scale: Vec<f32>,
    /// What of a token's own value passes by the matrices.
    skip: Vec<f32>,
}

impl Seven {
    const MIXTURES: usize = 6;

    fn load(parameters: &Parameters<'_>, index: usize, hidden: usize) -> Result<Self> {
        let count = |part: Part, count| counted(parameters, part.at(index), count);
        let narrow =
            |parts, bias, between| Narrow::load(parameters, index, parts, bias, (hidden, between));
        let same: fn(f32) -> f32 = |x| x;
        let first = [Part::StateFirstDown, Part::StateFirstUp];
        Ok(Self {
            shares: count(Part::StateMixes, Self::MIXTURES * hidden)?,
            rate: narrow(
                [Part::StateRateDown, Part::StateRateUp],
                Some(Part::StateRateBias),
                same,
            )?,
            first: match index {
                0 => None,
                _ => Some(narrow(first, Some(Part::StateFirstBias), same)?),
            },
            gate: narrow([Part::StateGateDown, Part::StateGateUp], None, sigmoid)?,
            key_scale: count(Part::StateKeyScale, hidden)?,
            rate_scale: count(Part::StateRateScale, hidden)?,
            skip: count(Part::StateSkip, hidden)?,
        })
    }

    fn mixture(&self, at: usize, x: &Tensor, given: &[f32], before: &[f32]) -> Result<Tensor> {
        let hidden = self.skip.len();
        let shares = &self.shares[at * hidden..(at + 1) * hidden];
        rows(mixed(given, before, |at| shares[at % hidden]), hidden, x)
    }
}

impl HeadLayer {
    fn through(
        &self,
        index: usize,
        (part, linear): &(Part, Linear),
        x: &Tensor,
        step: &Step<'_>,
    ) -> Result<Vec<f32>> {
        values(&step.through(index, *part, linear, x)?)
    }

    /// Normalizes each head of a row.
    fn normalize(&self, row: &mut [f32]) {
        let size = self.config.head_size;
        let weights = self
            .norm
            .chunks_exact(size)
            .zip(self.norm_bias.chunks_exact(size));
        for (head, (weights, biases)) in row.chunks_exact_mut(size).zip(weights) {
            let mean = head.iter().sum::<f32>() / size as f32;
            let squares: f32 = head.iter().map(|x| (x - mean) * (x - mean)).sum();
            let scale = (squares / size as f32 + EPSILON).sqrt().recip();
            for ((x, weight), bias) in head.iter_mut().zip(weights).zip(biases) {
                *x = (*x - mean) * scale * weight + bias;
            }
        }
    }

    /// What RWKV 6 reads of its matrices, gated.
    fn six(
        &self,
        six: &Six,
        index: usize,
        (x, given, before): (&Tensor, &[f32], &[f32]),
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Vec<f32>> {
        let hidden = self.config.hidden;
        let mixtures = six.mixtures(x, given, before)?;
        let [fading, key, value, query, gate] = &mixtures[..] else {
            return Err(Error::Internal("RWKV 6 has five mixtures".into()));
        };
        let mut kept = self.fading.forward(fading)?;
        kept.iter_mut().for_each(|x| *x = (-x.exp()).exp());
        let query = self.through(index, &self.query, query, step)?;
        let key = self.through(index, &self.key, key, step)?;
        let value = self.through(index, &self.value, value, step)?;
        let gates = self.through(index, &six.gate, gate, step)?;
        let scan = SixScan {
            config: self.config,
            bonus: &six.bonus,
        };
        let inputs = side_by_side([&query, &key, &value, &kept], [hidden; 4]);
        let mut read = past.scan((index, 1), &scan, &inputs, step.batch)?;
        for_each_row(&mut read, hidden, GATE_COST, |at, row| {
            self.normalize(row);
            let gates = &gates[at * hidden..(at + 1) * hidden];
            row.iter_mut()
                .zip(gates)
                .for_each(|(x, gate)| *x *= silu(*gate));
        });
        Ok(read)
    }

    /// What RWKV 7 reads of its matrices, gated.
    fn seven(
        &self,
        seven: &Seven,
        index: usize,
        (x, given, before): (&Tensor, &[f32], &[f32]),
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Vec<f32>> {
        let RwkvHeads {
            hidden, head_size, ..
        } = self.config;
        let mixture = |at: usize| seven.mixture(at, x, given, before);
        let query = self.through(index, &self.query, &mixture(0)?, step)?;
        let mut kept = self.fading.forward(&mixture(1)?)?;
        kept.iter_mut()
            .for_each(|x| *x = (-MOST_FADING * sigmoid(*x)).exp());
        let mut key = self.through(index, &self.key, &mixture(2)?, step)?;
        let of_values = mixture(3)?;
        let mut value = self.through(index, &self.value, &of_values, step)?;
        match &seven.first {
            None => past.first_values().clone_from(&value),
            Some(share) => {
                let first = past.first_values();
                if first.len() != value.len() {
                    return Err(Error::Internal("the first layer has left no values".into()));
                }
                let shares = share.forward(&of_values)?;
                let elements = value.iter_mut().zip(first.iter()).zip(shares);
                elements.for_each(|((x, first), share)| *x += (first - *x) * sigmoid(share));
            }
        }
        let mut rates = seven.rate.forward(&mixture(4)?)?;
        rates.iter_mut().for_each(|x| *x = sigmoid(*x));
        let gates = seven.gate.forward(&mixture(5)?)?;
        let mut searched = key.clone();
        for row in searched.chunks_exact_mut(hidden) {
            row.iter_mut()
                .zip(&seven.key_scale)
                .for_each(|(x, scale)| *x *= scale);
            for head in row.chunks_exact_mut(head_size) {
                let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
                head.iter_mut().for_each(|x| *x /= length.max(LEAST_LENGTH));
            }
        }
        for (at, (key, rate)) in key.iter_mut().zip(&rates).enumerate() {
            let scaled = *key * seven.rate_scale[at % hidden];
            *key += rate * scaled - scaled;
        }
        let parts: [&[f32]; 6] = [&query, &kept, &key, &value, &searched, &rates];
        let inputs = side_by_side(parts, [hidden; 6]);
        let scan = SevenScan(self.config);
        let mut read = past.scan((index, 1), &scan, &inputs, step.batch)?;
        for_each_row(&mut read, hidden, GATE_COST, |at, row| {
            self.normalize(row);
            let own = |all: &[f32], first: usize| all[at * hidden + first..][..head_size].to_vec();
            for (head, out) in row.chunks_exact_mut(head_size).enumerate() {
                let first = head * head_size;
                let (query, key) = (own(&query, first), own(&key, first));
                let products = query.iter().zip(&key).zip(&seven.skip[first..]);
                let share: f32 = products
                    .map(|((query, key), skip)| key * query * skip)
                    .sum();
                let (value, gates) = (own(&value, first), own(&gates, first));
                for ((x, value), gate) in out.iter_mut().zip(value).zip(gates) {
                    *x = (*x + value * share) * gate;
                }
            }
        });
        Ok(read)
    }
}

impl StateMixer for HeadLayer {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for (_, linear) in [&self.query, &self.key, &self.value, &self.output] {
            inventory.add_linear(linear)?;
        }
        self.fading.list(inventory)?;
        match &self.generation {
            Mechanism::Six(six) => {
                inventory.add_linear(&six.gate.1)?;
                inventory.add_linear(&six.down)?;
                let mut up = six.up.iter();
                up.try_for_each(|linear| inventory.add_linear(linear))
            }
            Mechanism::Seven(seven) => {
                seven.rate.list(inventory)?;
                seven.gate.list(inventory)?;
                let mut first = seven.first.iter();
                first.try_for_each(|narrow| narrow.list(inventory))
            }
        }
    }

    fn modules(&self) -> Vec<Module> {
        let all = [&self.query, &self.key, &self.value, &self.output];
        let all = all.map(|(part, linear)| Module::single(*part, 0, linear));
        all.into_iter().collect()
    }

    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let hidden = self.config.hidden;
        let given = values(x)?;
        let before = past.scan((index, 0), &Before(hidden), &given, step.batch)?;
        let parts = (x, &given[..], &before[..]);
        let read = match &self.generation {
            Mechanism::Six(six) => self.six(six, index, parts, past, step)?,
            Mechanism::Seven(seven) => self.seven(seven, index, parts, past, step)?,
        };
        let (part, output) = &self.output;
        step.through(index, *part, output, &rows(read, hidden, x)?)
    }
}

/// A row has queries, keys, values and what remains of each row of a matrix. The state of a lane is `[key, value]`.
struct SixScan<'a> {
    config: RwkvHeads,
    bonus: &'a [f32],
}

impl Scan for SixScan<'_> {
    fn inputs(&self) -> usize {
        4 * self.config.hidden
    }

    fn lanes(&self) -> usize {
        self.config.hidden / self.config.head_size
    }

    fn lane_outputs(&self) -> usize {
        self.config.head_size
    }

    fn run(&self, _: Isa, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let RwkvHeads {
            hidden,
            head_size: size,
            ..
        } = self.config;
        let own = lane * size..(lane + 1) * size;
        let bonus = &self.bonus[own.clone()];
        let rows = inputs.chunks_exact(4 * hidden);
        for (row, out) in rows.zip(outputs.chunks_exact_mut(size)) {
            let part = |at: usize| &row[at * hidden..][own.clone()];
            let (query, key, value, kept) = (part(0), part(1), part(2), part(3));
            out.fill(0.0);
            for (at, state) in state.chunks_exact_mut(size).enumerate() {
                let (query, key) = (query[at], key[at]);
                for ((out, state), value) in out.iter_mut().zip(state).zip(value) {
                    let written = key * value;
                    *out += query * (bonus[at] * written + *state);
                    *state = *state * kept[at] + written;
                }
            }
        }
    }
}

/// A row has queries, what remains of each column, keys, values, the keys that are searched for, and how much of what
/// they hold is replaced. The state of a lane is `[value, key]`.
struct SevenScan(RwkvHeads);

impl Scan for SevenScan {
    fn inputs(&self) -> usize {
        6 * self.0.hidden
    }

    fn lanes(&self) -> usize {
        self.0.hidden / self.0.head_size
    }

    fn lane_outputs(&self) -> usize {
        self.0.head_size
    }

    fn run(&self, _: Isa, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let RwkvHeads {
            hidden,
            head_size: size,
            ..
        } = self.0;
        let own = lane * size..(lane + 1) * size;
        let rows = inputs.chunks_exact(6 * hidden);
        for (row, out) in rows.zip(outputs.chunks_exact_mut(size)) {
            let part = |at: usize| &row[at * hidden..][own.clone()];
            let (query, kept, key, value) = (part(0), part(1), part(2), part(3));
            let (searched, rates) = (part(4), part(5));
            for ((state, out), value) in state.chunks_exact_mut(size).zip(out).zip(value) {
                let found = state.iter().zip(searched);
                let found: f32 = found.map(|(state, key)| state * -key).sum();
                *out = 0.0;
                for (at, state) in state.iter_mut().enumerate() {
                    let replaced = found * searched[at] * rates[at];
                    *state = *state * kept[at] + value * key[at] + replaced;
                    *out += *state * query[at];
                }
            }
        }
    }
}
