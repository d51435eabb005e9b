//! Sparse attention: small heads rank the keys before a token, and attention sees the best of them alone.

use candle_core::Tensor;

use super::adapter_rows::LayerUpdates;
use super::batch::{Batch, Past};
use super::config::{DecoderConfig, Indexer};
use crate::models::config::{NormConfig, NormKind};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear, Norm};
use crate::Result;
use kernels::Rotation;

/// Of the norm of keys.
const EPSILON: f32 = 1e-6;

/// For each token of a batch the keys that attention sees, in rising order; `None` sees all.
pub type Chosen = Vec<Option<Vec<u32>>>;

pub struct IndexerLayer {
    config: Indexer,
    /// From what passes between the two matrices of queries.
    query: Linear,
    key: Linear,
    key_norm: Norm,
    /// How much each head counts.
    weights: Linear,
}

impl IndexerLayer {
    pub fn load(
        parameters: &Parameters<'_>,
        index: usize,
        indexer: &Indexer,
        config: &DecoderConfig,
    ) -> Result<Self> {
        let (hidden, width) = (config.hidden_size, indexer.heads * indexer.size);
        let rank = config.latent.and_then(|latent| latent.query_rank);
        let linear =
            |part: Part, inputs, outputs| parameters.exact_linear(part.at(index), inputs, outputs);
        Ok(Self {
            query: linear(Part::IndexQuery, rank.unwrap_or(hidden), width)?,
            key: linear(Part::IndexKey, hidden, indexer.size)?,
            key_norm: parameters.norm(
                Part::IndexKeyNorm.at(index),
                &[indexer.size],
                NormConfig::new(NormKind::Layer, EPSILON),
            )?,
            weights: linear(Part::IndexWeights, hidden, indexer.heads)?,
            config: indexer.clone(),
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_norm(&self.key_norm)?;
        let linears = [&self.query, &self.key, &self.weights];
        linears
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    /// What can be adapted.
    pub fn linears(&self) -> [(Part, &Linear); 3] {
        [
            (Part::IndexQuery, &self.query),
            (Part::IndexKey, &self.key),
            (Part::IndexWeights, &self.weights),
        ]
    }

    /// What the tokens of a batch see; `x` is `[tokens, hidden]`, and `short` what its queries are made of.
    pub(super) fn choose(
        &self,
        index: usize,
        (x, short, updates): (&Tensor, &Tensor, &LayerUpdates<'_>),
        rotation: Option<&Rotation<'_>>,
        past: &mut Past<'_>,
        batch: &Batch,
    ) -> Result<Chosen> {
        let Indexer { heads, size, .. } = self.config;
        let updated = |part: Part, linear: &Linear, x: &Tensor| {
            linear.forward_updated(x, &updates.part(part))
        };
        let query = updated(Part::IndexQuery, &self.query, short)?;
        let query = query.reshape((x.dim(0)?, heads, size))?;
        let key = updated(Part::IndexKey, &self.key, x)?;
        let key = self.key_norm.forward(&key)?;
        let scale = 1.0 / ((heads * size) as f32).sqrt();
        let weights = updated(Part::IndexWeights, &self.weights, x)?;
        let weights = elementwise::scale(&weights, scale)?;
        let rotation = rotation.map(|rotation| Rotation {
            kind: self.config.pairing,
            ..*rotation
        });
        let parts = (&query, &key.unsqueeze(1)?, &weights);
        let ranks = past.ranks(index, parts, rotation.as_ref(), batch)?;
        let chosen = ranks.iter().map(|ranks| best(ranks, self.config.used));
        Ok(chosen.collect())
    }
}

/// The places of the `count` largest, in rising order, of equal ones the first; `None` where that is all.
fn best(ranks: &[f32], count: usize) -> Option<Vec<u32>> {
    if ranks.len() <= count {
        return None;
    }
    let mut order: Vec<u32> = (0..ranks.len() as u32).collect();
    order.select_nth_unstable_by(count, |&a, &b| {
        let (one, other) = (ranks[a as usize], ranks[b as usize]);
        other.total_cmp(&one).then(a.cmp(&b))
    });
    order.truncate(count);
    order.sort_unstable();
    Some(order)
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn the_best_keys_are_chosen_and_the_first_of_equal_ones() {
        assert_eq!(best(&[1.0, 2.0], 2), None);
        assert_eq!(best(&[1.0, -2.0, 3.0, 0.0], 2), Some(vec![0, 2]));
        assert_eq!(best(&[0.0, 5.0, 0.0, 0.0], 2), Some(vec![0, 1]));
    }
}
