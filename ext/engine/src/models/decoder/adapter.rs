//! Low-rank adapters, applied beside the base weights: those stay as they are, quantized or shared
//! by other runs, and another adapter is only another argument of the forward.

use candle_core::Tensor;

use super::model::Embedding;
use crate::nn::linear::Epilogue;
use crate::nn::{elementwise, Linear};
use crate::Result;

/// The linear layers of a decoder layer that an adapter can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Query,
    Key,
    Value,
    Qkv,
    Output,
    Gate,
    Up,
    GateUp,
    Down,
}

impl Part {
    const COUNT: usize = Self::Down as usize + 1;
}

/// What one linear layer's output gets in addition: B·A·x, B already scaled.
pub struct LowRank {
    pub down: Linear,
    pub up: Linear,
}

/// The same for a looked-up row.
pub struct EmbeddingUpdate {
    /// `[vocabulary, rank]`
    pub rows: Tensor,
    pub up: Linear,
}

#[derive(Default)]
pub struct LayerAdapter {
    parts: [Option<LowRank>; Part::COUNT],
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

impl LowRank {
    /// `base + B·A·x`
    fn add(&self, x: &Tensor, base: &Tensor) -> Result<Tensor> {
        let residual = Some(base);
        let epilogue = Epilogue {
            residual,
            ..Default::default()
        };
        self.up.forward_with(&self.down.forward(x)?, &epilogue)
    }
}

impl LayerAdapter {
    pub fn slot(&mut self, part: Part) -> &mut Option<LowRank> {
        &mut self.parts[part as usize]
    }
}

/// The updates of one layer in one forward; none without an adapter.
#[derive(Clone, Copy)]
pub struct Updates<'a>(Option<&'a LayerAdapter>);

impl<'a> Updates<'a> {
    pub const NONE: Self = Self(None);

    pub fn of(adapter: Option<&'a Adapter>, layer: usize) -> Self {
        Self(adapter.and_then(|adapter| adapter.layers.get(layer)))
    }

    /// Whether a part has one.
    pub fn has(&self, part: Part) -> bool {
        self.get(part).is_some()
    }

    fn get(&self, part: Part) -> Option<&'a LowRank> {
        self.0.and_then(|layer| layer.parts[part as usize].as_ref())
    }

    pub fn forward(&self, part: Part, linear: &Linear, x: &Tensor) -> Result<Tensor> {
        self.update(part, x, linear.forward(x)?)
    }

    /// Layers that read the same input.
    pub fn forward_each<const N: usize>(
        &self,
        parts: [(Part, &Linear); N],
        x: &Tensor,
    ) -> Result<[Tensor; N]> {
        let mut outputs = Linear::forward_each(parts.map(|(_, linear)| linear), x)?;
        for (output, (part, _)) in outputs.iter_mut().zip(parts) {
            *output = self.update(part, x, output.clone())?;
        }
        Ok(outputs)
    }

    fn update(&self, part: Part, x: &Tensor, base: Tensor) -> Result<Tensor> {
        match self.get(part) {
            Some(update) => update.add(x, &base),
            None => Ok(base),
        }
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

    pub fn logits(&self, base: &Linear, hidden: &Tensor) -> Result<Tensor> {
        let logits = self.whole_head.as_ref().unwrap_or(base).forward(hidden)?;
        match &self.head {
            Some(update) => update.add(hidden, &logits),
            None => Ok(logits),
        }
    }
}
