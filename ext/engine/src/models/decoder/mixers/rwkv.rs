//! RWKV 4: each channel of a layer keeps sums of its values, weighed by the exponentials of their keys, which fade;
//! attention and MLP read a mixture of each token and the one before it.

use candle_core::Tensor;

use super::shared::{counted, side_by_side};
use super::{rows, values, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::layer::Step;
use crate::models::decoder::states::Scan;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear};
use crate::Result;
use formats::files::raw_config::WIDTH;
use kernels::cpu::scan::{self, RwkvLane, ScanRows};
use kernels::cpu::Isa;
use kernels::Activation;

/// How many parts of the channels run beside each other.
const MOST_LANES: usize = 16;

/// A layer of RWKV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rwkv {
    pub hidden: usize,
    /// Of keys and values.
    pub width: usize,
    pub inner: usize,
}

impl Rwkv {
    /// How many numbers a sequence keeps in a layer: the last inputs of both parts, and three sums between them.
    pub fn sizes(&self) -> Vec<usize> {
        vec![self.hidden, 3 * self.width, self.hidden]
    }

    pub fn check(&self) -> Checked {
        check_size("width of attention", self.width, WIDTH)?;
        check_size("width of the MLP", self.inner, WIDTH)
    }
}

/// What a checkpoint stores of a mixture: how much the token itself counts, or the one before it.
#[derive(Clone, Copy)]
pub(super) enum Share {
    Own,
    Before,
}

impl Share {
    fn own(self, stored: Vec<f32>) -> Vec<f32> {
        match self {
            Self::Own => stored,
            Self::Before => stored.into_iter().map(|share| 1.0 - share).collect(),
        }
    }
}

/// Mixes tokens with those before them and leads them through a matrix.
struct Shifted {
    /// How much the token itself counts.
    own: Vec<f32>,
    part: Part,
    linear: Linear,
}

impl Shifted {
    fn load(
        parameters: &Parameters<'_>,
        index: usize,
        [mix, linear]: [Part; 2],
        (inputs, outputs): (usize, usize),
        share: Share,
    ) -> Result<Self> {
        Ok(Self {
            own: share.own(counted(parameters, mix.at(index), inputs)?),
            part: linear,
            linear: parameters.linear(linear.at(index), inputs, outputs)?,
        })
    }

    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        (given, before): (&[f32], &[f32]),
        step: &Step<'_>,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        let width = self.own.len();
        let mut mixed = vec![0.0; given.len()];
        let tokens = mixed.chunks_exact_mut(width);
        let tokens = tokens
            .zip(given.chunks_exact(width))
            .zip(before.chunks_exact(width));
        for ((mixed, row), before) in tokens {
            let elements = mixed.iter_mut().zip(row).zip(before).zip(&self.own);
            for (((mixed, x), before), own) in elements {
                *mixed = x * own + before * (1.0 - own);
            }
        }
        let mixed = rows(mixed, width, x)?;
        match activation {
            Some(function) => step.activated(index, self.part, &self.linear, &mixed, function),
            None => step.through(index, self.part, &self.linear, &mixed),
        }
    }

    fn module(&self) -> Module {
        Module::single(self.part, 0, &self.linear)
    }
}

/// The token before each, in so many channels.
pub(super) struct Before(pub usize);

impl Scan for Before {
    fn inputs(&self) -> usize {
        self.0
    }

    fn lanes(&self) -> usize {
        1
    }

    fn lane_outputs(&self) -> usize {
        self.0
    }

    fn run(&self, _: Isa, _: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let rows = inputs.chunks_exact(self.0);
        for (row, out) in rows.zip(outputs.chunks_exact_mut(self.0)) {
            out.copy_from_slice(state);
            state.copy_from_slice(row);
        }
    }
}

struct RwkvLayer {
    config: Rwkv,
    key: Shifted,
    value: Shifted,
    receptance: Shifted,
    /// What the exponents of a channel's sums change by with every token.
    fading: Vec<f32>,
    /// What a token's own exponent is larger by.
    bonus: Vec<f32>,
    output: Linear,
}

impl Rwkv {
    pub fn load(&self, parameters: &Parameters<'_>, index: usize) -> Result<Box<dyn StateMixer>> {
        let Self { hidden, width, .. } = *self;
        let sizes = (hidden, width);
        let shifted = |parts| Shifted::load(parameters, index, parts, sizes, Share::Own);
        let fading = counted(parameters, Part::StateDecay.at(index), width)?;
        Ok(Box::new(RwkvLayer {
            config: *self,
            key: shifted([Part::StateKeyMix, Part::StateKey])?,
            value: shifted([Part::StateValueMix, Part::StateValue])?,
            receptance: shifted([Part::StateGateMix, Part::StateGate])?,
            fading: fading.into_iter().map(|x| -x.exp()).collect(),
            bonus: counted(parameters, Part::StateStepBias.at(index), width)?,
            output: parameters.linear(Part::StateOutput.at(index), width, hidden)?,
        }))
    }
}

impl StateMixer for RwkvLayer {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let linears = [&self.key, &self.value, &self.receptance].map(|one| &one.linear);
        linears
            .into_iter()
            .chain([&self.output])
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    fn modules(&self) -> Vec<Module> {
        let shifted = [&self.key, &self.value, &self.receptance].map(Shifted::module);
        let output = Module::single(Part::StateOutput, 0, &self.output);
        shifted.into_iter().chain([output]).collect()
    }

    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let Rwkv { hidden, width, .. } = self.config;
        let given = values(x)?;
        let before = past.scan((index, 0), &Before(hidden), &given, step.batch)?;
        let given = (&given[..], &before[..]);
        let keys = values(&self.key.forward(index, x, given, step, None)?)?;
        let values = values(&self.value.forward(index, x, given, step, None)?)?;
        let receptance = self.receptance.forward(index, x, given, step, None)?;
        let inputs = side_by_side([&keys, &values], [width; 2]);
        let read = past.scan((index, 1), self, &inputs, step.batch)?;
        let read = kernels::gated(&receptance, &rows(read, width, x)?, Activation::Sigmoid)?;
        step.through(index, Part::StateOutput, &self.output, &read)
    }
}

/// A row has the keys and values of all channels. The state of a lane is for each of its channels the sums of values
/// and of weights, both divided by e to the power of a third number.
impl Scan for RwkvLayer {
    fn inputs(&self) -> usize {
        2 * self.config.width
    }

    fn lanes(&self) -> usize {
        let lanes = (1..=MOST_LANES).rev();
        let mut lanes = lanes.filter(|lanes| self.config.width.is_multiple_of(*lanes));
        lanes.next().unwrap_or(1)
    }

    fn lane_outputs(&self) -> usize {
        self.config.width / self.lanes()
    }

    fn run(&self, isa: Isa, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let channels = state.len() / 3;
        let first = lane * channels;
        let lane = RwkvLane {
            channels,
            key: first,
            value: self.config.width + first,
            bonus: &self.bonus[first..][..channels],
            fading: &self.fading[first..][..channels],
        };
        let width = self.inputs();
        scan::rwkv(isa, &lane, ScanRows { inputs, width }, state, outputs);
    }
}

/// The MLP of a layer, which also reads the token before each.
struct RwkvMlp {
    hidden: usize,
    up: Shifted,
    /// What the result is multiplied by; RWKV 7 has none.
    receptance: Option<Shifted>,
    down: Linear,
}

impl Rwkv {
    pub fn load_mlp(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
    ) -> Result<Box<dyn StateMixer>> {
        let sizes = (self.hidden, self.inner);
        load_mlp(parameters, index, sizes, Share::Own, true)
    }
}

/// The MLP of a layer of this hidden size and width.
pub(super) fn load_mlp(
    parameters: &Parameters<'_>,
    index: usize,
    (hidden, inner): (usize, usize),
    share: Share,
    gated: bool,
) -> Result<Box<dyn StateMixer>> {
    let shifted =
        |parts, outputs| Shifted::load(parameters, index, parts, (hidden, outputs), share);
    Ok(Box::new(RwkvMlp {
        hidden,
        up: shifted([Part::UpMix, Part::Up], inner)?,
        receptance: gated
            .then(|| shifted([Part::GateMix, Part::Gate], hidden))
            .transpose()?,
        down: parameters.linear(Part::Down.at(index), inner, hidden)?,
    }))
}

impl StateMixer for RwkvMlp {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let receptance = self.receptance.iter().map(|one| &one.linear);
        [&self.up.linear, &self.down]
            .into_iter()
            .chain(receptance)
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    fn modules(&self) -> Vec<Module> {
        let shifted = [&self.up].into_iter().chain(&self.receptance);
        let down = Module::single(Part::Down, 0, &self.down);
        shifted.map(Shifted::module).chain([down]).collect()
    }

    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let given = values(x)?;
        let before = Before(self.hidden);
        let before = past.scan((index, 2), &before, &given, step.batch)?;
        let given = (&given[..], &before[..]);
        let inner = self
            .up
            .forward(index, x, given, step, Some(Activation::ReluSquared))?;
        let result = step.through(index, Part::Down, &self.down, &inner)?;
        let Some(receptance) = &self.receptance else {
            return Ok(result);
        };
        let receptance = receptance.forward(index, x, given, step, None)?;
        kernels::gated(&receptance, &result, Activation::Sigmoid)
    }
}
