//! Blocks of attention and an MLP that several layers have in common (Zamba 2).
//!
//! A block reads the residual stream beside the embeddings; what it gives goes into the layer's mixer, and is not added
//! to the stream. Every layer adds low-rank matrices of its own to those of its block.

use std::sync::Arc;

use candle_core::Tensor;

use super::adaptable::{of_attention, of_mlp, Module};
use super::adapter::{LayerAdapter, MlpOf};
use super::adapter_rows::LayerUpdates;
use super::attention::{AttentionLayer, Qkv};
use super::batch::Past;
use super::config::DecoderConfig;
use super::indexer::Chosen;
use super::layer::{MlpLayer, Step};
use super::loading;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::projections::MlpParts;
use crate::nn::{Inventory, Linear, LowRank, Norm, RowUpdate};
use crate::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBlocks {
    /// How many blocks there are; layers that have one take turns.
    pub count: usize,
    /// Whether layers add matrices to those of queries, keys and values, as they do to the MLP's.
    pub adapts_attention: bool,
}

/// The blocks that the layers loaded so far have.
#[derive(Default)]
pub struct Blocks {
    found: Vec<(usize, Arc<Block>)>,
    uses: usize,
}

struct Block {
    norm: Norm,
    attention: AttentionLayer,
    mlp_norm: Norm,
    mlp: MlpLayer,
}

/// The block of a layer.
pub struct BlockLayer {
    block: Arc<Block>,
    /// The layer that has it first, under whose name adapters know it; and whether that is this one.
    stored: usize,
    first: bool,
    updates: LayerAdapter,
    output: Linear,
}

impl Block {
    fn load(parameters: &Parameters<'_>, index: usize, config: &DecoderConfig) -> Result<Self> {
        let (hidden, shape) = (config.hidden_size, config.attention_shape(index));
        let norm = |part: Part, width: usize| {
            let place = part.at(index);
            parameters.norm(place, &[width], config.norm)
        };
        let qkv = [
            (Part::Query.at(index), shape.width()),
            (Part::Key.at(index), shape.key_width()),
            (Part::Value.at(index), shape.value_width()),
        ];
        let output = Part::AttentionOutput.at(index);
        Ok(Self {
            norm: norm(Part::BlockNorm, 2 * hidden)?,
            attention: AttentionLayer {
                qkv: Qkv::Plain(parameters.split(&qkv, 2 * hidden)?),
                indexer: None,
                output: Some(parameters.linear(output, shape.width(), hidden)?),
                query_norm: None,
                key_norm: None,
                value_norm: None,
                sub_norm: None,
                sinks: None,
                gate: None,
                differential: None,
            },
            mlp_norm: norm(Part::MlpNorm, hidden)?,
            mlp: loading::mlp(parameters, MlpParts::of(index), config.mlp.kind, config)?,
        })
    }
}

impl Blocks {
    /// The block of a layer, where it has one; layers are loaded in their order.
    pub fn load(
        &mut self,
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Option<BlockLayer>> {
        let shared = config.shared_blocks;
        let Some(shared) = shared.filter(|_| config.sublayers(index).attention) else {
            return Ok(None);
        };
        let (number, turn) = (self.uses, self.uses % shared.count.max(1));
        self.uses += 1;
        // Checkpoints have a block where it is used first; those whose head is not tied have it everywhere.
        let known = turn < self.found.len();
        let first = !known || parameters.has(Part::Query.at(index));
        if first {
            let block = (index, Arc::new(Block::load(parameters, index, config)?));
            if known {
                self.found[turn] = block;
            } else {
                self.found.push(block);
            }
        }
        // What layers add is stored with the block.
        let (stored, block) = &self.found[turn];
        let low_rank = |down: Part, up: Part, matrix: &Linear| -> Result<Option<RowUpdate>> {
            let [down, up] = [down, up].map(|part| part.at(*stored).expert(number));
            let rank = parameters.outputs(down)?;
            Ok(Some(RowUpdate::Add(Box::new(LowRank {
                down: parameters.linear(down, matrix.inputs(), rank)?,
                up: parameters.linear(up, rank, matrix.outputs())?,
            }))))
        };
        let mut updates = LayerAdapter::default();
        if let (Qkv::Plain(qkv), true) = (&block.attention.qkv, shared.adapts_attention) {
            let parts = [
                (Part::QueryUpdateDown, Part::QueryUpdateUp),
                (Part::KeyUpdateDown, Part::KeyUpdateUp),
                (Part::ValueUpdateDown, Part::ValueUpdateUp),
            ];
            for ((down, up), matrix) in parts.into_iter().zip(qkv.matrices()) {
                updates.qkv.push(low_rank(down, up, matrix)?);
            }
        }
        for matrix in block.mlp.input.matrices() {
            let (down, up) = (Part::GateUpUpdateDown, Part::GateUpUpdateUp);
            updates.mlp.input.push(low_rank(down, up, matrix)?);
        }
        let hidden = config.hidden_size;
        Ok(Some(BlockLayer {
            block: block.clone(),
            stored: *stored,
            first,
            updates,
            output: parameters.linear(Part::BlockOutput.at(index), hidden, hidden)?,
        }))
    }
}

impl BlockLayer {
    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if self.first {
            inventory.add_norm(&self.block.norm)?;
            self.block.attention.list(inventory)?;
            inventory.add_norm(&self.block.mlp_norm)?;
            self.block.mlp.list(inventory)?;
        }
        let updates = self.updates.qkv.iter().chain(&self.updates.mlp.input);
        for update in updates.flatten() {
            inventory.add_row_update(update)?;
        }
        inventory.add_linear(&self.output)
    }

    /// Of the residual stream and the embeddings, `[tokens, hidden]` each.
    pub(super) fn forward(
        &self,
        index: usize,
        (hidden, embedded): (&Tensor, &Tensor),
        past: &mut Past<'_>,
        step: &Step<'_>,
        chosen: &mut Option<Chosen>,
    ) -> Result<Tensor> {
        let Block {
            norm,
            attention,
            mlp_norm,
            mlp,
        } = &*self.block;
        let both = norm.forward(&Tensor::cat(&[hidden, embedded], 1)?)?;
        let adapters = step.adapters.layer(self.stored);
        let updates = LayerUpdates::all(&self.updates).and(adapters);
        let attended = attention.forward(index, &both, past, step, chosen, &updates)?;
        step.cancel.check()?;
        let given = mlp.forward(&mlp_norm.forward(&attended)?, &updates, MlpOf::Layer)?;
        let updates = step.adapters.layer(index).part(Part::BlockOutput);
        self.output.forward_updated(&given, &updates)
    }

    /// What an adapter can change: of a block that several layers have, in the first of them.
    pub fn modules(&self, config: &DecoderConfig) -> Vec<Module> {
        let mut modules = vec![Module::single(Part::BlockOutput, 0, &self.output)];
        if self.first {
            let Block { attention, mlp, .. } = &*self.block;
            modules.extend(of_attention(attention, self.stored, config));
            modules.extend(of_mlp(mlp, MlpOf::Layer));
        }
        modules
    }
}
