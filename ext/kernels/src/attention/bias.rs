//! Biases of attention scores, with their tensors read out.

use candle_core::{DType, Tensor};

use super::{AttentionBias, AttentionOptions, AttentionShape};
use crate::{Error, Result};

pub enum Biases<'a> {
    None,
    Alibi(&'a [f32]),
    Relative {
        table: Vec<f32>,
        distances: usize,
        zero: usize,
    },
    Disentangled {
        from_query: Option<BucketScores<'a>>,
        from_key: Option<BucketScores<'a>>,
        zero: usize,
        heads: usize,
    },
    /// Of windows of `area` tokens, one behind the other.
    Windows {
        area: usize,
        /// [heads, area, area]
        of_heads: Vec<f32>,
        /// [windows, area, area]
        of_windows: Option<Vec<f32>>,
    },
}

/// Slopes and tables are one per head.
pub fn check_heads(bias: &AttentionBias<'_>, heads: usize) -> Result<()> {
    match bias {
        AttentionBias::Alibi(slopes) if slopes.len() != heads => Err(Error::InvalidInput(format!(
            "attention: {} ALiBi slopes for {heads} heads",
            slopes.len(),
        ))),
        AttentionBias::Relative { table, .. } => match table.dims2()? {
            (rows, distances) if rows == heads && distances > 0 => Ok(()),
            _ => Err(Error::InvalidInput(format!(
                "attention: a relative bias of shape {:?} does not fit {heads} heads",
                table.dims(),
            ))),
        },
        _ => Ok(()),
    }
}

/// How many buckets the scores of a token and head are for; every bucket must be among them.
pub fn bucket_width(
    scores: &Tensor,
    buckets: &[u32],
    tokens: usize,
    heads: usize,
) -> Result<usize> {
    let (rows, columns, width) = scores.dims3()?;
    let inside = !buckets.is_empty() && buckets.iter().all(|&b| (b as usize) < width);
    if rows == tokens && columns == heads && inside {
        return Ok(width);
    }
    Err(Error::InvalidInput(format!(
        "attention: disentangled scores of shape {:?} do not fit {tokens} tokens, {heads} heads \
         and their buckets",
        scores.dims()
    )))
}

pub struct BucketScores<'a> {
    scores: Vec<f32>,
    width: usize,
    buckets: &'a [u32],
}

impl<'a> BucketScores<'a> {
    fn read(
        side: Option<(&Tensor, &'a [u32])>,
        tokens: usize,
        heads: usize,
    ) -> Result<Option<Self>> {
        let Some((tensor, buckets)) = side else {
            return Ok(None);
        };
        let width = bucket_width(tensor, buckets, tokens, heads)?;
        let scores = tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
        Ok(Some(Self {
            scores,
            width,
            buckets,
        }))
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.scores[row * self.width..(row + 1) * self.width]
    }

    fn bucket(&self, distance: isize, zero: usize) -> usize {
        self.buckets[column(distance, zero, self.buckets.len())] as usize
    }
}

impl<'a> Biases<'a> {
    pub fn read(options: &AttentionOptions<'a>, shape: &AttentionShape) -> Result<Self> {
        check_heads(&options.bias, shape.heads)?;
        match options.bias {
            AttentionBias::None => Ok(Self::None),
            AttentionBias::Alibi(slopes) => Ok(Self::Alibi(slopes)),
            AttentionBias::Relative { table, zero } => {
                let (_, distances) = table.dims2()?;
                let table = table.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
                Ok(Self::Relative {
                    table,
                    distances,
                    zero,
                })
            }
            AttentionBias::Disentangled(sides) => Ok(Self::Disentangled {
                from_query: BucketScores::read(sides.from_query, shape.tokens, shape.heads)?,
                from_key: BucketScores::read(sides.from_key, shape.key_tokens, shape.heads)?,
                zero: sides.zero,
                heads: shape.heads,
            }),
        }
    }

    /// Adds the biases of a run of keys to their scores. `distance` is the first key's.
    pub fn add(&self, scores: &mut [f32], head: usize, query: usize, key: usize, distance: isize) {
        match self {
            Self::None => {}
            Self::Alibi(slopes) => {
                for (score, distance) in scores.iter_mut().zip(distance..) {
                    *score -= slopes[head] * distance.unsigned_abs() as f32;
                }
            }
            Self::Relative {
                table,
                distances,
                zero,
            } => {
                let table = &table[head * distances..(head + 1) * distances];
                for (score, distance) in scores.iter_mut().zip(distance..) {
                    *score += table[column(distance, *zero, *distances)];
                }
            }
            Self::Windows {
                area,
                of_heads,
                of_windows,
            } => {
                let (place, key) = (query % area, key % area);
                let row = &of_heads[(head * area + place) * area + key..];
                scores
                    .iter_mut()
                    .zip(row)
                    .for_each(|(score, bias)| *score += bias);
                if let Some(of_windows) = of_windows {
                    let row = &of_windows[query * area + key..];
                    scores
                        .iter_mut()
                        .zip(row)
                        .for_each(|(score, bias)| *score += bias);
                }
            }
            Self::Disentangled {
                from_query,
                from_key,
                zero,
                heads,
            } => {
                if let Some(side) = from_query {
                    let row = side.row(query * heads + head);
                    for (score, distance) in scores.iter_mut().zip(distance..) {
                        *score += row[side.bucket(distance, *zero)];
                    }
                }
                if let Some(side) = from_key {
                    for (i, score) in scores.iter_mut().enumerate() {
                        let row = side.row((key + i) * heads + head);
                        *score += row[side.bucket(distance + i as isize, *zero)];
                    }
                }
            }
        }
    }
}

/// Where a distance stands in a table of `count` distances, of which `zero` is distance 0.
fn column(distance: isize, zero: usize, count: usize) -> usize {
    (distance + zero as isize).clamp(0, count as isize - 1) as usize
}
