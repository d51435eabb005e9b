//! Columns of several tensors side by side, in one launch.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{CudaDevice, DType, Result, Tensor};

use super::compile::{function, ROWS};
use super::device::{address, device_of, result};
use super::launch::{argument, launch_early};
use super::{small, ELEMENT_THREADS};

const MOST_BLOCKS: usize = 1 << 16;
/// Parts of one launch, as in the CUDA source.
const MOST_PARTS: usize = 8;

/// As `Columns` in the CUDA source.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Parameters {
    from: [u64; MOST_PARTS],
    from_row: [u64; MOST_PARTS],
    ends: [u32; MOST_PARTS],
    types: [u32; MOST_PARTS],
    to: u64,
    to_row: u64,
    rows: u32,
    width: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

/// As in the CUDA source.
fn type_number(dtype: DType) -> Result<u32> {
    match dtype {
        DType::F32 => Ok(0),
        DType::F16 => Ok(1),
        DType::BF16 => Ok(2),
        other => candle_core::bail!("columns of {other:?}"),
    }
}

/// As the function of this name for all devices; the parts are on one GPU.
pub fn join_columns(parts: &[&Tensor], dtype: DType) -> Result<Tensor> {
    let (rows, widths) = (parts[0].dim(0)?, widths(parts)?);
    let device = device_of(parts[0])?;
    let (out, start) = result(&device, (rows, widths.iter().sum()), dtype)?;
    write(&device, parts, &widths, dtype, start)?;
    Ok(out)
}

/// Copies a matrix into one of the same shape, which may be of another type.
pub fn copy_matrix(from: &Tensor, to: &Tensor) -> Result<()> {
    if from.dims() != to.dims() || !to.is_contiguous() {
        candle_core::bail!("{:?} is not copied into {:?}", from.shape(), to.shape());
    }
    let parts = [from];
    write(
        &device_of(from)?,
        &parts,
        &widths(&parts)?,
        to.dtype(),
        address(to)?,
    )
}

fn widths(parts: &[&Tensor]) -> Result<Vec<usize>> {
    let rows = parts[0].dim(0)?;
    let widths = parts.iter().map(|part| match part.dims() {
        [count, width] if *count == rows => Ok(*width),
        _ => candle_core::bail!("columns of {:?} beside {rows} rows", part.dims()),
    });
    widths.collect()
}

/// The parts beside each other at an address.
fn write(
    device: &CudaDevice,
    parts: &[&Tensor],
    widths: &[usize],
    dtype: DType,
    start: u64,
) -> Result<()> {
    let (rows, total) = (parts[0].dim(0)?, widths.iter().sum::<usize>());
    let kernel = match dtype {
        DType::F16 => "columns_to_f16",
        DType::BF16 => "columns_to_bf16",
        _ => "columns_to_f32",
    };
    let function = function(device, ROWS, kernel, DType::F32, &[], 0)?;
    let mut first = 0;
    for (parts, widths) in parts.chunks(MOST_PARTS).zip(widths.chunks(MOST_PARTS)) {
        let mut parameters = Parameters {
            to: start + (first * dtype.size_in_bytes()) as u64,
            to_row: total as u64,
            rows: small(rows)?,
            ..Parameters::default()
        };
        let mut end = 0;
        for (at, (part, &width)) in parts.iter().zip(widths).enumerate() {
            let strides = part.stride();
            if width > 1 && strides[1] != 1 {
                candle_core::bail!("the columns of a row must follow each other");
            }
            end += width;
            parameters.from[at] = address(part)?;
            parameters.from_row[at] = strides[0] as u64;
            parameters.ends[at] = small(end)?;
            parameters.types[at] = type_number(part.dtype())?;
        }
        parameters.width = small(end)?;
        first += end;
        if rows * end == 0 {
            continue;
        }
        let blocks = (rows * end).div_ceil(ELEMENT_THREADS);
        let grid = LaunchConfig {
            grid_dim: (blocks.min(MOST_BLOCKS) as u32, 1, 1),
            block_dim: (ELEMENT_THREADS as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the argument is the kernel's; rows and columns lie within the tensors, and nothing is read ahead.
        unsafe { launch_early(device, &function, grid, &[argument(&parameters)], true) }?;
    }
    Ok(())
}
