//! The tokens of one forward: pieces of sequences, laid end to end.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::Tensor;

use super::cache::KvCache;
use crate::models::rope::Piece;
use crate::nn::PackedSequences;
use crate::Result;

pub struct Batch<'a> {
    pub ids: &'a [u32],
    /// Piece i is the rows from `boundaries[i]` to `boundaries[i + 1]`.
    pub boundaries: Cow<'a, [u32]>,
    pieces: Vec<Piece>,
}

impl<'a> Batch<'a> {
    /// Whole sequences; `variant` gives the rotation for a length. It is each sequence's own, so
    /// that no sequence depends on what else is in the batch.
    pub fn whole(sequences: &'a PackedSequences, variant: impl Fn(usize) -> usize) -> Self {
        let piece = |range: Range<usize>| Piece {
            positions: 0..range.len(),
            variant: variant(range.len()),
        };
        Self {
            ids: sequences.ids(),
            boundaries: Cow::Borrowed(sequences.boundaries()),
            pieces: sequences.ranges().map(piece).collect(),
        }
    }

    /// One piece that stands from position `first` on.
    pub fn piece(ids: &'a [u32], first: usize, variant: usize) -> Self {
        Self {
            ids,
            boundaries: Cow::Owned(vec![0, ids.len() as u32]),
            pieces: vec![Piece {
                positions: first..first + ids.len(),
                variant,
            }],
        }
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The position of every token.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.pieces.iter().flat_map(|piece| piece.positions.clone())
    }

    /// From the first to past the last position of any piece.
    pub fn span(&self) -> Range<usize> {
        let starts = self.pieces.iter().map(|piece| piece.positions.start);
        let ends = self.pieces.iter().map(|piece| piece.positions.end);
        starts.min().unwrap_or(0)..ends.max().unwrap_or(0)
    }
}

/// What the pieces of a batch attend to beside themselves.
pub enum Past<'a> {
    /// Nothing: every piece is a whole sequence.
    None,
    /// What came before the batch's only piece, which is added to it.
    Cached(&'a mut KvCache),
}

/// Keys and values of one layer, `[tokens, key-value heads, head size]` each.
pub struct Attended {
    pub keys: Tensor,
    pub values: Tensor,
    /// Which of them each piece attends to.
    pub boundaries: Vec<u32>,
}

impl Past<'_> {
    /// What a batch attends to in one layer, given the keys and values of its own tokens.
    pub fn attended(
        &mut self,
        layer: usize,
        keys: Tensor,
        values: Tensor,
        batch: &Batch<'_>,
    ) -> Result<Attended> {
        match self {
            Self::None => Ok(Attended {
                keys,
                values,
                boundaries: batch.boundaries.to_vec(),
            }),
            Self::Cached(cache) => {
                let (keys, values) = cache.append(layer, &keys, &values)?;
                Ok(Attended {
                    boundaries: vec![0, keys.dim(0)? as u32],
                    keys,
                    values,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sequence_counts_its_own_positions_and_rotates_by_its_own_length() {
        let mut sequences = PackedSequences::new();
        sequences.push(&[1, 2, 3], None).unwrap();
        sequences.push(&[], None).unwrap();
        sequences.push(&[4, 5], None).unwrap();
        let batch = Batch::whole(&sequences, |length| usize::from(length > 2));
        assert_eq!(batch.positions().collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
        assert_eq!(batch.span(), 0..3);
        let variants: Vec<_> = batch.pieces().iter().map(|piece| piece.variant).collect();
        assert_eq!(variants, [1, 0, 0]);
    }

    #[test]
    fn a_piece_stands_where_it_was_put() {
        let batch = Batch::piece(&[7, 8], 5, 0);
        assert_eq!(batch.positions().collect::<Vec<_>>(), [5, 6]);
        assert_eq!((batch.span(), &*batch.boundaries), (5..7, &[0, 2][..]));
    }
}
