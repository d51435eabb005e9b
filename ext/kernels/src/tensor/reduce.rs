//! Sums, means, extremes: many elements to one.

use std::str::FromStr;

use candle_core::{DType, Device, Tensor, WithDType};
use rayon::prelude::*;

use super::dtype::for_dtype;
use super::shape::{contiguous, dimension};
use super::storage::{on_cpu, read, to_dtype, CHUNK, PARALLEL};
use crate::{CancelToken, Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Sum,
    Mean,
    /// With Bessel's correction: divided by one less than the number of elements.
    Variance,
    /// Divided by the number of elements.
    PopulationVariance,
    Norm,
    Max,
    Min,
    ArgMax,
    ArgMin,
}

impl FromStr for Reduction {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "sum" => Self::Sum,
            "mean" => Self::Mean,
            "var" => Self::Variance,
            "population_var" => Self::PopulationVariance,
            "norm" => Self::Norm,
            "max" => Self::Max,
            "min" => Self::Min,
            "argmax" => Self::ArgMax,
            "argmin" => Self::ArgMin,
            other => {
                return Err(Error::Internal(format!(
                    "there is no tensor reduction {other:?}"
                )))
            }
        })
    }
}

/// Reduces over `axes`, or over everything when there are none. With `keep` the reduced dimensions
/// stay, with size 1.
pub fn reduce(
    reduction: Reduction,
    tensor: &Tensor,
    axes: Option<&[i64]>,
    keep: bool,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let reduced = reduced_axes(tensor.dims(), axes)?;
    let kept: Vec<usize> = (0..tensor.rank())
        .filter(|d| !reduced.contains(d))
        .collect();
    let size_of_axes = |axes: &[usize]| axes.iter().map(|&d| tensor.dims()[d]).product::<usize>();
    let (outer, inner) = (size_of_axes(&kept), size_of_axes(&reduced));
    let picks = matches!(
        reduction,
        Reduction::Max | Reduction::Min | Reduction::ArgMax | Reduction::ArgMin
    );
    if picks && inner == 0 {
        return Err(Error::InvalidInput(format!(
            "{} of no elements is not defined (shape {:?})",
            format!("{reduction:?}").to_lowercase(),
            tensor.dims()
        )));
    }
    let order: Vec<usize> = kept.iter().chain(&reduced).copied().collect();
    let rows = contiguous(&tensor.permute(order)?, cancel)?.reshape((outer, inner))?;
    let result = if on_cpu(tensor) {
        reduce_rows(reduction, &rows, cancel)?
    } else {
        reduce_rows_on_gpu(reduction, &rows)?
    };
    let shape: Vec<usize> = (0..tensor.rank())
        .filter_map(|d| {
            if reduced.contains(&d) {
                keep.then_some(1)
            } else {
                Some(tensor.dims()[d])
            }
        })
        .collect();
    Ok(result.reshape(shape)?)
}

fn reduced_axes(dims: &[usize], axes: Option<&[i64]>) -> Result<Vec<usize>> {
    let Some(axes) = axes else {
        return Ok((0..dims.len()).collect());
    };
    let mut reduced: Vec<usize> = axes
        .iter()
        .map(|&axis| dimension(dims, axis))
        .collect::<Result<_>>()?;
    reduced.sort_unstable();
    if reduced.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::InvalidInput(format!(
            "axes {axes:?} name a dimension of shape {dims:?} twice"
        )));
    }
    Ok(reduced)
}

/// Integers sum up as i64, and their means are f32.
fn result_dtype(reduction: Reduction, dtype: DType) -> DType {
    match reduction {
        Reduction::ArgMax | Reduction::ArgMin => DType::U32,
        Reduction::Max | Reduction::Min => dtype,
        _ if dtype.is_float() => dtype,
        Reduction::Sum => DType::I64,
        _ => DType::F32,
    }
}

fn reduce_rows(reduction: Reduction, rows: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
    let dtype = result_dtype(reduction, rows.dtype());
    if reduction == Reduction::Sum && rows.dtype().is_int() {
        let rows = to_dtype(rows, DType::I64, cancel)?;
        return each_row::<i64, i64>(&rows, cancel, |row| {
            let parts = parts(row, cancel, |_, part| {
                part.iter().fold(0i64, |sum, &x| sum.wrapping_add(x))
            })?;
            Ok(parts.into_iter().fold(0, i64::wrapping_add))
        });
    }
    let result = for_dtype!(rows.dtype(), T => match reduction {
        Reduction::Max | Reduction::Min => each_row::<T, T>(rows, cancel, |row| {
            Ok(row[extreme(row, reduction == Reduction::Max, cancel)?])
        }),
        Reduction::ArgMax | Reduction::ArgMin => each_row::<T, u32>(rows, cancel, |row| {
            let index = extreme(row, reduction == Reduction::ArgMax, cancel)?;
            u32::try_from(index).map_err(|_| Error::InvalidInput(format!("index {index} does not fit u32")))
        }),
        _ => each_row::<T, f64>(rows, cancel, |row| statistic(reduction, row, cancel)),
    })?;
    to_dtype(&result, dtype, cancel)
}

/// Sums are accumulated in f64, variances in two passes.
fn statistic<T: WithDType>(reduction: Reduction, row: &[T], cancel: &CancelToken) -> Result<f64> {
    let count = row.len() as f64;
    let total = |term: &(dyn Fn(f64) -> f64 + Sync)| -> Result<f64> {
        let parts = parts(row, cancel, |_, part| {
            part.iter().map(|x| term(x.to_f64())).sum::<f64>()
        })?;
        Ok(parts.into_iter().sum())
    };
    let sum = || -> Result<f64> {
        let parts = parts(row, cancel, |_, part| lane_sum(part))?;
        Ok(parts.into_iter().sum())
    };
    Ok(match reduction {
        Reduction::Sum => sum()?,
        Reduction::Mean => sum()? / count,
        Reduction::Norm => total(&|x| x * x)?.sqrt(),
        _ => {
            let mean = sum()? / count;
            let squares = total(&|x| (x - mean) * (x - mean))?;
            squares / (count - f64::from(u8::from(reduction == Reduction::Variance)))
        }
    })
}

/// A sum in independent lanes, which the compiler turns into vector instructions.
fn lane_sum<T: WithDType>(part: &[T]) -> f64 {
    let mut lanes = [0f64; 8];
    let groups = part.chunks_exact(lanes.len());
    let rest: f64 = groups.remainder().iter().map(|x| x.to_f64()).sum();
    for group in groups {
        for (lane, x) in lanes.iter_mut().zip(group) {
            *lane += x.to_f64();
        }
    }
    lanes.iter().sum::<f64>() + rest
}

/// The index of the first greatest (or least) element; NaN beats all, as in numpy.
fn extreme<T: WithDType>(row: &[T], greatest: bool, cancel: &CancelToken) -> Result<usize> {
    let is_nan = |x: T| x.partial_cmp(&x).is_none();
    let beats = |x: T, best: T| {
        (if greatest { x > best } else { x < best }) || (is_nan(x) && !is_nan(best))
    };
    let better = |best: usize, index: usize| {
        if beats(row[index], row[best]) {
            index
        } else {
            best
        }
    };
    let parts = parts(row, cancel, |start, part| {
        (start..start + part.len()).fold(start, better)
    })?;
    Ok(parts.into_iter().reduce(better).unwrap_or_default())
}

/// The results of `reduce(start, part)` over the parts of a row, in order.
fn parts<T: Sync, A: Send>(
    row: &[T],
    cancel: &CancelToken,
    reduce: impl Fn(usize, &[T]) -> A + Sync,
) -> Result<Vec<A>> {
    let one = |(index, part): (usize, &[T])| {
        cancel.check()?;
        Ok(reduce(index * CHUNK, part))
    };
    if row.len() < PARALLEL {
        return row.chunks(CHUNK).enumerate().map(one).collect();
    }
    row.par_chunks(CHUNK).enumerate().map(one).collect()
}

fn each_row<T: WithDType, U: WithDType>(
    rows: &Tensor,
    cancel: &CancelToken,
    reduce: impl Fn(&[T]) -> Result<U> + Sync,
) -> Result<Tensor> {
    let (outer, inner) = rows.dims2()?;
    let results: Vec<U> = read::<T, _>(rows, cancel, |all| {
        let row = |index: usize| reduce(&all[index * inner..(index + 1) * inner]);
        if all.len().max(outer) < PARALLEL {
            return (0..outer).map(row).collect();
        }
        rows_over_the_pool(outer, CHUNK / inner.clamp(1, CHUNK), &row)
    })?;
    Ok(Tensor::from_vec(results, outer, &Device::Cpu)?)
}

/// The results of `row` for so many rows, at least `least` of them by one task. Compiled once per element type.
fn rows_over_the_pool<U: Send>(
    count: usize,
    least: usize,
    row: &(dyn Fn(usize) -> Result<U> + Sync),
) -> Result<Vec<U>> {
    let rows = (0..count).into_par_iter().with_min_len(least);
    rows.map(row).collect()
}

fn reduce_rows_on_gpu(reduction: Reduction, rows: &Tensor) -> Result<Tensor> {
    let count = rows.dim(1)? as f64;
    let spread = |divisor: f64| -> Result<Tensor> {
        let mean = (rows.sum_keepdim(1)? / count)?;
        Ok((rows.broadcast_sub(&mean)?.sqr()?.sum(1)? / divisor)?)
    };
    let dtype = result_dtype(reduction, rows.dtype());
    let rows = match reduction {
        Reduction::Max | Reduction::Min | Reduction::ArgMax | Reduction::ArgMin => rows.clone(),
        _ => rows.to_dtype(dtype)?,
    };
    let result = match reduction {
        Reduction::Sum => rows.sum(1)?,
        Reduction::Mean => (rows.sum(1)? / count)?,
        Reduction::Variance => spread(count - 1.0)?,
        Reduction::PopulationVariance => spread(count)?,
        Reduction::Norm => rows.sqr()?.sum(1)?.sqrt()?,
        Reduction::Max => rows.max(1)?,
        Reduction::Min => rows.min(1)?,
        Reduction::ArgMax => rows.argmax(1)?,
        Reduction::ArgMin => rows.argmin(1)?,
    };
    Ok(result.to_dtype(dtype)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_keep_their_digits_and_long_rows_their_extremes() {
        let cancel = CancelToken::new();
        let all = |reduction, tensor: &Tensor| {
            base::runtime::threads::install(|| reduce(reduction, tensor, None, false, &cancel))
                .unwrap()
                .unwrap()
        };
        let ones = Tensor::ones(20_000_001, DType::F32, &Device::Cpu).unwrap();
        let sum = all(Reduction::Sum, &ones).to_scalar::<f32>().unwrap();
        assert_eq!(sum, 20_000_000.0);
        let mut values = vec![1f32; 200_000];
        values[150_000] = 5.0;
        let long = Tensor::new(values, &Device::Cpu).unwrap();
        assert_eq!(
            all(Reduction::ArgMax, &long).to_scalar::<u32>().unwrap(),
            150_000
        );
        assert_eq!(all(Reduction::ArgMin, &long).to_scalar::<u32>().unwrap(), 0);
    }
}
