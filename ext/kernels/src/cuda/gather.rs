//! The sum of rows of several tables, in one launch: the embeddings of an encoder.

use candle_core::cuda_backend::cudarc::driver::{
    DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::WrapErr;
use candle_core::{Result, Tensor};

use super::compile::{function, ROWS};
use super::device::{address, device_of, result, ALIGNMENT};
use super::{small, staging, ELEMENT_THREADS, VECTOR};

const MOST_TABLES: usize = 3;

/// As `Gather` in the CUDA source.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Parameters {
    tables: [u64; MOST_TABLES],
    rows: [u64; MOST_TABLES],
    out: u64,
    same: [u32; MOST_TABLES],
    count: u32,
    columns: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

/// Σ table[rows[i]] for each i; every row must be inside its table. `None` where the tables ask for another way.
pub fn gather_sum(terms: &[(&Tensor, &[u32])]) -> Result<Option<Tensor>> {
    let tables: Vec<_> = terms.iter().map(|(table, _)| *table).collect();
    let Some((first, rows)) = terms.first() else {
        return Ok(None);
    };
    let count = rows.len();
    if !fits(&tables, count) || terms.iter().any(|(_, rows)| rows.len() != count) {
        return Ok(None);
    }
    let mut parameters = Parameters::default();
    let differing: Vec<(usize, &[u32])> = terms
        .iter()
        .enumerate()
        .filter(|(at, (_, rows))| {
            parameters.same[*at] = rows[0];
            rows.iter().any(|&row| row != rows[0])
        })
        .map(|(at, (_, rows))| (at, *rows))
        .collect();
    let device = device_of(first)?;
    let parts: Vec<_> = differing.iter().map(|(_, rows)| *rows).collect();
    let words = staging::upload(&device, &parts)?;
    let mut at = words.device_ptr(words.stream()).0;
    for (table, rows) in differing {
        parameters.rows[table] = at;
        at += size_of_val(rows) as u64;
    }
    run(&tables, count, parameters)
}

/// As `gather_sum`, with the rows on the device, u32 [count] each.
pub fn gather_at(terms: &[(&Tensor, &Tensor)]) -> Result<Option<Tensor>> {
    let tables: Vec<_> = terms.iter().map(|(table, _)| *table).collect();
    let count = terms.first().map_or(0, |(_, rows)| rows.elem_count());
    let sound = |rows: &Tensor| rows.dims() == [count] && rows.is_contiguous();
    if !fits(&tables, count) || !terms.iter().all(|(_, rows)| sound(rows)) {
        return Ok(None);
    }
    let mut parameters = Parameters::default();
    for (at, (_, rows)) in terms.iter().enumerate() {
        parameters.rows[at] = address(rows)?;
    }
    run(&tables, count, parameters)
}

fn fits(tables: &[&Tensor], count: usize) -> bool {
    let Some(first) = tables.first() else {
        return false;
    };
    let columns = first.dims().last().copied().unwrap_or(0);
    let sound = |table: &&Tensor| {
        table.device().is_cuda()
            && table.is_contiguous()
            && table.dtype() == first.dtype()
            && table.dims().len() == 2
            && table.dims().last() == Some(&columns)
    };
    tables.len() <= MOST_TABLES
        && count > 0
        && columns.is_multiple_of(VECTOR)
        && tables.iter().all(sound)
}

fn run(tables: &[&Tensor], count: usize, mut parameters: Parameters) -> Result<Option<Tensor>> {
    let (_, columns) = tables[0].dims2()?;
    let dtype = tables[0].dtype();
    let device = device_of(tables[0])?;
    let stream = device.cuda_stream();
    parameters.count = small(count)?;
    parameters.columns = small(columns)?;
    for (at, table) in tables.iter().enumerate() {
        parameters.tables[at] = address(table)?;
    }
    if parameters.tables.iter().any(|at| at % ALIGNMENT != 0) {
        return Ok(None);
    }
    let (out, to) = result(&device, (count, columns), dtype)?;
    parameters.out = to;
    let function = function(&device, ROWS, "gather_sum", dtype, &[], 0)?;
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
