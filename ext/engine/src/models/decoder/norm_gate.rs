//! A gate behind a norm: what was normalized is multiplied by the sigmoid of what two small matrices make of it (A.X
//! K2).

use candle_core::Tensor;

use crate::models::parameters::Parameters;
use crate::models::parts::Place;
use crate::nn::{Epilogue, Inventory, Linear};
use crate::Result;
use kernels::Activation;

pub struct NormGate {
    down: Linear,
    up: Linear,
}

impl NormGate {
    pub fn load(
        parameters: &Parameters<'_>,
        [down, up]: [Place; 2],
        hidden: usize,
        rank: usize,
    ) -> Result<Self> {
        Ok(Self {
            down: parameters.linear(down, hidden, rank)?,
            up: parameters.linear(up, rank, hidden)?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.down)?;
        inventory.add_linear(&self.up)
    }

    /// `x` is normalized, `[tokens, hidden]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let activated = Epilogue {
            activation: Some(Activation::Silu),
            ..Epilogue::default()
        };
        let short = self.down.forward_with(x, &activated)?;
        kernels::gated(&self.up.forward(&short)?, x, Activation::Sigmoid)
    }
}
