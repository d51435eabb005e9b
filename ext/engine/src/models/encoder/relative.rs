//! Positions that live inside attention: rotary, ALiBi, buckets and DeBERTa's disentangled ones.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::config::EncoderConfig;
use crate::models::config::{Directions, DisentangledConfig, Relative};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::rope::{Piece, Rotation, Rotations};
use crate::nn::{AttentionBias, Disentangled, PackedSequences};
use crate::{Error, Result};

/// No model tells distances beyond this apart.
const MOST_DISTANCES: usize = 1 << 16;

/// What all layers share.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one per model")]
pub enum RelativePositions {
    None,
    Rope(Rotations),
    Alibi(Vec<f32>),
    /// One table for all layers, or one for each.
    Buckets {
        tables: Vec<Tensor>,
        zero: usize,
    },
    Disentangled(DisentangledPositions),
    /// Buckets of distances whose bias each token weighs by itself (WavLM).
    Gated(GatedBuckets),
}

#[derive(Debug)]
pub struct GatedBuckets {
    /// [1, heads, buckets]
    pub table: Tensor,
    /// By distance + zero.
    buckets: Vec<u32>,
    zero: usize,
}

impl GatedBuckets {
    /// `scores` are the table as each token weighs it, [tokens, heads, buckets].
    pub fn bias<'a>(&'a self, scores: &'a Tensor) -> AttentionBias<'a> {
        AttentionBias::Disentangled(Disentangled {
            from_query: Some((scores, self.buckets.as_slice())),
            from_key: None,
            zero: self.zero,
        })
    }
}

#[derive(Debug)]
pub struct DisentangledPositions {
    pub config: DisentangledConfig,
    /// [2 · span, hidden], normed where the family norms it.
    pub table: Tensor,
    span: usize,
}

/// What one forward needs of them.
pub enum RelativeState<'a> {
    None,
    Rope(Rotation<'a>),
    Alibi(&'a [f32]),
    Buckets { tables: &'a [Tensor], zero: usize },
    Disentangled(BucketRange),
    Gated(&'a GatedBuckets),
}

/// The part of the disentangled table that the distances of a batch reach.
pub struct BucketRange {
    pub first: usize,
    pub count: usize,
    /// By distance + zero.
    buckets: Vec<u32>,
    zero: usize,
}

impl RelativePositions {
    pub fn load(config: &EncoderConfig, parts: &Parameters<'_>) -> Result<Self> {
        Ok(match &config.relative {
            Relative::None => Self::None,
            Relative::Rope(rope) => {
                let positions = config.max_positions.unwrap_or(usize::MAX);
                let frequencies = parts.optional_exact(Part::RopeFrequencies)?;
                let rotations = Rotations::new(rope, positions, parts.device())?;
                let rotations = match parts.optional_exact(Part::RopeTable)? {
                    Some(table) => rotations.of_table(&table)?,
                    None => rotations,
                };
                Self::Rope(match frequencies {
                    Some(frequencies) => {
                        let frequencies: Vec<f32> = frequencies.flatten_all()?.to_vec1()?;
                        rotations.of_frequencies(frequencies, positions, parts.device())?
                    }
                    None => rotations,
                })
            }
            Relative::Alibi { slopes } => Self::Alibi(slopes.clone()),
            Relative::Buckets {
                count,
                farthest,
                directions,
            } => {
                let tables = if parts.names().separates_relative_tables() {
                    config.stored_layers()
                } else {
                    1
                };
                let table = |layer: usize| {
                    let place = Part::RelativeTable.at(0).expert(layer);
                    let table = parts.tensor(place)?.to_dtype(DType::F32)?;
                    lay_out_buckets(&table, *count, *farthest, *directions)
                };
                Self::Buckets {
                    tables: (0..tables).map(table).collect::<Result<_>>()?,
                    zero: *farthest,
                }
            }
            Relative::GatedBuckets { count, farthest } => {
                let table = parts.tensor(Part::RelativeTable)?;
                let buckets = buckets_of(&table, *count, *farthest, Directions::Both)?;
                let table = table.narrow(0, 0, *count)?.t()?.contiguous()?;
                Self::Gated(GatedBuckets {
                    table: table.unsqueeze(0)?,
                    buckets,
                    zero: *farthest,
                })
            }
            Relative::Disentangled(disentangled) => {
                Self::Disentangled(DisentangledPositions::load(*disentangled, config, parts)?)
            }
        })
    }

    pub fn state(&self, sequences: &PackedSequences, device: &Device) -> Result<RelativeState<'_>> {
        self.state_of(sequences.boundaries(), device)
    }

    /// Of sequences that end and begin at these rows.
    pub fn state_of(&self, boundaries: &[u32], device: &Device) -> Result<RelativeState<'_>> {
        let lengths = boundaries
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as usize);
        Ok(match self {
            Self::None => RelativeState::None,
            Self::Rope(rotations) => RelativeState::Rope(rotations.of_sequences(lengths, device)?),
            Self::Alibi(slopes) => RelativeState::Alibi(slopes),
            Self::Buckets { tables, zero } => RelativeState::Buckets {
                tables,
                zero: *zero,
            },
            Self::Disentangled(positions) => {
                RelativeState::Disentangled(positions.range(lengths.max().unwrap_or(0)))
            }
            Self::Gated(gated) => RelativeState::Gated(gated),
        })
    }
}

impl RelativePositions {
    /// The rotation of tokens at these positions of their sequences, where positions rotate.
    pub fn rotation(
        &self,
        positions: impl Iterator<Item = Range<usize>>,
        device: &Device,
    ) -> Result<Option<Rotation<'_>>> {
        let Self::Rope(rotations) = self else {
            return Ok(None);
        };
        let pieces = positions.map(|positions| Piece {
            positions,
            variant: 0,
            places: None,
        });
        let pieces: Vec<Piece> = pieces.collect();
        rotations.of(&pieces, device).map(Some)
    }

    /// A bias that is the same in every layer and batch.
    pub fn shared_bias(&self) -> AttentionBias<'_> {
        match self {
            Self::Alibi(slopes) => AttentionBias::Alibi(slopes),
            Self::Buckets { tables, zero } => match tables.first() {
                Some(table) => AttentionBias::Relative { table, zero: *zero },
                None => AttentionBias::None,
            },
            Self::None | Self::Rope(_) | Self::Disentangled(_) | Self::Gated(_) => {
                AttentionBias::None
            }
        }
    }
}

impl BucketRange {
    pub fn bias<'a>(
        &'a self,
        from_query: Option<&'a Tensor>,
        from_key: Option<&'a Tensor>,
    ) -> AttentionBias<'a> {
        AttentionBias::Disentangled(Disentangled {
            from_query: from_query.map(|scores| (scores, self.buckets.as_slice())),
            from_key: from_key.map(|scores| (scores, self.buckets.as_slice())),
            zero: self.zero,
        })
    }
}

impl DisentangledPositions {
    fn load(
        config: DisentangledConfig,
        encoder: &EncoderConfig,
        parts: &Parameters<'_>,
    ) -> Result<Self> {
        let table = parts.tensor(Part::RelativeTable)?;
        let span = config.buckets.unwrap_or(config.farthest);
        let rows = table.dim(0)?;
        if span == 0 || rows < 2 * span {
            return Err(Error::CorruptModel(format!(
                "a relative position table of {rows} rows does not hold {span} distances each way"
            )));
        }
        let table = table.narrow(0, 0, 2 * span)?;
        let table = if config.normed {
            parts
                .norm(Part::RelativeNorm, &[encoder.hidden_size], encoder.norm)?
                .forward(&table)?
        } else {
            table
        };
        Ok(Self {
            config,
            table,
            span,
        })
    }

    fn range(&self, longest: usize) -> BucketRange {
        let zero = longest.saturating_sub(1);
        let bucket = |distance: isize| {
            let relative = match self.config.buckets {
                Some(buckets) => log_bucket(-distance, buckets, self.config.farthest),
                None => -distance,
            };
            (relative + self.span as isize).clamp(0, 2 * self.span as isize - 1) as usize
        };
        let reach = zero as isize;
        let all: Vec<usize> = (-reach..=reach).map(bucket).collect();
        let first = all.iter().copied().min().unwrap_or(0);
        let last = all.iter().copied().max().unwrap_or(0);
        BucketRange {
            first,
            count: last - first + 1,
            buckets: all.iter().map(|&bucket| (bucket - first) as u32).collect(),
            zero,
        }
    }
}

/// [buckets, heads] by bucket to [heads, distances] by distance, from −farthest to farthest, or to 0
/// where nothing ahead is seen.
fn lay_out_buckets(
    table: &Tensor,
    count: usize,
    farthest: usize,
    directions: Directions,
) -> Result<Tensor> {
    let buckets = buckets_of(table, count, farthest, directions)?;
    let buckets = Tensor::from_slice(&buckets, buckets.len(), table.device())?;
    Ok(table.index_select(&buckets, 0)?.t()?.contiguous()?)
}

/// The row of [buckets, heads] that each distance has.
fn buckets_of(
    table: &Tensor,
    count: usize,
    farthest: usize,
    directions: Directions,
) -> Result<Vec<u32>> {
    let (rows, _) = table.dims2()?;
    let (side, ahead) = match directions {
        Directions::Both => (count / 2, farthest),
        Directions::Back => (count, 0),
    };
    if count < 4 || rows < count || farthest <= side / 2 || farthest > MOST_DISTANCES {
        return Err(Error::CorruptModel(format!(
            "a relative position table of {rows} rows does not hold {count} buckets up to {farthest}"
        )));
    }
    Ok((-(farthest as isize)..=ahead as isize)
        .map(|distance| {
            let start = if distance > 0 { side } else { 0 };
            (start + bucket(distance.unsigned_abs(), side, farthest)) as u32
        })
        .collect())
}

/// A distance in one direction: half of its `count` buckets for single distances, the rest logarithmic
/// up to `farthest`. In single precision, since the reference's edges are.
fn bucket(away: usize, count: usize, farthest: usize) -> usize {
    let exact = count / 2;
    if away < exact {
        return away;
    }
    let ratio = (away as f32 / exact as f32).ln() / (farthest as f32 / exact as f32).ln();
    let far = exact + (ratio * (count - exact) as f32) as usize;
    far.min(count - 1)
}

/// DeBERTa-v2's: exact up to half of the buckets, logarithmic beyond, symmetric around 0.
fn log_bucket(relative: isize, buckets: usize, farthest: usize) -> isize {
    let middle = buckets as isize / 2;
    if relative.abs() <= middle {
        return relative;
    }
    let ratio = (relative.abs() as f32 / middle as f32).ln()
        / ((farthest as isize - 1) as f32 / middle as f32).ln();
    let bucket = (ratio * (middle - 1) as f32).ceil() as isize + middle;
    bucket * relative.signum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grow_with_distance_and_tell_directions_apart() {
        let heads = 1;
        let table = Tensor::arange(0f32, 32f32, &Device::Cpu).unwrap();
        let table = table.reshape((32, heads)).unwrap();
        let laid_out = |directions| -> Vec<f32> {
            let table = lay_out_buckets(&table, 32, 128, directions).unwrap();
            table.flatten_all().unwrap().to_vec1().unwrap()
        };
        let both = laid_out(Directions::Both);
        let of = |distance: isize| both[(128 + distance) as usize];
        assert_eq!([of(0), of(-7), of(7), of(128)], [0.0, 7.0, 23.0, 31.0]);
        let back = laid_out(Directions::Back);
        assert_eq!(
            (back.len(), back[128], back[128 - 15], back[0]),
            (129, 0.0, 15.0, 31.0)
        );
        assert_eq!(log_bucket(-3, 8, 40), -3);
        assert_eq!(log_bucket(39, 8, 40), 7);
        assert_eq!(log_bucket(-39, 8, 40), -7);
    }
}
