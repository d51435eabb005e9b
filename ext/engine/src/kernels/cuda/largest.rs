//! The largest number of each row.

use candle_core::cuda_backend::cudarc::driver::{LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::WrapErr;
use candle_core::{DType, Result, Tensor};

use super::compile::{function, ROWS};
use super::device::{address, device_of};
use super::small;
use crate::kernels::Largest;

/// Threads of a block, which has a part of a row.
const THREADS: u32 = 1024;
/// Elements of a part, and parts of a row at most: their best are compared on the host.
const PART: usize = 4096;
const MOST_PARTS: usize = 64;

/// `None` where the rows ask for another way.
pub(crate) fn largest(x: &Tensor) -> Result<Option<Vec<Largest>>> {
    let (rows, width) = x.dims2()?;
    if x.dtype() != DType::F32 || !x.is_contiguous() || rows == 0 || width == 0 {
        return Ok(None);
    }
    let device = device_of(x)?;
    let stream = device.cuda_stream();
    // SAFETY: the kernel writes every element.
    let parts = width.div_ceil(PART).min(MOST_PARTS);
    let found = unsafe { device.alloc::<u32>(rows * parts * 2)? };
    let function = function(&device, ROWS, "largest", DType::F32, &[], 0)?;
    let (from, width) = (address(x)?, small(width)?);
    let mut builder = stream.launch_builder(&function);
    builder.arg(&from);
    builder.arg(&found);
    builder.arg(&width);
    // SAFETY: the arguments are those of the kernel, and the rows are as many and as wide as it is told.
    unsafe {
        builder.launch(LaunchConfig {
            grid_dim: (small(rows)?, parts as u32, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .w()?;
    let found = device.clone_dtoh(&found)?;
    Ok(Some(
        found
            .chunks(2 * parts)
            .map(|parts| best(parts, width).into_iter().collect())
            .collect(),
    ))
}

/// Of the bits of a number and its place, part after part.
fn best(parts: &[u32], width: u32) -> Option<(u32, f32)> {
    let mut found: Option<(u32, f32)> = None;
    for part in parts.chunks(2) {
        let (number, place) = (f32::from_bits(part[0]), part[1]);
        if place < width && found.is_none_or(|(_, top)| number > top) {
            found = Some((place, number));
        }
    }
    found
}
