//! What the matrices of a decoder's layers read, added up: an adapter that changes nothing.

use std::sync::Arc;

use super::adapter::{Adapter, Slot, Update};
use super::model::Decoder;
use super::peft::{self, Place};
use crate::models::parts::Names;
use crate::nn::{InputSums, RowUpdate};
use crate::Result;

pub struct Observer {
    pub adapter: Arc<Adapter>,
    pub modules: Vec<Observed>,
}

/// A module of a checkpoint.
pub struct Observed {
    /// What checkpoints may call it, without `.weight`.
    pub names: Vec<String>,
    pub inputs: Arc<InputSums>,
}

impl Observer {
    /// Of all matrices of layers; `names` are those of the family in safetensors.
    pub fn new(decoder: &Decoder, names: &Names) -> Result<Self> {
        let runs = decoder.config().stacks.map(|stacks| stacks.runs());
        let mut adapter = Adapter::new("inputs", decoder.layers().len(), runs);
        let mut known: Vec<((usize, Slot), Arc<InputSums>)> = Vec::new();
        let mut modules = Vec::new();
        for target in peft::targets(decoder, names) {
            let Place::Layer(layer, pieces) = &target.place else {
                continue;
            };
            // Pieces of a module read the same.
            let slot = pieces.first().map(|piece| piece.at.slot);
            let Some(slot) = slot.filter(|slot| *slot != Slot::LatentUp) else {
                continue;
            };
            let at = (*layer, slot);
            let inputs = match known.iter().find(|(own, _)| *own == at) {
                Some((_, inputs)) => inputs.clone(),
                None => {
                    let inputs = Arc::new(InputSums::new(target.inputs));
                    let update = RowUpdate::Observe(inputs.clone());
                    adapter.layers[*layer].set(slot, Update::Plain(update))?;
                    known.push((at, inputs.clone()));
                    inputs
                }
            };
            modules.push(Observed {
                names: target.names,
                inputs,
            });
        }
        Ok(Self {
            adapter: Arc::new(adapter),
            modules,
        })
    }
}
