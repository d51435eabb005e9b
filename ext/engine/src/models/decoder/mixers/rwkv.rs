//! RWKV 4: each channel of a layer keeps sums of its values, weighed by the exponentials of their keys, which fade;
//! attention and MLP read a mixture of each token and the one before it.

use candle_core::Tensor;

use super::shared::{counted, on_device};
use super::{beside, floats, StateMixer};
use crate::models::config::{check_size, Checked};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear};
use crate::Result;
use formats::files::raw_config::WIDTH;
use kernels::scan::Scan;
use kernels::Activation;

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
    fn before(self, stored: Vec<f32>) -> Vec<f32> {
        match self {
            Self::Own => stored.into_iter().map(|share| 1.0 - share).collect(),
            Self::Before => stored,
        }
    }
}

/// Tokens in f32, and by how much those before them differ.
pub(super) struct Shifts {
    given: Tensor,
    differences: Tensor,
}

impl Shifts {
    pub fn new(given: Tensor, before: &Tensor) -> Result<Self> {
        Ok(Self {
            differences: elementwise::subtract(before, &given)?,
            given,
        })
    }

    /// Each token moved towards the one before it, by a share per element.
    pub fn mixed(&self, share: &Tensor) -> Result<Tensor> {
        let moved = elementwise::multiply(&self.differences, share)?;
        elementwise::add(&self.given, &moved)
    }
}

/// Mixes tokens with those before them and leads them through a matrix.
struct Shifted {
    /// How much the token before counts.
    before: Tensor,
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
        let before = share.before(counted(parameters, mix.at(index), inputs)?);
        Ok(Self {
            before: on_device(before, parameters)?,
            part: linear,
            linear: parameters.linear(linear.at(index), inputs, outputs)?,
        })
    }

    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        shifts: &Shifts,
        step: &Step<'_>,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        let mixed = shifts.mixed(&self.before)?.to_dtype(x.dtype())?;
        match activation {
            Some(function) => step.activated(index, self.part, &self.linear, &mixed, function),
            None => step.through(index, self.part, &self.linear, &mixed),
        }
    }

    fn module(&self) -> Module {
        Module::single(self.part, 0, &self.linear)
    }
}

struct RwkvLayer {
    before: Scan,
    key: Shifted,
    value: Shifted,
    receptance: Shifted,
    sums: Scan,
    output: Linear,
}

impl Rwkv {
    pub fn load(&self, parameters: &Parameters<'_>, index: usize) -> Result<Box<dyn StateMixer>> {
        let Self { hidden, width, .. } = *self;
        let sizes = (hidden, width);
        let shifted = |parts| Shifted::load(parameters, index, parts, sizes, Share::Own);
        let fading = counted(parameters, Part::StateDecay.at(index), width)?;
        let fading = fading.into_iter().map(|x| -x.exp()).collect();
        let bonus = counted(parameters, Part::StateStepBias.at(index), width)?;
        Ok(Box::new(RwkvLayer {
            before: Scan::before(hidden, parameters.device())?,
            key: shifted([Part::StateKeyMix, Part::StateKey])?,
            value: shifted([Part::StateValueMix, Part::StateValue])?,
            receptance: shifted([Part::StateGateMix, Part::StateGate])?,
            sums: Scan::rwkv(bonus, fading, parameters.device())?,
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
        let given = floats(x)?;
        let before = past.scan((index, 0), &self.before, &given, step.batch)?;
        let shifts = Shifts::new(given, &before)?;
        let keys = self.key.forward(index, x, &shifts, step, None)?;
        let values = self.value.forward(index, x, &shifts, step, None)?;
        let receptance = self.receptance.forward(index, x, &shifts, step, None)?;
        let inputs = beside(&[&keys, &values])?;
        let read = past.scan((index, 1), &self.sums, &inputs, step.batch)?;
        let read = kernels::gated(&receptance, &read.to_dtype(x.dtype())?, Activation::Sigmoid)?;
        step.through(index, Part::StateOutput, &self.output, &read)
    }
}

/// The MLP of a layer, which also reads the token before each.
struct RwkvMlp {
    before: Scan,
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
        before: Scan::before(hidden, parameters.device())?,
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
        let given = floats(x)?;
        let before = past.scan((index, 2), &self.before, &given, step.batch)?;
        let shifts = Shifts::new(given, &before)?;
        let activation = Some(Activation::ReluSquared);
        let inner = self.up.forward(index, x, &shifts, step, activation)?;
        let result = step.through(index, Part::Down, &self.down, &inner)?;
        let Some(receptance) = &self.receptance else {
            return Ok(result);
        };
        let receptance = receptance.forward(index, x, &shifts, step, None)?;
        kernels::gated(&receptance, &result, Activation::Sigmoid)
    }
}
