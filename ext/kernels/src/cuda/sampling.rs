//! What samplers have to know of logits, found where they lie.

use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::{DType, Result, Tensor};

use super::compile::{function, SAMPLING};
use super::device::{address, device_of, result};
use super::launch::{argument, launch_early};
use super::small;
use crate::sampling::{Found, Want};

const THREADS: u32 = 1024;
/// Words of a row before its pairs, as `Said` in the CUDA source.
const HEAD: usize = 4;
const NOWHERE: u32 = u32::MAX;

/// As the function of this name for all devices.
pub fn sample(x: &Tensor, wants: &[Want]) -> Result<Option<Vec<Found>>> {
    let (rows, width) = x.dims2()?;
    if x.dtype() != DType::F32 || !x.is_contiguous() || rows != wants.len() || rows * width == 0 {
        return Ok(None);
    }
    let most = wants.iter().map(|want| want.count.min(width)).max();
    let most = most.unwrap_or(0);
    let each = HEAD + 2 * most;
    let device = device_of(x)?;
    // As `Want` in the CUDA source.
    let given = wants.iter().flat_map(|want| {
        let uniform = want.uniform.unwrap_or(-1.0).to_bits();
        let count = want.count.min(width) as u32;
        [
            count,
            want.temperature.to_bits(),
            uniform as u32,
            (uniform >> 32) as u32,
        ]
    });
    let given = Tensor::from_vec(given.collect::<Vec<_>>(), (rows, 4), x.device())?;
    let (told, to) = result(&device, rows * each, DType::U32)?;
    let function = function(&device, SAMPLING, "sample_rows", DType::F32, &[], 0)?;
    let config = LaunchConfig {
        grid_dim: (small(rows)?, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    let (from, wanted) = (address(x)?, address(&given)?);
    let (width, most) = (small(width)?, small(most)?);
    let arguments = [
        argument(&from),
        argument(&wanted),
        argument(&to),
        argument(&width),
        argument(&most),
    ];
    // SAFETY: the arguments are those of the kernel; there is a want and room for what is told for every row, and all
    // of it lives until the result is read.
    unsafe { launch_early(&device, &function, config, &arguments, true) }?;
    let told: Vec<u32> = told.to_vec1()?;
    Ok(Some(told.chunks(each).map(found).collect()))
}

fn found(row: &[u32]) -> Found {
    let (head, pairs) = row.split_at(HEAD);
    let total = u64::from(head[0]) | u64::from(head[1]) << 32;
    let pairs = pairs.chunks_exact(2).take(head[2] as usize);
    let mut largest: Vec<(u32, f32)> = pairs
        .map(|pair| (pair[1], f32::from_bits(pair[0])))
        .collect();
    largest.sort_unstable_by_key(|&(place, _)| place);
    Found {
        largest,
        total: f64::from_bits(total),
        drawn: (head[3] != NOWHERE).then_some(head[3]),
    }
}
