//! The layer that gives every token a logit.

use candle_core::{DType, Tensor};

use crate::nn::{Embedding, Inventory, Linear, RescoredLinear};
use crate::Result;

#[derive(Debug)]
pub(super) enum OutputLayer {
    Plain(Linear),
    Rescored(RescoredLinear),
}

impl OutputLayer {
    /// The layer that is the table of the tokens. For few rows it waits for its weight, and is a layer of its own
    /// where that takes less to read. In bytes alone whisper-base writes other words.
    pub fn tied(tokens: &Embedding, few_rows: bool, int8: bool) -> Result<Self> {
        let own = match tokens.dense() {
            Some(table) if few_rows && int8 => {
                return Ok(Self::Rescored(RescoredLinear::new(table)?));
            }
            Some(table) if few_rows => Linear::compact(table, None)?,
            _ => None,
        };
        match own {
            Some(layer) => Ok(Self::Plain(layer)),
            None => Ok(Self::Plain(tokens.tied_output(None)?)),
        }
    }

    pub fn outputs(&self) -> usize {
        match self {
            Self::Plain(layer) => layer.outputs(),
            Self::Rescored(layer) => layer.outputs(),
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match self {
            Self::Plain(layer) => inventory.add_linear(layer),
            Self::Rescored(layer) => layer.list(inventory),
        }
    }

    /// f32 [rows, tokens].
    pub fn forward(&self, states: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(layer) => Ok(layer.forward(states)?.to_dtype(DType::F32)?),
            Self::Rescored(layer) => layer.forward(states),
        }
    }
}
