//! One vector per packed sequence.

use crate::{Error, Result};
use candle_core::{DType, Tensor};

use super::{elementwise, PackedSequences};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    Mean,
    /// The first token's vector.
    Cls,
    Max,
    Last,
    /// Later tokens weigh more: the i-th of the sequence counts i times.
    WeightedMean,
    /// The sum over the square root of the length.
    MeanSqrtLength,
}

impl Pooling {
    pub fn parse(name: &str) -> Result<Self> {
        match name.to_ascii_lowercase().as_str() {
            "mean" | "pooled" | "mean_tokens" => Ok(Self::Mean),
            "cls" | "cls_token" => Ok(Self::Cls),
            "max" | "max_tokens" => Ok(Self::Max),
            "last" | "lasttoken" | "last_token" => Ok(Self::Last),
            "weighted_mean" | "weightedmean" => Ok(Self::WeightedMean),
            "mean_sqrt_len" | "mean_sqrt_len_tokens" | "mean_sqrt_length" => {
                Ok(Self::MeanSqrtLength)
            }
            _ => Err(Error::InvalidInput(format!(
                "unknown pooling {name:?}: use mean, cls, max, last, weighted_mean or mean_sqrt_len"
            ))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Max => "max",
            Self::Last => "last",
            Self::WeightedMean => "weighted_mean",
            Self::MeanSqrtLength => "mean_sqrt_len",
        }
    }

    /// `hidden` is [tokens, width]; the result f32 [sequences, width]. The first `skipped` tokens of
    /// each sequence are left out. A sequence with no token left gives zeros.
    pub fn pool(
        self,
        hidden: &Tensor,
        sequences: &PackedSequences,
        skipped: usize,
    ) -> Result<Tensor> {
        let hidden = hidden.to_dtype(DType::F32)?;
        let ranges: Vec<_> = sequences
            .ranges()
            .map(|range| (range.start + skipped).min(range.end)..range.end)
            .collect();
        let (_, width) = hidden.dims2()?;
        let lengths = || ranges.iter().map(|range| range.len() as f32);
        let device = hidden.device();
        match self {
            Self::Mean if skipped == 0 => kernels::mean_pool(&hidden, sequences.boundaries()),
            Self::Mean => weighted(&hidden, &ranges, |_| 1.0, lengths().collect(), sequences),
            Self::WeightedMean => {
                let sums = ranges
                    .iter()
                    .map(|range| (skipped + 1..=skipped + range.len()).sum::<usize>() as f32);
                weighted(
                    &hidden,
                    &ranges,
                    |i| (skipped + i + 1) as f32,
                    sums.collect(),
                    sequences,
                )
            }
            Self::MeanSqrtLength => weighted(
                &hidden,
                &ranges,
                |_| 1.0,
                lengths().map(f32::sqrt).collect(),
                sequences,
            ),
            Self::Cls => pick(&hidden, &rows(&ranges, |range| range.start)),
            Self::Last => pick(&hidden, &rows(&ranges, |range| range.end - 1)),
            Self::Max => {
                let rows = ranges.iter().map(|range| {
                    if range.is_empty() {
                        return Ok(Tensor::zeros(width, DType::F32, device)?);
                    }
                    Ok(hidden.narrow(0, range.start, range.len())?.max(0)?)
                });
                stack(rows.collect::<Result<Vec<_>>>()?, width, device)
            }
        }
    }
}

type Range = std::ops::Range<usize>;

/// Σ weight(i) · row / divisor, over the rows of each range.
fn weighted(
    hidden: &Tensor,
    ranges: &[Range],
    weight: impl Fn(usize) -> f32,
    divisors: Vec<f32>,
    sequences: &PackedSequences,
) -> Result<Tensor> {
    let mut weights = vec![0f32; sequences.tokens()];
    for (range, (divisor, whole)) in ranges.iter().zip(divisors.iter().zip(sequences.ranges())) {
        let scale = whole.len() as f32 / divisor.max(1e-9);
        for (i, slot) in weights[range.clone()].iter_mut().enumerate() {
            *slot = weight(i) * scale;
        }
    }
    let weights = Tensor::from_vec(weights, (sequences.tokens(), 1), hidden.device())?;
    kernels::mean_pool(
        &elementwise::multiply(hidden, &weights)?,
        sequences.boundaries(),
    )
}

/// One row per range that has any.
fn rows(ranges: &[Range], row: impl Fn(&Range) -> usize) -> Vec<Option<usize>> {
    let row = |range: &Range| (!range.is_empty()).then(|| row(range));
    ranges.iter().map(row).collect()
}

/// These rows of `hidden`, in f32; zeros where there is none.
pub fn pick(hidden: &Tensor, rows: &[Option<usize>]) -> Result<Tensor> {
    let (tokens, width) = hidden.dims2()?;
    let device = hidden.device();
    if tokens == 0 {
        return Ok(Tensor::zeros((rows.len(), width), DType::F32, device)?);
    }
    let indexes: Vec<u32> = rows.iter().map(|row| row.unwrap_or(0) as u32).collect();
    let indexes = Tensor::from_vec(indexes, rows.len(), device)?;
    let picked = hidden.index_select(&indexes, 0)?.to_dtype(DType::F32)?;
    if rows.iter().all(Option::is_some) {
        return Ok(picked);
    }
    let kept: Vec<f32> = rows.iter().map(|row| f32::from(row.is_some())).collect();
    elementwise::multiply(&picked, &Tensor::from_vec(kept, (rows.len(), 1), device)?)
}

fn stack(rows: Vec<Tensor>, width: usize, device: &candle_core::Device) -> Result<Tensor> {
    if rows.is_empty() {
        return Ok(Tensor::zeros((0, width), DType::F32, device)?);
    }
    Ok(Tensor::stack(&rows, 0)?)
}
