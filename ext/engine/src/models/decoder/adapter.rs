//! Low-rank adapters, applied beside the base weights: those stay as they are, quantized or shared
//! by other runs, and every row of a forward pass may have an adapter of its own.

use candle_core::Tensor;

use super::latent::LatentUpdate;
use crate::models::identity;
use crate::models::parts::Part;
use crate::nn::{elementwise, Embedding, Inventory, Linear, RowUpdate};
use crate::{Error, Result};

/// A matrix of a layer; projections of several parts may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Qkv(usize),
    /// What makes keys and values of latents.
    LatentUp,
    MlpInput(MlpOf, usize),
    MlpOutput(MlpOf),
    /// Any other, by its number where a place has several.
    Part(Part, usize),
}

/// Which MLP of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpOf {
    Layer,
    SharedExpert,
    Expert(usize),
}

/// What a matrix gets in addition.
pub enum Update {
    Plain(RowUpdate),
    Latent(Box<LatentUpdate>),
}

/// What a looked-up row gets in addition.
pub struct EmbeddingUpdate {
    /// `[vocabulary, rank]`
    pub rows: Tensor,
    pub up: Linear,
}

/// The updates of an MLP.
#[derive(Default)]
pub struct MlpUpdates {
    pub input: Vec<Option<RowUpdate>>,
    pub output: Option<RowUpdate>,
}

/// The updates of one layer's projections.
#[derive(Default)]
pub struct LayerAdapter {
    pub qkv: Vec<Option<RowUpdate>>,
    pub latent_up: Option<Box<LatentUpdate>>,
    pub mlp: MlpUpdates,
    pub shared_expert: MlpUpdates,
    /// As many as have updates, the first expert's first.
    pub experts: Vec<MlpUpdates>,
    parts: Vec<(Part, usize, RowUpdate)>,
}

pub struct Adapter {
    pub name: String,
    /// No other adapter of this process ever has the same: what one has left in the prefix cache is never another's.
    /// 0 stands for the base model.
    id: usize,
    pub layers: Vec<LayerAdapter>,
    /// The layer of every run of one, where layers run several times.
    pub runs: Option<Vec<usize>>,
    /// Of matrices that stand beside the layers.
    pub model: LayerAdapter,
    pub embedding: Option<EmbeddingUpdate>,
    pub head: Option<RowUpdate>,
    /// Trained in full instead of the base's.
    pub whole_embedding: Option<Embedding>,
    pub whole_head: Option<Linear>,
}

impl MlpUpdates {
    fn all(&self) -> impl Iterator<Item = &RowUpdate> {
        self.input.iter().chain([&self.output]).flatten()
    }
}

impl LayerAdapter {
    /// The update of one of several matrices.
    pub(super) fn numbered(&self, part: Part, number: usize) -> Option<&RowUpdate> {
        let mut parts = self.parts.iter();
        let found = parts.find(|(own, at, _)| (*own, *at) == (part, number));
        found.map(|(_, _, update)| update)
    }

    /// Those of an MLP, where it has any.
    pub(super) fn mlp(&self, of: MlpOf) -> Option<&MlpUpdates> {
        match of {
            MlpOf::Layer => Some(&self.mlp),
            MlpOf::SharedExpert => Some(&self.shared_expert),
            MlpOf::Expert(number) => self.experts.get(number),
        }
    }

    /// Sets the update of a matrix.
    pub fn set(&mut self, slot: Slot, update: Update) -> Result<()> {
        match (slot, update) {
            (Slot::LatentUp, Update::Latent(update)) => self.latent_up = Some(update),
            (Slot::Qkv(matrix), Update::Plain(update)) => *at(&mut self.qkv, matrix) = Some(update),
            (Slot::MlpInput(of, matrix), Update::Plain(update)) => {
                *at(&mut self.mlp_of(of).input, matrix) = Some(update)
            }
            (Slot::MlpOutput(of), Update::Plain(update)) => self.mlp_of(of).output = Some(update),
            (Slot::Part(part, number), Update::Plain(update)) => {
                self.parts.push((part, number, update))
            }
            (Slot::LatentUp, Update::Plain(_)) | (_, Update::Latent(_)) => {
                return Err(Error::Internal(
                    "an update of another kind of matrix".into(),
                ))
            }
        }
        Ok(())
    }

    fn mlp_of(&mut self, of: MlpOf) -> &mut MlpUpdates {
        match of {
            MlpOf::Layer => &mut self.mlp,
            MlpOf::SharedExpert => &mut self.shared_expert,
            MlpOf::Expert(number) => at(&mut self.experts, number),
        }
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let mlps = [&self.mlp, &self.shared_expert].into_iter();
        let mlps = mlps.chain(&self.experts).flat_map(MlpUpdates::all);
        let parts = self.parts.iter().map(|(_, _, update)| update);
        for update in self.qkv.iter().flatten().chain(mlps).chain(parts) {
            inventory.add_row_update(update)?;
        }
        match &self.latent_up {
            Some(update) => update.list(inventory),
            None => Ok(()),
        }
    }
}

/// The place of a number in a list, which grows where it is too short.
fn at<T: Default>(list: &mut Vec<T>, number: usize) -> &mut T {
    if list.len() <= number {
        list.resize_with(number + 1, T::default);
    }
    &mut list[number]
}

impl Adapter {
    /// One that changes nothing yet, of a model of so many layers.
    pub fn new(name: &str, layers: usize, runs: Option<Vec<usize>>) -> Self {
        Self {
            name: name.to_owned(),
            id: identity::next(),
            layers: (0..layers).map(|_| LayerAdapter::default()).collect(),
            runs,
            model: LayerAdapter::default(),
            embedding: None,
            head: None,
            whole_embedding: None,
            whole_head: None,
        }
    }

    pub fn id(&self) -> usize {
        self.id
    }

    /// The updates of a run of a layer.
    pub(super) fn layer(&self, run: usize) -> Option<&LayerAdapter> {
        let layer = match &self.runs {
            Some(runs) => *runs.get(run)?,
            None => run,
        };
        self.layers.get(layer)
    }

    /// The rows of `tokens` where the adapter changes them: from its own table, or from the base's.
    pub(super) fn embed(&self, base: &Embedding, tokens: &[u32]) -> Result<Tensor> {
        let rows = self.whole_embedding.as_ref().unwrap_or(base).rows(tokens)?;
        let Some(update) = &self.embedding else {
            return Ok(rows);
        };
        let ids = Tensor::new(tokens, update.rows.device())?;
        let small = update.rows.index_select(&ids, 0)?;
        elementwise::add(&rows, &update.up.forward(&small)?)
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for layer in self.layers.iter().chain([&self.model]) {
            layer.list(inventory)?;
        }
        if let Some(update) = &self.head {
            inventory.add_row_update(update)?;
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

    pub(super) fn logits(&self, base: &Linear, hidden: &Tensor) -> Result<Tensor> {
        let head = self.whole_head.as_ref().unwrap_or(base);
        let rows = 0..hidden.dim(0)?;
        let update = self.head.iter().map(|update| (rows.clone(), update));
        head.forward_updated(hidden, &update.collect())
    }
}
