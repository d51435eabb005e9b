//! The adapters of one forward pass: its rows are of sequences with different adapters, or with none. Products with
//! the base weights are made of all rows at once, and what an adapter adds of its own rows.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;

use super::adapter::{Adapter, LayerAdapter, MlpOf};
use super::latent::LatentUpdate;
use crate::models::parts::Part;
use crate::nn::{Embedding, Linear, RowUpdate, RowUpdates};
use crate::Result;

/// Which rows belong to which adapter, in rising order. Rows in no range are the base model's; without adapters it
/// holds no memory.
#[derive(Default)]
pub struct AdapterRows(Vec<(Range<usize>, Arc<Adapter>)>);

/// What the matrices of a layer get in addition, by rows.
#[derive(Default)]
pub struct LayerUpdates<'a>(Vec<(Range<usize>, &'a LayerAdapter)>);

impl AdapterRows {
    /// Of sequences that have so many rows each, one after the other.
    pub fn of<'a>(sequences: impl IntoIterator<Item = (usize, Option<&'a Arc<Adapter>>)>) -> Self {
        let (mut rows, mut end) = (Vec::<(Range<usize>, Arc<Adapter>)>::new(), 0);
        for (count, adapter) in sequences {
            let start = end;
            end += count;
            let Some(adapter) = adapter.filter(|_| count > 0) else {
                continue;
            };
            match rows.last_mut() {
                Some((last, own)) if last.end == start && Arc::ptr_eq(own, adapter) => {
                    last.end = end;
                }
                _ => rows.push((start..end, adapter.clone())),
            }
        }
        Self(rows)
    }

    fn updates(&self, find: impl Fn(&Adapter) -> Option<&LayerAdapter>) -> LayerUpdates<'_> {
        let rows = self.0.iter();
        let found = rows.filter_map(|(rows, adapter)| Some((rows.clone(), find(adapter)?)));
        LayerUpdates(found.collect())
    }

    /// What a run of a layer gets in addition.
    pub fn layer(&self, run: usize) -> LayerUpdates<'_> {
        self.updates(|adapter| adapter.layer(run))
    }

    /// What stands beside the layers gets in addition.
    pub fn model(&self) -> LayerUpdates<'_> {
        self.updates(|adapter| Some(&adapter.model))
    }

    /// All of so many rows, cut where another adapter begins.
    fn parts(&self, count: usize) -> Vec<(Range<usize>, Option<&Adapter>)> {
        let (mut parts, mut end) = (Vec::new(), 0);
        for (rows, adapter) in &self.0 {
            if end < rows.start {
                parts.push((end..rows.start, None));
            }
            parts.push((rows.clone(), Some(adapter.as_ref())));
            end = rows.end;
        }
        if end < count {
            parts.push((end..count, None));
        }
        parts
    }

    /// The embeddings of tokens, one for each row.
    pub fn embed(&self, base: &Embedding, tokens: &[u32]) -> Result<Tensor> {
        if self.0.is_empty() {
            return base.rows(tokens);
        }
        let parts = self.parts(tokens.len()).into_iter();
        let parts = parts.map(|(rows, adapter)| match adapter {
            Some(adapter) => adapter.embed(base, &tokens[rows]),
            None => base.rows(&tokens[rows]),
        });
        joined(parts.collect::<Result<Vec<_>>>()?)
    }

    /// What the head gives of rows of hidden states.
    pub fn logits(&self, base: &Linear, hidden: &Tensor) -> Result<Tensor> {
        let replaces = |(_, adapter): &(_, Arc<Adapter>)| adapter.whole_head.is_some();
        if !self.0.iter().any(replaces) {
            let rows = self.0.iter();
            let updates = rows.filter_map(|(rows, own)| Some((rows.clone(), own.head.as_ref()?)));
            return base.forward_updated(hidden, &updates.collect());
        }
        let parts = self.parts(hidden.dim(0)?).into_iter();
        let parts = parts.map(|(rows, adapter)| {
            let hidden = hidden.narrow(0, rows.start, rows.len())?;
            match adapter {
                Some(adapter) => adapter.logits(base, &hidden),
                None => base.forward(&hidden),
            }
        });
        joined(parts.collect::<Result<Vec<_>>>()?)
    }
}

fn joined(mut parts: Vec<Tensor>) -> Result<Tensor> {
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => Ok(Tensor::cat(&parts, 0)?),
    }
}

impl<'a> LayerUpdates<'a> {
    /// The same additions to all rows.
    pub fn all(updates: &'a LayerAdapter) -> Self {
        Self(vec![(0..usize::MAX, updates)])
    }

    /// These, and others on top of them.
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of rows that were picked, in rising order.
    pub fn picked(&self, picked: &[u32]) -> Self {
        let before = |row: usize| picked.partition_point(|&own| (own as usize) < row);
        let parts = self.0.iter();
        let parts = parts.map(|(rows, updates)| (before(rows.start)..before(rows.end), *updates));
        Self(parts.filter(|(rows, _)| !rows.is_empty()).collect())
    }

    fn each(&self, find: impl Fn(&'a LayerAdapter) -> Option<&'a RowUpdate>) -> RowUpdates<'a> {
        let parts = self.0.iter();
        let found = parts.filter_map(|(rows, updates)| Some((rows.clone(), find(updates)?)));
        found.collect()
    }

    /// The updates of the matrices of a projection, of which layers have a list.
    fn list(
        &self,
        list: impl Fn(&'a LayerAdapter) -> &'a [Option<RowUpdate>],
    ) -> Vec<RowUpdates<'a>> {
        let lengths = self.0.iter().map(|(_, updates)| list(updates).len());
        let matrices = 0..lengths.max().unwrap_or(0);
        let found = matrices.map(|at| self.each(|updates| list(updates).get(at)?.as_ref()));
        found.collect()
    }

    /// The update of a matrix that a layer has one of.
    pub fn part(&self, part: Part) -> RowUpdates<'a> {
        self.numbered(part, 0)
    }

    /// The update of one of several matrices.
    pub fn numbered(&self, part: Part, number: usize) -> RowUpdates<'a> {
        self.each(|updates| updates.numbered(part, number))
    }

    /// The updates of what makes queries, keys and values.
    pub fn qkv(&self) -> Vec<RowUpdates<'a>> {
        self.list(|updates| &updates.qkv)
    }

    /// The update of one of its matrices.
    pub fn qkv_at(&self, matrix: usize) -> RowUpdates<'a> {
        self.each(|updates| updates.qkv.get(matrix)?.as_ref())
    }

    /// Of what makes keys and values of latents.
    pub fn latent_up(&self) -> impl Iterator<Item = (Range<usize>, &'a LatentUpdate)> + '_ {
        let parts = self.0.iter();
        parts.filter_map(|(rows, updates)| Some((rows.clone(), updates.latent_up.as_deref()?)))
    }

    /// The updates of an MLP's gate and up.
    pub fn mlp_input(&self, of: MlpOf) -> Vec<RowUpdates<'a>> {
        self.list(move |updates| updates.mlp(of).map_or(&[], |mlp| &mlp.input))
    }

    /// The update of its way back.
    pub fn mlp_output(&self, of: MlpOf) -> RowUpdates<'a> {
        self.each(|updates| updates.mlp(of)?.output.as_ref())
    }
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges are compared"
)]
mod tests {
    use super::*;

    fn adapter(name: &str) -> Arc<Adapter> {
        Arc::new(Adapter::new(name, 1, None))
    }

    fn ranges(rows: &AdapterRows) -> Vec<(Range<usize>, &str)> {
        let rows = rows.0.iter();
        rows.map(|(rows, adapter)| (rows.clone(), adapter.name.as_str()))
            .collect()
    }

    #[test]
    fn neighbours_of_one_adapter_share_a_range() {
        let (one, two) = (adapter("one"), adapter("two"));
        let sequences = [
            (3, None),
            (2, Some(&one)),
            (0, Some(&two)),
            (1, Some(&one)),
            (4, Some(&two)),
            (2, None),
            (1, Some(&one)),
        ];
        let rows = AdapterRows::of(sequences);
        let expected = [(3..6, "one"), (6..10, "two"), (12..13, "one")];
        assert_eq!(ranges(&rows), expected);
        let parts = rows.parts(15).into_iter();
        let parts: Vec<_> = parts
            .map(|(rows, own)| (rows, own.map(|own| &own.name[..])))
            .collect();
        let expected = [
            (0..3, None),
            (3..6, Some("one")),
            (6..10, Some("two")),
            (10..12, None),
            (12..13, Some("one")),
            (13..15, None),
        ];
        assert_eq!(parts, expected);
        assert!(ranges(&AdapterRows::of([(7, None)])).is_empty());
    }

    #[test]
    fn picked_rows_keep_their_adapters() {
        let (one, two) = (adapter("one"), adapter("two"));
        let rows = AdapterRows::of([(2, None), (3, Some(&one)), (3, Some(&two)), (2, None)]);
        let updates = rows.layer(0);
        let picked = |picked: &[u32]| -> Vec<Range<usize>> {
            let found = updates.picked(picked);
            found.0.iter().map(|(rows, _)| rows.clone()).collect()
        };
        assert!(picked(&[0, 1, 8]).is_empty());
        assert_eq!(picked(&[1, 2, 4, 5, 9]), [1..3, 3..4]);
        assert_eq!(picked(&[6, 7]), [0..2]);
        let all = LayerUpdates::all(&one.layers[0]);
        assert_eq!(all.picked(&[3, 5]).0[0].0, 0..2);
    }
}
