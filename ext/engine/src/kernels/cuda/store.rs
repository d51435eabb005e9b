//! Keys and values into the rows of their pages, in one launch.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::WrapErr;
use candle_core::{Result, Tensor};

use super::compile::{function, ROWS};
use super::device::{address, device_of, ALIGNMENT};
use super::{small, ELEMENT_THREADS, VECTOR};

/// As `Store` in the CUDA source.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Parameters {
    from: [u64; 2],
    to: [u64; 2],
    slots: u64,
    /// Of a row and of a head.
    strides: [[u64; 2]; 2],
    rows: u32,
    heads: u32,
    width: u32,
}

// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for Parameters {}

/// Copies rows [rows, heads, width] of keys and values over those of `pages` that `slots`, u32 [rows, 1],
/// names; every slot must be within the pages. False where the layouts ask for another way.
pub(crate) fn store(
    pages: (&Tensor, &Tensor),
    rows: (&Tensor, &Tensor),
    slots: &Tensor,
) -> Result<bool> {
    let (count, heads, width) = rows.0.dims3()?;
    let mut parameters = Parameters {
        rows: small(count)?,
        heads: small(heads)?,
        width: small(width)?,
        ..Parameters::default()
    };
    let sides = [(pages.0, rows.0), (pages.1, rows.1)];
    for (at, (pages, rows)) in sides.into_iter().enumerate() {
        let size = rows.dtype().size_in_bytes() as u64;
        let &[row, head, last] = rows.stride() else {
            return Ok(false);
        };
        let fits = rows.device().is_cuda()
            && rows.dtype() == pages.dtype()
            && pages.is_contiguous()
            && rows.dims() == [count, heads, width]
            && last == 1
            && count > 0
            && width.is_multiple_of(VECTOR);
        if !fits {
            return Ok(false);
        }
        let [row, head] = [row as u64, head as u64];
        parameters.from[at] = address(rows)?;
        parameters.to[at] = address(pages)?;
        parameters.strides[at] = [row, head];
        let offsets = [
            parameters.from[at],
            parameters.to[at],
            row * size,
            head * size,
        ];
        if offsets.iter().any(|offset| offset % ALIGNMENT != 0) {
            return Ok(false);
        }
    }
    parameters.slots = address(slots)?;
    let device = device_of(rows.0)?;
    let function = function(&device, ROWS, "store_rows", rows.0.dtype(), &[], 0)?;
    let stream = device.cuda_stream();
    let mut builder = stream.launch_builder(&function);
    builder.arg(&parameters);
    let blocks = (count * heads * width / VECTOR).div_ceil(ELEMENT_THREADS);
    // SAFETY: the argument is the kernel's, its addresses are of tensors of the shapes it says, and the
    // caller's slots are within the pages.
    unsafe {
        builder.launch(LaunchConfig {
            grid_dim: (blocks.min(1 << 16) as u32, 2, 1),
            block_dim: (ELEMENT_THREADS as u32, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .w()?;
    Ok(true)
}
