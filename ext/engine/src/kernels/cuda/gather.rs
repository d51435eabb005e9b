//! The sum of rows of several tables, in one launch: the embeddings of an encoder.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::WrapErr;
use candle_core::{Result, Tensor};

use super::compile::{function, ROWS};
use super::device::{address, device_of, result, ALIGNMENT};
use super::{small, ELEMENT_THREADS, VECTOR};

const MOST_TABLES: usize = 3;

/// As `Gather` in the CUDA source.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Parameters {
    tables: [u64; MOST_TABLES],
    rows: [u64; MOST_TABLES],
    out: u64,
    count: u32,
    columns: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

/// Σ table[rows[i]] for each i; every row, u32 [count], must be inside its table. `None` where the tables
/// ask for another way.
pub(crate) fn gather_sum(terms: &[(&Tensor, &Tensor)]) -> Result<Option<Tensor>> {
    let Some((first, rows)) = terms.first() else {
        return Ok(None);
    };
    let (_, columns) = first.dims2()?;
    let count = rows.elem_count();
    let sound = |table: &Tensor, rows: &Tensor| {
        table.device().is_cuda()
            && table.is_contiguous()
            && table.dtype() == first.dtype()
            && table.dims().last() == Some(&columns)
            && rows.dims() == [count]
            && rows.is_contiguous()
    };
    let fits = terms.len() <= MOST_TABLES
        && count > 0
        && columns.is_multiple_of(VECTOR)
        && terms.iter().all(|(table, rows)| sound(table, rows));
    if !fits {
        return Ok(None);
    }
    let device = device_of(first)?;
    let stream = device.cuda_stream();
    let mut parameters = Parameters {
        count: small(count)?,
        columns: small(columns)?,
        ..Parameters::default()
    };
    for (at, (table, rows)) in terms.iter().enumerate() {
        parameters.tables[at] = address(table)?;
        parameters.rows[at] = address(rows)?;
    }
    if parameters.tables.iter().any(|at| at % ALIGNMENT != 0) {
        return Ok(None);
    }
    let (out, to) = result(&device, (count, columns), first.dtype())?;
    parameters.out = to;
    let function = function(&device, ROWS, "gather_sum", first.dtype(), &[], 0)?;
    let mut builder = stream.launch_builder(&function);
    builder.arg(&parameters);
    let blocks = (count * columns / VECTOR).div_ceil(ELEMENT_THREADS);
    // SAFETY: the argument is the kernel's, and the caller's rows are inside their tables.
    unsafe {
        builder.launch(LaunchConfig {
            grid_dim: (blocks.min(1 << 16) as u32, 1, 1),
            block_dim: (ELEMENT_THREADS as u32, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .w()?;
    Ok(Some(out))
}
