//! How tokens are mixed where that is not attention to all or to a window: Fourier transforms, landmarks, blocks,
//! and tokens that see all others. In f32, sequence by sequence.

use std::f64::consts::PI;
use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::spans::Spans;
use crate::nn::elementwise;
use crate::{CancelToken, Result};
use kernels::tensor;

/// Steps towards the inverse of the landmarks' scores.
const INVERSION_STEPS: usize = 6;

/// Queries that are computed at once.
const CHUNK: usize = 256;

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    tensor::matmul::matmul(a, b, &CancelToken::new())
}

fn softmax(x: &Tensor) -> Result<Tensor> {
    tensor::normalize::softmax(&x.contiguous()?, -1, &CancelToken::new())
}

/// Cosines and sines of the discrete Fourier transform of so many values: [count, count] each.
#[derive(Debug)]
pub struct Fourier {
    cosines: Tensor,
    sines: Tensor,
}

impl Fourier {
    pub fn new(count: usize, device: &Device) -> Result<Self> {
        let angle = |index: usize| -2.0 * PI * (index % count) as f64 / count as f64;
        let by_remainder: Vec<(f32, f32)> = (0..count)
            .map(|index| (angle(index).cos() as f32, angle(index).sin() as f32))
            .collect();
        let places = || (0..count).flat_map(|row| (0..count).map(move |column| row * column));
        let cosines: Vec<f32> = places().map(|at| by_remainder[at % count].0).collect();
        let sines: Vec<f32> = places().map(|at| by_remainder[at % count].1).collect();
        Ok(Self {
            cosines: Tensor::from_vec(cosines, (count, count), device)?,
            sines: Tensor::from_vec(sines, (count, count), device)?,
        })
    }

    /// The real part of the transform over the tokens of each sequence and over their dimensions, which `self` is of.
    pub fn mix(&self, x: &Tensor, spans: &Spans<'_>) -> Result<Tensor> {
        let wide = x.to_dtype(DType::F32)?;
        let (cosines, sines) = (product(&wide, &self.cosines)?, product(&wide, &self.sines)?);
        let mut rows = Vec::new();
        for range in spans.ranges().filter(|range| !range.is_empty()) {
            let over_tokens = Self::new(range.len(), x.device())?;
            let part = |all: &Tensor| all.narrow(0, range.start, range.len());
            let real = product(&over_tokens.cosines, &part(&cosines)?)?;
            let imaginary = product(&over_tokens.sines, &part(&sines)?)?;
            rows.push(elementwise::add(
                &real,
                &elementwise::scale(&imaginary, -1.0)?,
            )?);
        }
        Ok(Tensor::cat(&rows, 0)?.to_dtype(x.dtype())?)
    }
}

/// Queries, keys and values of all tokens, and of those that are attended to: [tokens, heads, width].
pub struct Heads<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub attended_k: &'a Tensor,
    pub attended_v: &'a Tensor,
    pub scale: f32,
}

/// [heads, tokens, width] in f32 of some tokens.
fn by_head(x: &Tensor, range: &Range<usize>) -> Result<Tensor> {
    let part = x.narrow(0, range.start, range.len())?;
    Ok(part.transpose(0, 1)?.contiguous()?.to_dtype(DType::F32)?)
}

fn transposed(x: &Tensor) -> Result<Tensor> {
    Ok(x.transpose(1, 2)?.contiguous()?)
}

/// softmax(scale · q kᵀ + bias) v of [heads, tokens, width], as [tokens, heads, width].
fn dense(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, bias: Option<&Tensor>) -> Result<Tensor> {
    let mut scores = elementwise::scale(&product(q, &transposed(k)?)?, scale)?;
    if let Some(bias) = bias {
        scores = elementwise::add(&scores, bias)?;
    }
    let mixed = product(&softmax(&scores)?, v)?;
    Ok(mixed.transpose(0, 1)?.contiguous()?)
}

impl Heads<'_> {
    /// Attention through the means of `count` segments of each sequence.
    pub fn through_landmarks(&self, spans: &Spans<'_>, count: usize) -> Result<Tensor> {
        let mut rows = Vec::new();
        for (range, attended) in spans.ranges().zip(spans.attended_ranges()) {
            if range.is_empty() {
                continue;
            }
            let (q, k) = (by_head(self.q, &range)?, by_head(self.k, &range)?);
            let means = |x: &Tensor| -> Result<Tensor> {
                let (heads, tokens, width) = x.dims3()?;
                let segments = x.reshape((heads, count, tokens / count, width))?;
                Ok(segments.mean(2)?)
            };
            let (q_means, k_means) = (means(&q)?, means(&k)?);
            let weights = |q: &Tensor, k: &Tensor| -> Result<Tensor> {
                softmax(&elementwise::scale(
                    &product(q, &transposed(k)?)?,
                    self.scale,
                )?)
            };
            let keys = by_head(self.attended_k, &attended)?;
            let values = by_head(self.attended_v, &attended)?;
            let gathered = product(&weights(&q_means, &keys)?, &values)?;
            let inverse = inverted(&weights(&q_means, &k_means)?)?;
            let spread = product(&weights(&q, &k_means)?, &inverse)?;
            rows.push(product(&spread, &gathered)?.transpose(0, 1)?);
        }
        Ok(Tensor::cat(&rows, 0)?.contiguous()?)
    }

    /// Blocks of `size` queries see the first and the last block, their own and its neighbours. The first block
    /// counts once more for each of `random` blocks, as which the reference takes it outside of training. The first
    /// and the last block of queries, and sequences shorter than `from`, see everything.
    pub fn in_blocks(
        &self,
        spans: &Spans<'_>,
        size: usize,
        random: usize,
        from: usize,
    ) -> Result<Tensor> {
        let mut rows = Vec::new();
        for range in spans.ranges().filter(|range| !range.is_empty()) {
            let q = by_head(self.q, &range)?;
            let k = by_head(self.attended_k, &range)?;
            let v = by_head(self.attended_v, &range)?;
            let tokens = range.len();
            if tokens < from {
                rows.push(dense(&q, &k, &v, self.scale, None)?);
                continue;
            }
            let last = tokens.div_ceil(size) - 1;
            for block in 0..=last {
                let queries = q.narrow(1, block * size, size.min(tokens - block * size))?;
                if block == 0 || block == last {
                    rows.push(dense(&queries, &k, &v, self.scale, None)?);
                    continue;
                }
                let (keys, bias) = self.block_keys(block, last, (size, random), tokens)?;
                let seen = |x: &Tensor| Ok::<_, crate::Error>(x.index_select(&keys, 1)?);
                rows.push(dense(
                    &queries,
                    &seen(&k)?,
                    &seen(&v)?,
                    self.scale,
                    Some(&bias),
                )?);
            }
        }
        Ok(Tensor::cat(&rows, 0)?)
    }

    /// The keys that a block between the outer ones sees, and what is added to their scores.
    fn block_keys(
        &self,
        block: usize,
        last: usize,
        (size, random): (usize, usize),
        tokens: usize,
    ) -> Result<(Tensor, Tensor)> {
        let mut blocks = vec![0, block - 1, block, block + 1, last];
        blocks.dedup();
        let extra = ((1 + random) as f32).ln();
        let mut keys = Vec::new();
        let mut bias = Vec::new();
        for block in blocks {
            let block_keys = block * size..((block + 1) * size).min(tokens);
            bias.extend(
                block_keys
                    .clone()
                    .map(|_| if block == 0 { extra } else { 0.0 }),
            );
            keys.extend(block_keys.map(|key| key as u32));
        }
        let (device, count) = (self.q.device(), keys.len());
        Ok((
            Tensor::from_vec(keys, count, device)?,
            Tensor::from_vec(bias, (1, 1, count), device)?,
        ))
    }

    /// Attention to the tokens within `reach` and to those that see all.
    pub fn in_windows_and_to_some(&self, spans: &Spans<'_>, reach: usize) -> Result<Tensor> {
        let mut rows = Vec::new();
        for range in spans.ranges().filter(|range| !range.is_empty()) {
            let shared: Vec<usize> = spans.rows_that_see_all(&range);
            let shared: Vec<usize> = shared.iter().map(|row| row - range.start).collect();
            let q = by_head(self.q, &range)?;
            let k = by_head(self.attended_k, &range)?;
            let v = by_head(self.attended_v, &range)?;
            for first in (0..range.len()).step_by(CHUNK) {
                let queries = first..(first + CHUNK).min(range.len());
                let near = first.saturating_sub(reach)..(queries.end + reach).min(range.len());
                let mut keys: Vec<usize> = near.clone().collect();
                keys.extend(shared.iter().filter(|key| !near.contains(key)));
                let seen = |query: usize, key: usize| {
                    let is_seen = query.abs_diff(key) <= reach || shared.contains(&key);
                    if is_seen {
                        0.0
                    } else {
                        f32::NEG_INFINITY
                    }
                };
                let pairs = queries
                    .clone()
                    .flat_map(|query| keys.iter().map(move |&key| (query, key)));
                let bias: Vec<f32> = pairs.map(|(query, key)| seen(query, key)).collect();
                let device = self.q.device();
                let bias = Tensor::from_vec(bias, (1, queries.len(), keys.len()), device)?;
                let count = keys.len();
                let keys: Vec<u32> = keys.into_iter().map(|key| key as u32).collect();
                let keys = Tensor::from_vec(keys, count, device)?;
                let part = q.narrow(1, first, queries.len())?;
                let (k, v) = (k.index_select(&keys, 1)?, v.index_select(&keys, 1)?);
                rows.push(dense(&part, &k, &v, self.scale, Some(&bias))?);
            }
        }
        Ok(Tensor::cat(&rows, 0)?)
    }
}

/// What the tokens that see all others make of their sequences, in the place of their rows of `mixed`. All are
/// [tokens, heads, width].
pub fn replace_rows_that_see_all(
    mixed: &Tensor,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    scale: f32,
    spans: &Spans<'_>,
) -> Result<Tensor> {
    let tokens = mixed.dim(0)?;
    let mut sources: Vec<u32> = (0..tokens as u32).collect();
    let mut all = vec![mixed.to_dtype(DType::F32)?];
    let mut next = tokens as u32;
    for range in spans.ranges() {
        let rows = spans.rows_that_see_all(&range);
        if rows.is_empty() {
            continue;
        }
        let indices: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let indices = Tensor::from_vec(indices, rows.len(), q.device())?;
        let queries = q.contiguous()?.index_select(&indices, 0)?;
        let queries = by_head(&queries, &(0..rows.len()))?;
        all.push(dense(
            &queries,
            &by_head(k, &range)?,
            &by_head(v, &range)?,
            scale,
            None,
        )?);
        for row in rows {
            sources[row] = next;
            next += 1;
        }
    }
    let sources = Tensor::from_vec(sources, tokens, mixed.device())?;
    let replaced = Tensor::cat(&all, 0)?.index_select(&sources, 0)?;
    Ok(replaced.to_dtype(mixed.dtype())?)
}

/// The inverse of the matrices of a batch, [heads, n, n], approached from their transposes.
fn inverted(matrices: &Tensor) -> Result<Tensor> {
    let (_, size, _) = matrices.dims3()?;
    let identity = Tensor::eye(size, DType::F32, matrices.device())?.unsqueeze(0)?;
    let most: f32 = matrices.sum(1)?.max_all()?.to_scalar()?;
    let mut inverse = elementwise::scale(&transposed(matrices)?, 1.0 / most)?;
    let less = |factor: f32, x: &Tensor| -> Result<Tensor> {
        elementwise::add(
            &elementwise::scale(&identity, factor)?,
            &elementwise::scale(x, -1.0)?,
        )
    };
    for _ in 0..INVERSION_STEPS {
        let both = product(matrices, &inverse)?;
        let inner = product(&both, &less(7.0, &both)?)?;
        let inner = product(&both, &less(15.0, &inner)?)?;
        inverse = product(&elementwise::scale(&inverse, 0.25)?, &less(13.0, &inner)?)?;
    }
    Ok(inverse)
}
