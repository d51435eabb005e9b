//! A gate behind a norm: what was normalized is multiplied by the sigmoid of what two small matrices make of it (A.X
//! K2).

use candle_core::Tensor;

use super::adapter_rows::LayerUpdates;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::nn::{Inventory, Linear};
use crate::Result;
use kernels::Activation;

pub struct NormGate {
    /// What the two are.
    pub parts: [Part; 2],
    pub down: Linear,
    pub up: Linear,
}

impl NormGate {
    pub fn load(
        parameters: &Parameters<'_>,
        [down, up]: [Place; 2],
        hidden: usize,
        rank: usize,
    ) -> Result<Self> {
        Ok(Self {
            parts: [down.part, up.part],
            down: parameters.linear(down, hidden, rank)?,
            up: parameters.linear(up, rank, hidden)?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.down)?;
        inventory.add_linear(&self.up)
    }

    /// `x` is normalized, `[tokens, hidden]`.
    pub(super) fn forward(&self, x: &Tensor, updates: &LayerUpdates<'_>) -> Result<Tensor> {
        let [down, up] = self.parts.map(|part| updates.part(part));
        let short = self.down.forward_activated(x, Activation::Silu, &down)?;
        let gate = self.up.forward_updated(&short, &up)?;
        kernels::gated(&gate, x, Activation::Sigmoid)
    }
}
