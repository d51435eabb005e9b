//! Matrix products: batched, broadcasting, and interruptible.

use candle_core::{DType, Layout, Storage, Tensor};
use gemm::{gemm, Parallelism};

use super::dtype::promote;
use super::elementwise::{in_wide_float, require_float};
use super::shape::{broadcast, contiguous};
use super::storage::{on_cpu, to_dtype};
use crate::cpu::{build, for_each_range};
use crate::{CancelToken, Error, Result};
use base::runtime::memory::{self, ensure_elements};

/// Multiplications between two looks at the cancel token: some ten milliseconds of work.
const BLOCK: usize = 1 << 27;
/// Fewer rows per block would have the right matrix repacked too often.
const ROWS: usize = 64;
/// A matrix of at most so many multiplications is left to one thread.
const MANY: usize = 1 << 22;
/// What a product costs at least, in multiplications.
const LEAST_COST: usize = 1 << 12;

/// As numpy's: a vector on the left is a row, on the right a column, and loses that dimension
/// again; all dimensions but the last two broadcast.
pub fn matmul(a: &Tensor, b: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
    let mismatch = || {
        Error::InvalidInput(format!(
            "matmul: shapes {:?} and {:?} do not fit: the last size of the first must be the second to last of the second",
            a.dims(),
            b.dims()
        ))
    };
    if a.rank() == 0 || b.rank() == 0 {
        return Err(mismatch());
    }
    let left = if a.rank() == 1 {
        a.unsqueeze(0)?
    } else {
        a.clone()
    };
    let right = if b.rank() == 1 {
        b.unsqueeze(1)?
    } else {
        b.clone()
    };
    if left.dims().last() != right.dims().get(right.rank() - 2) {
        return Err(mismatch());
    }
    let dtype = promote(a.dtype(), b.dtype());
    let (left, right) = (
        to_dtype(&left, dtype, cancel)?,
        to_dtype(&right, dtype, cancel)?,
    );
    require_float(&left, "matmul")?;
    let product = if on_cpu(&left) && on_cpu(&right) {
        in_wide_float(&left, cancel, |left| {
            batched(left, &to_dtype(&right, left.dtype(), cancel)?, cancel)
        })?
    } else {
        batched(&left, &right, cancel)?
    };
    let product = if b.rank() == 1 {
        product.squeeze(product.rank() - 1)?
    } else {
        product
    };
    let row = product
        .rank()
        .checked_sub(if b.rank() == 1 { 1 } else { 2 });
    match row {
        Some(row) if a.rank() == 1 => Ok(product.squeeze(row)?),
        _ => Ok(product),
    }
}

fn batched(a: &Tensor, b: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
    let (a_batch, a_matrix) = a.dims().split_at(a.rank() - 2);
    let (b_batch, b_matrix) = b.dims().split_at(b.rank() - 2);
    let batch = broadcast(a_batch, b_batch, "matmul").map_err(|_| {
        Error::InvalidInput(format!(
            "matmul: shapes {:?} and {:?} do not broadcast to one",
            a.dims(),
            b.dims()
        ))
    })?;
    let (m, k, n) = (a_matrix[0], a_matrix[1], b_matrix[1]);
    let shape = [batch.as_slice(), &[m, n]].concat();
    let what = format_args!("a tensor of shape {shape:?}");
    ensure_elements(&shape, a.dtype().size_in_bytes(), what)?;
    if k == 0 || shape.contains(&0) {
        return Ok(Tensor::zeros(shape, a.dtype(), a.device())?);
    }
    if !on_cpu(a) || !on_cpu(b) {
        return Ok(a.contiguous()?.broadcast_matmul(&b.contiguous()?)?);
    }
    if b.rank() > 2 && m.saturating_mul(k).saturating_mul(n) <= MANY {
        let whole =
            |x: &Tensor, matrix: &[usize]| x.broadcast_as([batch.as_slice(), matrix].concat());
        let (a, b) = (whole(a, a_matrix)?, whole(b, b_matrix)?);
        if let Some(product) = many(&a, &b, &shape, cancel)? {
            return Ok(product);
        }
    }
    let (a, b) = (contiguous(a, cancel)?, contiguous(b, cancel)?);
    if b.rank() == 2 {
        let rows = a.reshape(((), k))?;
        return Ok(blocked(&rows, &b, cancel)?.reshape(shape)?);
    }
    let a = a.broadcast_as([batch.as_slice(), a_matrix].concat())?;
    let b = b.broadcast_as([batch.as_slice(), b_matrix].concat())?;
    let result = Tensor::zeros(shape, a.dtype(), a.device())?;
    each_matrix(&a, &b, &result, cancel)?;
    Ok(result)
}

/// Goes down the batch dimensions of all three; `result` is a view into the whole.
fn each_matrix(a: &Tensor, b: &Tensor, result: &Tensor, cancel: &CancelToken) -> Result<()> {
    if a.rank() == 2 {
        let product = blocked(a, b, cancel)?;
        return Ok(result.slice_set(&product, 0, 0)?);
    }
    for index in 0..a.dim(0)? {
        each_matrix(&a.get(index)?, &b.get(index)?, &result.get(index)?, cancel)?;
    }
    Ok(())
}

/// The products of small f32 matrices, each by one thread; `None` for others.
fn many(a: &Tensor, b: &Tensor, shape: &[usize], cancel: &CancelToken) -> Result<Option<Tensor>> {
    if a.dtype() != DType::F32 || b.dtype() != DType::F32 {
        return Ok(None);
    }
    let matrix = shape.len() - 2;
    let (m, k, n) = (shape[matrix], a.dim(matrix + 1)?, shape[matrix + 1]);
    let count: usize = shape[..matrix].iter().product();
    let ((a_storage, a_layout), (b_storage, b_layout)) =
        (a.storage_and_layout(), b.storage_and_layout());
    let (Storage::Cpu(left), Storage::Cpu(right)) = (&*a_storage, &*b_storage) else {
        return Ok(None);
    };
    let (left, right) = (left.as_slice::<f32>()?, right.as_slice::<f32>()?);
    let steps = |layout: &Layout| [0, 1].map(|at| layout.stride()[matrix + at] as isize);
    let ([a_row, a_column], [b_row, b_column]) = (steps(a_layout), steps(b_layout));
    // A product of next to nothing is a call all the same.
    let cost = (m * k * n).max(LEAST_COST);
    let together = (BLOCK / cost).max(1);
    let product = |start: usize, parts: usize| {
        // SAFETY: every matrix of the output is written once, whole; those that are read lie in their storages, as
        // shapes, strides and offsets of tensors vouch for.
        unsafe {
            build::<f32>(parts * m * n, |out| {
                for_each_range(parts, cost, |range| {
                    for at in range {
                        let (from, with) = [a_layout, b_layout]
                            .map(|layout| begin(layout, start + at))
                            .into();
                        gemm(
                            m,
                            n,
                            k,
                            out.at(at * m * n),
                            1,
                            n as isize,
                            false,
                            left[from..].as_ptr(),
                            a_column,
                            a_row,
                            right[with..].as_ptr(),
                            b_column,
                            b_row,
                            0.0,
                            1.0,
                            false,
                            false,
                            false,
                            Parallelism::None,
                        );
                    }
                });
            })
        }
    };
    let whole = if count <= together {
        cancel.check()?;
        product(0, count)
    } else {
        let mut whole = memory::vector(&[count, m, n], "a product of matrices")?;
        for start in (0..count).step_by(together) {
            cancel.check()?;
            whole.extend(product(start, together.min(count - start)));
        }
        whole
    };
    Ok(Some(Tensor::from_vec(whole, shape, a.device())?))
}

/// Where a matrix of a tensor begins in its storage; matrices are counted along the batch dimensions, the last first.
fn begin(layout: &Layout, number: usize) -> usize {
    let batch = layout.dims().iter().zip(layout.stride());
    let batch = batch.take(layout.dims().len() - 2).rev();
    let along = |(left, start): (usize, usize), (&size, &step): (&usize, &usize)| {
        (left / size, start + left % size * step)
    };
    batch.fold((number, layout.start_offset()), along).1
}

/// One matrix product in blocks of bounded work.
fn blocked(a: &Tensor, b: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
    cancel.check()?;
    let ((m, k), n) = (a.dims2()?, b.dim(1)?);
    if m.saturating_mul(k).saturating_mul(n) <= BLOCK {
        return Ok(a.matmul(b)?);
    }
    let rows = (BLOCK / k.saturating_mul(n)).clamp(ROWS, m.max(ROWS));
    let columns = (BLOCK / rows.min(m).saturating_mul(k)).clamp(1, n);
    let result = Tensor::zeros((m, n), a.dtype(), a.device())?;
    for column in (0..n).step_by(columns) {
        let width = columns.min(n - column);
        let right = contiguous(&b.narrow(1, column, width)?, cancel)?;
        for row in (0..m).step_by(rows) {
            cancel.check()?;
            let height = rows.min(m - row);
            let block = a.narrow(0, row, height)?.matmul(&right)?;
            result
                .narrow(0, row, height)?
                .slice_set(&block, 1, column)?;
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn blocks_give_what_one_product_gives() {
        let cancel = CancelToken::new();
        let numbers = |rows: usize, columns: usize| {
            let count = rows * columns;
            let values: Vec<f64> = (0..count).map(|i| ((i * 7919) % 13) as f64 - 6.0).collect();
            Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
        };
        for (m, k, n) in [(700, 600, 500), (3, 30_000, 2_000), (65, 2_100_000, 2)] {
            let (a, b) = (numbers(m, k), numbers(k, n));
            let (whole, parts) = base::runtime::threads::install(|| {
                (a.matmul(&b).unwrap(), blocked(&a, &b, &cancel).unwrap())
            })
            .unwrap();
            assert_eq!(
                whole.to_vec2::<f64>().unwrap(),
                parts.to_vec2::<f64>().unwrap()
            );
        }
    }

    #[test]
    fn many_small_products_equal_those_one_by_one() {
        let cancel = CancelToken::new();
        let numbers = |shape: &[usize]| {
            let count: usize = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|i| ((i * 7919) % 13) as f32 - 6.0).collect();
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        for (a, b) in [
            (vec![7, 3, 49, 32], vec![7, 3, 32, 49]),
            (vec![5, 1, 6, 4], vec![3, 4, 1]),
            (vec![2, 9], vec![300, 9, 17]),
            (vec![2000, 40, 50], vec![2000, 50, 45]),
        ] {
            let (a, b) = (numbers(&a), numbers(&b));
            let wanted = a.broadcast_matmul(&b).unwrap();
            let turned = |x: &Tensor| {
                let (one, other) = (x.rank() - 2, x.rank() - 1);
                let turned = x.transpose(one, other).unwrap().contiguous().unwrap();
                turned.transpose(one, other).unwrap()
            };
            for (a, b) in [(a.clone(), b.clone()), (turned(&a), turned(&b))] {
                let found = matmul(&a, &b, &cancel).unwrap();
                assert_eq!(found.dims(), wanted.dims());
                let all = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                assert_eq!(all(&found), all(&wanted));
            }
        }
    }

    #[test]
    fn a_cancelled_product_stops() {
        let cancel = CancelToken::new();
        cancel.cancel();
        let a = Tensor::ones((4, 4), DType::F32, &Device::Cpu).unwrap();
        assert!(matches!(matmul(&a, &a, &cancel), Err(Error::Interrupted)));
    }
}
