//! The tokens of one forward: pieces of sequences, laid end to end.

use std::collections::HashMap;
use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::config::DecoderConfig;
use super::pool::KvPool;
use super::states::SequenceState;
use crate::models::rope::{Piece, Place};
use crate::nn::attention::{attention, AttentionOptions};
use crate::nn::{AttentionKind, PackedSequences};
use crate::{Error, Result};
use kernels::paged::{KvShape, KvType, PagedBatch, PagedLayer, PagedPiece, PAGE};
use kernels::scan::StepTable;
use kernels::Rotation;

pub struct Batch {
    pub ids: Vec<u32>,
    /// Piece i is the rows from `boundaries[i]` to `boundaries[i + 1]`.
    pub boundaries: Vec<u32>,
    pieces: Vec<Piece>,
}

impl Batch {
    /// Whole sequences; `variant` gives the rotation for a length. It is each sequence's own, so
    /// that no sequence depends on what else is in the batch.
    pub fn whole(sequences: &PackedSequences, variant: impl Fn(usize) -> usize) -> Self {
        let piece = |range: Range<usize>| Piece {
            positions: 0..range.len(),
            variant: variant(range.len()),
            places: None,
        };
        Self {
            ids: sequences.ids().to_vec(),
            boundaries: sequences.boundaries().to_vec(),
            pieces: sequences.ranges().map(piece).collect(),
        }
    }

    /// Pieces with the rotation of their sequences.
    pub fn pieces_of<'a>(pieces: impl Iterator<Item = Stretch<'a>>) -> Self {
        let mut batch = Self {
            ids: Vec::new(),
            boundaries: vec![0],
            pieces: Vec::new(),
        };
        for piece in pieces {
            batch.ids.extend_from_slice(piece.ids);
            batch.boundaries.push(batch.ids.len() as u32);
            batch.pieces.push(Piece {
                positions: piece.first..piece.first + piece.ids.len(),
                variant: piece.variant,
                places: piece.places,
            });
        }
        batch
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The position of every token.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.pieces.iter().flat_map(|piece| piece.positions.clone())
    }

    /// What queries are multiplied by, `[tokens, 1, 1]`; see `Temperature`.
    pub fn temperatures(
        &self,
        config: &DecoderConfig,
        (device, dtype): (&Device, DType),
    ) -> Result<Option<Tensor>> {
        let Some(temperature) = config.temperature else {
            return Ok(None);
        };
        let factors: Vec<f32> = self.positions().map(|at| temperature.factor(at)).collect();
        let factors = Tensor::from_vec(factors, (self.ids.len(), 1, 1), device)?;
        Ok(Some(factors.to_dtype(dtype)?))
    }
}

/// Tokens of a sequence that stand from a position on, or at places of their own.
pub struct Stretch<'a> {
    pub ids: &'a [u32],
    pub first: usize,
    pub places: Option<Vec<Place>>,
    /// The rotation of their sequence.
    pub variant: usize,
}

/// What the pieces of a batch attend to beside themselves.
pub enum Past<'a> {
    /// Nothing: every piece is a whole sequence.
    None(Kept),
    /// What came before each piece, which is added to it.
    Paged {
        pool: &'a mut KvPool,
        batch: PagedBatch,
        bidirectional_spans: Vec<BidirectionalSpan>,
        /// See [`Past::first_values`].
        first_values: Option<Tensor>,
        /// Of each piece's sequence, where layers keep states.
        states: Vec<&'a mut SequenceState>,
        /// On a GPU: what the step does with them, once a layer has asked.
        scan_table: Option<StepTable>,
    },
}

/// What stands before the tokens of a batch in each stage; see [`Stages`](super::Stages).
pub enum Before<'a> {
    /// Nothing: every piece is a whole sequence.
    Nothing,
    Paged {
        pool: &'a mut KvPool,
        /// Of the stages to come.
        stages: std::vec::IntoIter<StagePages>,
        /// Of each piece's sequence, where layers keep states.
        states: Vec<&'a mut SequenceState>,
    },
}

/// The pieces of a batch where a stage is.
pub struct StagePages {
    pub batch: PagedBatch,
    pub bidirectional_spans: Vec<BidirectionalSpan>,
}

impl Before<'_> {
    /// In the next stage. Layers that keep states have but one.
    pub fn of_next_stage(&mut self, config: &DecoderConfig) -> Result<Past<'_>> {
        match self {
            Self::Nothing => Ok(Past::none(config)),
            Self::Paged {
                pool,
                stages,
                states,
            } => {
                let pages = stages.next();
                let pages = pages.ok_or_else(|| Error::Internal("a stage without pages".into()))?;
                Ok(Past::Paged {
                    pool,
                    batch: pages.batch,
                    bidirectional_spans: pages.bidirectional_spans,
                    first_values: None,
                    states: std::mem::take(states),
                    scan_table: None,
                })
            }
        }
    }
}

/// Rows of a batch that attend to each other in both directions, the last ones of their sequence so far: an image, or
/// a whole prompt.
pub struct BidirectionalSpan {
    pub rows: Range<usize>,
    pub batch: PagedBatch,
    /// Whether they see each other beyond windows.
    pub whole: bool,
    /// Whether they see each other in layers with a window only.
    pub in_windows: bool,
}

/// Keys and values of one forward that later layers read too.
#[derive(Default)]
pub struct Kept {
    wanted: Vec<usize>,
    stored: HashMap<usize, (Tensor, Tensor)>,
    /// See [`Past::first_values`].
    first_values: Option<Tensor>,
    /// On a GPU: what scans do with each sequence.
    pub(super) scan_table: Option<StepTable>,
}

/// What a layer attends to.
pub enum Keys {
    /// Keys and values of its own tokens.
    Own(Tensor, Tensor),
    /// What this layer has, rotated.
    Of(usize),
}

/// Pages for the keys of whole sequences, `[tokens, heads, width]`.
fn pages_of(batch: &Batch, key: &Tensor) -> Result<(PagedLayer, PagedBatch)> {
    let (_, heads, width) = key.dims3()?;
    let mut next = 0;
    let pieces = batch.boundaries.windows(2).map(|range| {
        let rows = range[0] as usize..range[1] as usize;
        let first = next;
        next += rows.len().div_ceil(PAGE) as u32;
        PagedPiece {
            keys: rows.len(),
            pages: (first..next).collect(),
            rows,
        }
    });
    let pieces = pieces.collect();
    let shape = KvShape { heads, width };
    let mut stored = PagedLayer::new(shape, KvType::of(key.dtype()), key.device())?;
    stored.reserve(next as usize)?;
    Ok((stored, PagedBatch::new(pieces, key.device())?))
}

impl Past<'_> {
    pub fn none(config: &DecoderConfig) -> Self {
        let kept = Kept {
            wanted: config.shared_layers(),
            ..Kept::default()
        };
        Self::None(kept)
    }

    /// What the first layer leaves for all others of this forward, `[tokens, hidden]` (RWKV 7).
    pub fn first_values(&mut self) -> &mut Option<Tensor> {
        match self {
            Self::None(kept) => &mut kept.first_values,
            Self::Paged { first_values, .. } => first_values,
        }
    }

    /// How well the keys of a layer's indexer fit each token, given those of a batch's own tokens, its queries and
    /// how much each head of them counts.
    pub fn ranks(
        &mut self,
        layer: usize,
        (query, key, weights): (&Tensor, &Tensor, &Tensor),
        rotation: Option<&Rotation<'_>>,
        batch: &Batch,
    ) -> Result<Vec<Vec<f32>>> {
        let parts = (query, key, key);
        match self {
            Self::None(..) => {
                let (mut stored, paged) = pages_of(batch, key)?;
                let query = stored.store(&paged, parts, rotation)?;
                stored.ranks(&paged, &query, weights)
            }
            Self::Paged {
                pool, batch: paged, ..
            } => {
                let stored = pool.index(layer).ok_or_else(|| {
                    Error::Internal(format!("layer {layer} has no keys to choose from"))
                })?;
                let query = stored.store(paged, parts, rotation)?;
                stored.ranks(paged, &query, weights)
            }
        }
    }

    /// Attention of a batch in one layer, given its own queries, what these attend to and what rotates queries and
    /// keys.
    pub fn attend(
        &mut self,
        layer: usize,
        (query, keys): (&Tensor, &Keys),
        rotation: Option<&Rotation<'_>>,
        batch: &Batch,
        options: &AttentionOptions<'_>,
    ) -> Result<Tensor> {
        let rotated = |x: &Tensor| match rotation {
            Some(rotation) => rotation.rotate(x),
            None => Ok(x.clone()),
        };
        match self {
            Self::None(..) if options.chosen.is_some() => {
                let Keys::Own(key, value) = keys else {
                    return Err(Error::Internal(
                        "keys of another layer are not chosen from".into(),
                    ));
                };
                let (mut stored, paged) = pages_of(batch, key)?;
                let query = stored.store(&paged, (query, key, value), rotation)?;
                stored.read(&paged, &query, options)
            }
            Self::None(kept) => {
                let boundaries = &batch.boundaries;
                let query = rotated(query)?;
                let (key, value) = match keys {
                    Keys::Own(key, value) => (rotated(key)?, value.clone()),
                    Keys::Of(other) => kept.of(*other)?,
                };
                let attended = attention(&query, &key, &value, boundaries, boundaries, options)?;
                if kept.wanted.contains(&layer) {
                    kept.stored.insert(layer, (key, value));
                }
                Ok(attended)
            }
            Self::Paged {
                pool,
                batch: paged,
                bidirectional_spans,
                ..
            } => {
                let stored = pool.layer(layer);
                let query = match keys {
                    Keys::Own(key, value) => stored.store(paged, (query, key, value), rotation)?,
                    Keys::Of(_) => rotated(query)?,
                };
                let attended = stored.read(paged, &query, options)?;
                let windowed = matches!(options.kind, AttentionKind::Window { .. });
                let spans = bidirectional_spans.iter();
                let spans: Vec<_> = spans.filter(|span| windowed || !span.in_windows).collect();
                if spans.is_empty() {
                    return Ok(attended);
                }
                let mut pieces = Vec::new();
                let mut start = 0;
                for BidirectionalSpan {
                    rows, batch, whole, ..
                } in spans
                {
                    pieces.push(attended.narrow(0, start, rows.start - start)?);
                    let query = query.narrow(0, rows.start, rows.len())?;
                    let options = AttentionOptions {
                        kind: if *whole {
                            AttentionKind::Bidirectional
                        } else {
                            options.kind.forwards()
                        },
                        ..*options
                    };
                    pieces.push(stored.read(batch, &query.contiguous()?, &options)?);
                    start = rows.end;
                }
                pieces.push(attended.narrow(0, start, attended.dim(0)? - start)?);
                Ok(Tensor::cat(&pieces, 0)?)
            }
        }
    }
}

impl Kept {
    fn of(&self, layer: usize) -> Result<(Tensor, Tensor)> {
        let found = self.stored.get(&layer).cloned();
        found.ok_or_else(|| Error::Internal(format!("layer {layer} has stored no keys")))
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
        let variants: Vec<_> = batch.pieces().iter().map(|piece| piece.variant).collect();
        assert_eq!(variants, [1, 0, 0]);
    }

    #[test]
    fn pieces_stand_where_they_were_put() {
        let pieces = [(&[7, 8][..], 5, 0), (&[9][..], 0, 1)];
        let pieces = pieces.map(|(ids, first, variant)| Stretch {
            ids,
            first,
            places: None,
            variant,
        });
        let batch = Batch::pieces_of(pieces.into_iter());
        assert_eq!(batch.positions().collect::<Vec<_>>(), [5, 6, 0]);
        assert_eq!(batch.boundaries, [0, 2, 3]);
    }
}
