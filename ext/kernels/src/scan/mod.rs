//! The scans of layers that keep states, as data: what they read of a row, what they keep, and what runs them.
//!
//! On the CPU a scan runs in lanes that know nothing of each other (`cpu/scan`); on a GPU in one launch for all
//! sequences of a step, whose states lie in slots of one tensor. States have the same layout everywhere.

mod device;
mod gates;
mod kinds;
#[cfg(any(test, feature = "metal", feature = "cuda"))]
#[cfg_attr(
    not(any(feature = "metal", feature = "cuda")),
    allow(dead_code, reason = "what launches on GPUs use")
)]
pub(crate) mod launch;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use crate::cpu::scan as cpu;
use crate::cpu::scan::ScanRows;
use crate::{Activation, Error, Isa, Result};

pub use crate::cpu::scan::{Decay, MatrixRule};
pub use device::{slots_are_used, Piece, SlotStates, StepTable, MOST_MARKS, WORDS as TABLE_WORDS};
pub use gates::{unit_heads, Decays, RecurrentGates, UnitHeads};
#[cfg(any(test, feature = "metal", feature = "cuda"))]
pub(crate) use kinds::{groups, Rule};
pub(crate) use kinds::{Convolution, Kind, Matrix, Rwkv, Selective};
pub use kinds::{MatrixHead, MatrixShape};

/// More keys of a head, or numbers of a channel, than a GPU holds in the registers of a few lanes.
pub const MOST_HELD: usize = 2048;

/// What leads from a state to the next.
pub struct Scan {
    inputs: usize,
    kind: Kind,
    /// On a GPU: what its kernel reads beside inputs and states.
    #[cfg_attr(
        not(any(feature = "metal", feature = "cuda")),
        allow(dead_code, reason = "what kernels of GPUs read")
    )]
    constants: Option<Constants>,
}

#[cfg_attr(
    not(any(feature = "metal", feature = "cuda")),
    allow(dead_code, reason = "what kernels of GPUs read")
)]
pub(crate) struct Constants {
    /// u32
    pub words: Tensor,
    /// f32
    pub numbers: Tensor,
}

impl Scan {
    fn new(inputs: usize, kind: Kind, device: &Device) -> Result<Self> {
        let held = kind.held();
        if !device.is_cpu() && held > MOST_HELD {
            return Err(Error::UnsupportedModel(format!(
                "layers whose states have {held} numbers for each column run on the CPU only"
            )));
        }
        let constants = if device.is_cpu() {
            None
        } else {
            Some(Constants::new(&kind, device)?)
        };
        Ok(Self {
            inputs,
            kind,
            constants,
        })
    }

    /// A convolution of each channel over the last tokens; `by_channel` is `[channels, taps]`, the oldest tap first.
    pub fn convolution(
        by_channel: &[f32],
        bias: Vec<f32>,
        activation: Activation,
        device: &Device,
    ) -> Result<Self> {
        let convolution = Convolution::new(by_channel, bias, activation);
        let channels = convolution.bias.len();
        Self::new(channels, Kind::Convolution(convolution), device)
    }

    /// The token before each.
    pub fn before(width: usize, device: &Device) -> Result<Self> {
        let weights = [1.0, 0.0].repeat(width);
        Self::convolution(&weights, vec![0.0; width], Activation::Identity, device)
    }

    /// Heads whose state is a matrix from keys to values.
    pub fn matrix(shape: MatrixShape, heads: Vec<MatrixHead>, device: &Device) -> Result<Self> {
        let inputs = shape.inputs;
        Self::new(inputs, Kind::Matrix(Matrix::new(shape, heads)), device)
    }

    /// Channels of Mamba, of which each keeps some numbers. A row has what is scanned, time steps before their softplus,
    /// and input and output of the state. `rates` are `[channels, kept]` and negative.
    pub fn selective(rates: &[f32], skips: Vec<f32>, device: &Device) -> Result<Self> {
        let channels = Selective::new(rates, skips);
        let inputs = 2 * (channels.skips.len() + channels.kept);
        Self::new(inputs, Kind::Selective(channels), device)
    }

    /// Recurrent units. A row has for each what is added to its state, and what this is multiplied by before.
    pub fn rglru(width: usize, device: &Device) -> Result<Self> {
        Self::new(2 * width, Kind::Rglru { width }, device)
    }

    /// Channels of RWKV 4. A row has the keys and values of all.
    pub fn rwkv(bonus: Vec<f32>, fading: Vec<f32>, device: &Device) -> Result<Self> {
        let inputs = 2 * bonus.len();
        Self::new(inputs, Kind::Rwkv(Rwkv { bonus, fading }), device)
    }

    /// The width of its inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.lanes() * self.lane_outputs()
    }

    pub fn lanes(&self) -> usize {
        self.kind.lanes()
    }

    /// The width of what a lane gives; all lanes' results lie side by side.
    pub fn lane_outputs(&self) -> usize {
        self.kind.lane_outputs()
    }

    /// How many numbers it keeps.
    pub fn state(&self) -> usize {
        self.kind.state()
    }

    /// On the CPU: reads the rows of `inputs`, each of the whole width, one after the other, changes the state of a lane,
    /// and writes its row of `outputs` for each. The result does not depend on how many rows there are.
    pub fn run(
        &self,
        isa: Isa,
        lane: usize,
        state: &mut [f32],
        inputs: &[f32],
        outputs: &mut [f32],
    ) {
        let width = self.inputs;
        let rows = ScanRows { inputs, width };
        match &self.kind {
            Kind::Convolution(one) => cpu::convolution(isa, &one.lane(lane), rows, state, outputs),
            Kind::Matrix(one) => cpu::matrix(isa, &one.lane(lane), rows, state, outputs),
            Kind::Selective(one) => cpu::selective(isa, &one.lane(lane), rows, state, outputs),
            Kind::Rglru { width } => {
                let first = lane * state.len();
                let units = cpu::RglruLane {
                    channels: state.len(),
                    taken: first,
                    kept: width + first,
                };
                cpu::rglru(isa, &units, rows, state, outputs);
            }
            Kind::Rwkv(one) => cpu::rwkv(isa, &one.lane(lane), rows, state, outputs),
        }
    }
}
