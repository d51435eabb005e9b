//! Low-rank adapters, applied beside the base weights: those stay as they are, quantized or shared
//! by other runs, and another adapter is only another argument of the forward.

use candle_core::Tensor;

use crate::nn::{elementwise, Embedding, Inventory, Linear, LowRank};
use crate::Result;

/// A matrix among a layer's projections; those of several parts may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Qkv(usize),
    AttentionOutput,
    MlpInput(usize),
    MlpOutput,
}

/// What a looked-up row gets in addition.
pub struct EmbeddingUpdate {
    /// `[vocabulary, rank]`
    pub rows: Tensor,
    pub up: Linear,
}

/// The updates of one layer's projections.
#[derive(Default)]
pub struct LayerAdapter {
    pub qkv: Vec<Option<LowRank>>,
    pub attention_output: Option<LowRank>,
    pub mlp_input: Vec<Option<LowRank>>,
    pub mlp_output: Option<LowRank>,
}

pub struct Adapter {
    pub name: String,
    pub layers: Vec<LayerAdapter>,
    pub embedding: Option<EmbeddingUpdate>,
    pub head: Option<LowRank>,
    /// Trained in full instead of the base's.
    pub whole_embedding: Option<Embedding>,
    pub whole_head: Option<Linear>,
}

impl LayerAdapter {
    pub const NONE: Self = Self {
        qkv: Vec::new(),
        attention_output: None,
        mlp_input: Vec::new(),
        mlp_output: None,
    };

    /// The updates of a layer in one forward; none without an adapter.
    pub fn of(adapter: Option<&Adapter>, layer: usize) -> &Self {
        static NONE: LayerAdapter = LayerAdapter::NONE;
        let layers = adapter.map(|adapter| &adapter.layers);
        layers.and_then(|layers| layers.get(layer)).unwrap_or(&NONE)
    }

    /// Where the update of a projection's matrix goes.
    pub fn slot(&mut self, slot: Slot) -> &mut Option<LowRank> {
        let (updates, matrix) = match slot {
            Slot::Qkv(matrix) => (&mut self.qkv, matrix),
            Slot::MlpInput(matrix) => (&mut self.mlp_input, matrix),
            Slot::AttentionOutput => return &mut self.attention_output,
            Slot::MlpOutput => return &mut self.mlp_output,
        };
        if updates.len() <= matrix {
            updates.resize_with(matrix + 1, || None);
        }
        &mut updates[matrix]
    }
}

impl Adapter {
    /// The rows of `tokens` where the adapter changes them: from its own table, or from the base's.
    pub fn embed(&self, base: &Embedding, tokens: &[u32]) -> Result<Tensor> {
        let rows = self.whole_embedding.as_ref().unwrap_or(base).rows(tokens)?;
        let Some(update) = &self.embedding else {
            return Ok(rows);
        };
        let ids = Tensor::new(tokens, update.rows.device())?;
        let small = update.rows.index_select(&ids, 0)?;
        elementwise::add(&rows, &update.up.forward(&small)?)
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let layers = self.layers.iter().flat_map(|layer| {
            let inputs = layer.qkv.iter().chain(&layer.mlp_input);
            inputs.chain([&layer.attention_output, &layer.mlp_output])
        });
        for update in layers.chain([&self.head]).flatten() {
            inventory.add_low_rank(update)?;
        }
        if let Some(update) = &self.embedding {
            inventory.add_tensor(&update.rows);
            inventory.add_linear(&update.up)?;
        }
        if let Some(table) = &self.whole_embedding {
            inventory.add_embedding(table);
        }
        match &self.whole_head {
            Some(head) => inventory.add_linear(head),
            None => Ok(()),
        }
    }

    pub fn logits(&self, base: &Linear, hidden: &Tensor) -> Result<Tensor> {
        let head = self.whole_head.as_ref().unwrap_or(base);
        head.forward_updated(hidden, self.head.as_ref())
    }
}
