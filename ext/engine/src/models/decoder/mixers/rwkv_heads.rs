//! RWKV 6 and 7: each head of a layer keeps a matrix that fades, and attention and MLP read a mixture of each token and
//! the one before it.
//!
//! In RWKV 6 the mixture depends on the tokens, and a matrix fades by rows of its keys. In RWKV 7 what is written also
//! takes back what the matrix holds under the same key, and the values of all layers are drawn to those of the first.

use candle_core::Tensor;

use super::rwkv::{load_mlp, Share, Shifts};
use super::shared::{counted, on_device, row};
use super::{beside, columns, floats, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::WIDTH;
use kernels::scan::{Decay, Decays, MatrixHead, MatrixRule, MatrixShape, Scan};
use kernels::tensor::reduce::{reduce, Reduction};
use kernels::Activation;

/// Of the norm of each head.
const EPSILON: f32 = 64e-5;
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
        let linear = |part: Part| -> Result<(Part, Linear)> {
            Ok((part, parameters.linear(part.at(index), hidden, hidden)?))
        };
        let (generation, decay) = match self.generation {
            Generation::Six => {
                let six = Six::load(parameters, index, hidden)?;
                (Mechanism::Six(six), Decay::Exponential)
            }
            Generation::Seven => {
                let seven = Seven::load(parameters, index, hidden)?;
                let least = -MOST_FADING;
                (Mechanism::Seven(seven), Decay::Bounded { least })
            }
        };
        let fading = [Part::StateFadingDown, Part::StateFadingUp];
        let biases = counted(parameters, Part::StateDecay.at(index), hidden)?;
        let norm = Part::StateNorm.at(index);
        Ok(Box::new(HeadLayer {
            config: *self,
            before: Scan::before(hidden, parameters.device())?,
            heads: self.scan(parameters)?,
            fading: Narrow::load(parameters, index, fading, None, (hidden, Activation::Tanh))?,
            decays: Decays::new(biases, vec![1.0; hidden], decay, parameters.device())?,
            query: linear(Part::StateQuery)?,
            key: linear(Part::StateKey)?,
            value: linear(Part::StateValue)?,
            output: linear(Part::StateOutput)?,
            ones: on_device(vec![1.0; self.head_size], parameters)?,
            norm: row(parameters, norm, hidden)?,
            norm_bias: match parameters.bias(norm)? {
                Some(bias) if bias.dims() == [hidden] => floats(&bias)?,
                _ => return Err(parameters.misfit(norm, &[hidden])),
            },
            generation,
        }))
    }

    /// A row has queries, keys, values and what remains of each row of a matrix; in RWKV 7 also the keys that are searched
    /// for, and how much of what they hold is replaced.
    fn scan(&self, parameters: &Parameters<'_>) -> Result<Scan> {
        let (hidden, size) = (self.hidden, self.head_size);
        let head = |head: usize| {
            let part = |at: usize| at * hidden + head * size;
            MatrixHead {
                query: part(0),
                key: part(1),
                value: part(2),
                rule: match self.generation {
                    Generation::Six => MatrixRule::Earlier { kept: part(3) },
                    Generation::Seven => MatrixRule::Replace {
                        kept: part(3),
                        searched: part(4),
                        rates: part(5),
                    },
                },
            }
        };
        let parts = match self.generation {
            Generation::Six => 4,
            Generation::Seven => 6,
        };
        let shape = MatrixShape {
            inputs: parts * hidden,
            keys: size,
            size,
        };
        let heads = (0..hidden / size).map(head).collect();
        Scan::matrix(shape, heads, parameters.device())
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
    between: Activation,
    bias: Option<Tensor>,
}

impl Narrow {
    fn load(
        parameters: &Parameters<'_>,
        index: usize,
        [down, up]: [Part; 2],
        bias: Option<Part>,
        (hidden, between): (usize, Activation),
    ) -> Result<Self> {
        let (down, up) = (down.at(index), up.at(index));
        let rank = parameters.outputs(down)?;
        Ok(Self {
            down: parameters.linear(down, hidden, rank)?,
            up: parameters.linear(up, rank, hidden)?,
            between,
            bias: bias
                .map(|bias| row(parameters, bias.at(index), hidden))
                .transpose()?,
        })
    }

    /// In f32.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let short = kernels::activate(&self.down.forward(x)?, self.between)?;
        let given = floats(&self.up.forward(&short)?)?;
        match &self.bias {
            Some(bias) => elementwise::add(&given, bias),
            None => Ok(given),
        }
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.down)?;
        inventory.add_linear(&self.up)
    }
}

struct HeadLayer {
    config: RwkvHeads,
    before: Scan,
    heads: Scan,
    /// What matrices fade by.
    fading: Narrow,
    decays: Decays,
    query: (Part, Linear),
    key: (Part, Linear),
    value: (Part, Linear),
    output: (Part, Linear),
    /// Of each head of what is read, `[head size]` and `[hidden]`.
    ones: Tensor,
    norm: Tensor,
    norm_bias: Tensor,
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
    first: Tensor,
    /// Its share in each mixture.
    shares: Vec<Tensor>,
    /// What is added to shares, made of a row that all mixtures have a part of.
    down: Linear,
    up: Vec<Linear>,
    /// What a token's own value counts more than later ones see it, by element of the key.
    bonus: Tensor,
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
        let shares = if parameters.has(Part::StateMixes.at(index)) {
            count(Part::StateMixes, MIXTURES * hidden)?
        } else {
            // As older files have them.
            let rows = apart.into_iter().map(|part| count(part, hidden));
            rows.collect::<Result<Vec<_>>>()?.concat()
        };
        Ok(Self {
            first: row(parameters, Part::StateFirstMix.at(index), hidden)?,
            shares: in_rows(&shares, hidden, parameters)?,
            down: parameters.linear(down, hidden, MIXTURES * rank)?,
            up: up.collect::<Result<_>>()?,
            bonus: row(parameters, Part::StateStepBias.at(index), hidden)?,
            gate: (part, parameters.linear(gate, hidden, hidden)?),
        })
    }

    /// The five mixtures.
    fn mixtures(&self, x: &Tensor, shifts: &Shifts) -> Result<Vec<Tensor>> {
        let first = shifts.mixed(&self.first)?.to_dtype(x.dtype())?;
        let short = kernels::activate(&self.down.forward(&first)?, Activation::Tanh)?;
        let rank = self.down.outputs() / MIXTURES;
        let parts = self.up.iter().zip(&self.shares).enumerate();
        let parts = parts.map(|(at, (up, share))| -> Result<Tensor> {
            let added = floats(&up.forward(&columns(&short, at * rank, rank)?)?)?;
            let mixture = shifts.mixed(&elementwise::add(&added, share)?)?;
            Ok(mixture.to_dtype(x.dtype())?)
        });
        parts.collect()
    }
}

/// Numbers as rows of this width, each by itself.
fn in_rows(numbers: &[f32], width: usize, parameters: &Parameters<'_>) -> Result<Vec<Tensor>> {
    let rows = numbers.chunks_exact(width);
    rows.map(|row| on_device(row.to_vec(), parameters))
        .collect()
}

struct Seven {
    /// The share of the token before in what queries, fading, keys, values, rates and gates are made of.
    shares: Vec<Tensor>,
    /// How much of what a key holds is replaced.
    rate: Narrow,
    /// How much the values of the first layer count; `None` in that one.
    first: Option<Narrow>,
    gate: Narrow,
    /// Factors of keys by which matrices are searched, and of how much rates change keys.
    key_scale: Tensor,
    rate_scale: Tensor,
    /// What of a token's own value passes by the matrices.
    skip: Tensor,
}

impl Seven {
    const MIXTURES: usize = 6;

    fn load(parameters: &Parameters<'_>, index: usize, hidden: usize) -> Result<Self> {
        let own = |part: Part| row(parameters, part.at(index), hidden);
        let narrow =
            |parts, bias, between| Narrow::load(parameters, index, parts, bias, (hidden, between));
        let same = Activation::Identity;
        let mixes = Part::StateMixes.at(index);
        let shares = counted(parameters, mixes, Self::MIXTURES * hidden)?;
        let first = [Part::StateFirstDown, Part::StateFirstUp];
        Ok(Self {
            shares: in_rows(&shares, hidden, parameters)?,
            rate: narrow(
                [Part::StateRateDown, Part::StateRateUp],
                Some(Part::StateRateBias),
                same,
            )?,
            first: match index {
                0 => None,
                _ => Some(narrow(first, Some(Part::StateFirstBias), same)?),
            },
            gate: narrow(
                [Part::StateGateDown, Part::StateGateUp],
                None,
                Activation::Sigmoid,
            )?,
            key_scale: own(Part::StateKeyScale)?,
            rate_scale: own(Part::StateRateScale)?,
            skip: own(Part::StateSkip)?,
        })
    }
}

impl HeadLayer {
    /// In f32.
    fn through(
        &self,
        index: usize,
        (part, linear): &(Part, Linear),
        x: &Tensor,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        floats(&step.through(index, *part, linear, x)?)
    }

    /// Rows of heads, one below the other.
    fn by_head(&self, x: &Tensor) -> Result<Tensor> {
        let size = self.config.head_size;
        Ok(x.reshape((x.elem_count() / size, size))?)
    }

    /// Normalizes each head of rows.
    fn normalize(&self, x: &Tensor) -> Result<Tensor> {
        let heads = self.by_head(x)?;
        let normed = kernels::layer_norm(&heads, &self.ones, None, EPSILON)?;
        let scaled = elementwise::multiply(&normed.reshape(x.shape())?, &self.norm)?;
        elementwise::add(&scaled, &self.norm_bias)
    }

    /// The values of each head, times how well the query fits the key, element by element.
    fn passing(
        &self,
        (query, key, value): (&Tensor, &Tensor, &Tensor),
        weights: &Tensor,
    ) -> Result<Tensor> {
        let products = elementwise::multiply(&elementwise::multiply(query, key)?, weights)?;
        let products = self.by_head(&products)?;
        let cancel = CancelToken::new();
        let shares = reduce(Reduction::Sum, &products, Some(&[1]), true, &cancel)?;
        let passing = elementwise::multiply(&self.by_head(value)?, &shares)?;
        Ok(passing.reshape(value.shape())?)
    }

    /// What RWKV 6 reads of its matrices, gated.
    fn six(
        &self,
        six: &Six,
        index: usize,
        (x, shifts): (&Tensor, &Shifts),
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let mixtures = six.mixtures(x, shifts)?;
        let [fading, key, value, query, gate] = &mixtures[..] else {
            return Err(Error::Internal("RWKV 6 has five mixtures".into()));
        };
        let kept = self.decays.forward(&self.fading.forward(fading)?)?;
        let query = self.through(index, &self.query, query, step)?;
        let key = self.through(index, &self.key, key, step)?;
        let value = self.through(index, &self.value, value, step)?;
        let gates = self.through(index, &six.gate, gate, step)?;
        let inputs = beside(&[&query, &key, &value, &kept])?;
        let read = past.scan((index, 1), &self.heads, &inputs, step.batch)?;
        let passing = self.passing((&query, &key, &value), &six.bonus)?;
        let normed = self.normalize(&elementwise::add(&read, &passing)?)?;
        kernels::gated(&gates, &normed, Activation::Silu)
    }

    /// What RWKV 7 reads of its matrices, gated.
    fn seven(
        &self,
        seven: &Seven,
        index: usize,
        (x, shifts): (&Tensor, &Shifts),
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let mixture = |at: usize| -> Result<Tensor> {
            Ok(shifts.mixed(&seven.shares[at])?.to_dtype(x.dtype())?)
        };
        let query = self.through(index, &self.query, &mixture(0)?, step)?;
        let kept = self.decays.forward(&self.fading.forward(&mixture(1)?)?)?;
        let key = self.through(index, &self.key, &mixture(2)?, step)?;
        let value = self.drawn(seven, index, &mixture(3)?, past, step)?;
        let rates = seven.rate.forward(&mixture(4)?)?;
        let rates = kernels::activate(&rates, Activation::Sigmoid)?;
        let gates = seven.gate.forward(&mixture(5)?)?;
        let searched = elementwise::multiply(&key, &seven.key_scale)?;
        let searched = kernels::l2_normalize(&self.by_head(&searched)?)?;
        let searched = searched.reshape(key.shape())?;
        let scaled = elementwise::multiply(&key, &seven.rate_scale)?;
        let change = elementwise::subtract(&elementwise::multiply(&rates, &scaled)?, &scaled)?;
        let key = elementwise::add(&key, &change)?;
        let inputs = beside(&[&query, &key, &value, &kept, &searched, &rates])?;
        let read = past.scan((index, 1), &self.heads, &inputs, step.batch)?;
        let passing = self.passing((&query, &key, &value), &seven.skip)?;
        let normed = elementwise::add(&self.normalize(&read)?, &passing)?;
        elementwise::multiply(&normed, &gates)
    }

    /// The values of RWKV 7, which are drawn to those of the first layer.
    fn drawn(
        &self,
        seven: &Seven,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let value = self.through(index, &self.value, x, step)?;
        let Some(share) = &seven.first else {
            *past.first_values() = Some(value.clone());
            return Ok(value);
        };
        let Some(first) = past.first_values().clone() else {
            return Err(Error::Internal("the first layer has left no values".into()));
        };
        let shares = kernels::activate(&share.forward(x)?, Activation::Sigmoid)?;
        let change = elementwise::multiply(&elementwise::subtract(&first, &value)?, &shares)?;
        elementwise::add(&value, &change)
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
        let given = floats(x)?;
        let before = past.scan((index, 0), &self.before, &given, step.batch)?;
        let shifts = Shifts::new(given, &before)?;
        let parts = (x, &shifts);
        let read = match &self.generation {
            Mechanism::Six(six) => self.six(six, index, parts, past, step)?,
            Mechanism::Seven(seven) => self.seven(seven, index, parts, past, step)?,
        };
        let (part, output) = &self.output;
        step.through(index, *part, output, &read.to_dtype(x.dtype())?)
    }
}
