//! Rows whose elements are put in another order, for matrices whose columns are.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{Result, Tensor};

use super::compile::{function, ORDER};
use super::device::{address, device_of, result};
use super::launch::{argument, launch_early};
use super::{small, ELEMENT_THREADS};

const MOST_BLOCKS: usize = 1 << 16;

/// As `Ordered` in the CUDA source.
#[derive(Clone, Copy)]
#[repr(C)]
struct Parameters {
    from: u64,
    order: u64,
    out: u64,
    rows: u32,
    columns: u32,
    width: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

/// `x` is [rows, columns], and the order, u32 [width], has each of its columns, and numbers beyond them for zeros.
pub fn columns(x: &Tensor, order: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (rows, columns) = x.dims2()?;
    let width = order.dims1()?;
    if width < columns {
        candle_core::bail!("an order of {width} for {columns} columns");
    }
    let device = device_of(&x)?;
    let (out, to) = result(&device, (rows, width), x.dtype())?;
    if rows * columns == 0 {
        return Ok(out);
    }
    let parameters = Parameters {
        from: address(&x)?,
        order: address(order)?,
        out: to,
        rows: small(rows)?,
        columns: small(columns)?,
        width: small(width)?,
    };
    let function = function(&device, ORDER, "order_columns", x.dtype(), &[], 0)?;
    let blocks = (rows * width).div_ceil(ELEMENT_THREADS);
    let grid = LaunchConfig {
        grid_dim: (blocks.min(MOST_BLOCKS) as u32, 1, 1),
        block_dim: (ELEMENT_THREADS as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the argument is the kernel's; its addresses are of tensors of the shapes it says, which live until after
    // the launch; nothing is read ahead.
    unsafe { launch_early(&device, &function, grid, &[argument(&parameters)], true) }?;
    Ok(out)
}
