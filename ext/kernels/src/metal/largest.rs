//! The largest numbers of each row.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, Result, Storage, Tensor};

use super::operands::{dispatch, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::{self, LargestParameters, Source};
use crate::Largest;

/// `None` where the rows ask for another way: pairs of numbers and places are no fewer bytes than half of the row.
pub fn largest(x: &Tensor, count: usize) -> Result<Option<Vec<Largest>>> {
    let (rows, width) = x.dims2()?;
    let none = rows == 0 || width == 0 || count == 0;
    if x.dtype() != DType::F32 || !x.is_contiguous() || none || (count > 1 && count >= width / 2) {
        return Ok(None);
    }
    let held = hold(x);
    let input = held.input()?;
    let device = input.storage.device();
    let parameters = LargestParameters {
        columns: plan::narrow(width)?,
        wanted: plan::narrow(count)?,
    };
    let kernel = if count == 1 {
        "largest"
    } else {
        "several_largest"
    };
    let pipeline = pipeline(device, Source::Largest, kernel, DType::F32)?;
    let out = Output::new(device, 2 * rows * count, DType::U32)?;
    let maximum = pipeline.max_total_threads_per_threadgroup();
    let grid = Grid {
        groups: (rows, 1),
        lanes: plan::row_lanes(width, maximum),
    };
    dispatch(device, &pipeline, grid, |encoder| {
        input.bind(encoder, 0);
        out.bind(encoder, 1);
        encoder.set_bytes(2, &parameters);
    })?;
    let storage = Storage::Metal(out.into_storage());
    let found = Tensor::from_storage(storage, 2 * rows * count, BackpropOp::none(), false);
    let found: Vec<u32> = found.to_vec1()?;
    let of_row = |pairs: &[u32]| {
        let pairs = pairs
            .chunks(2)
            .map(|pair| (pair[1], f32::from_bits(pair[0])));
        let mut known: Largest = pairs
            .filter(|(place, _)| (*place as usize) < width)
            .collect();
        known.sort_unstable_by_key(|(place, _)| *place);
        known
    };
    Ok(Some(found.chunks(2 * count).map(of_row).collect()))
}
