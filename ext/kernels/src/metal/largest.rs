//! The largest numbers of each row.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, Result, Storage, Tensor};

use super::operands::{dispatch, hold, Grid, Input, Output};
use super::pipelines::pipeline;
use super::plan::{self, LargestParameters, Source};
use crate::Largest;

/// Words of a number and its place.
pub const PAIR: usize = 2;

/// `None` where the rows ask for another way: pairs of numbers and places are no fewer bytes than half of the row.
pub fn largest(x: &Tensor, count: usize) -> Result<Option<Vec<Largest>>> {
    let (rows, width) = x.dims2()?;
    let none = rows == 0 || width == 0 || count == 0;
    if x.dtype() != DType::F32 || !x.is_contiguous() || none || (count > 1 && count >= width / 2) {
        return Ok(None);
    }
    let held = hold(x);
    let input = held.input()?;
    let out = Output::new(input.storage.device(), PAIR * rows * count, DType::U32)?;
    encode((input, rows, width), count, &out)?;
    let storage = Storage::Metal(out.into_storage());
    let found = Tensor::from_storage(storage, PAIR * rows * count, BackpropOp::none(), false);
    let found: Vec<u32> = found.to_vec1()?;
    let rows = found.chunks(PAIR * count);
    Ok(Some(rows.map(|pairs| of_row(pairs, width)).collect()))
}

/// Encodes the search for so many numbers of each row, whose pairs begin an output.
pub fn encode(
    (x, rows, width): (Input<'_>, usize, usize),
    count: usize,
    out: &Output<'_>,
) -> Result<()> {
    let device = x.storage.device();
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
    let maximum = pipeline.max_total_threads_per_threadgroup();
    let grid = Grid {
        groups: (rows, 1),
        lanes: plan::row_lanes(width, maximum),
    };
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        out.bind(encoder, 1);
        encoder.set_bytes(2, &parameters);
    })
}

/// The numbers of a row of this width, in the order of places.
pub fn of_row(pairs: &[u32], width: usize) -> Largest {
    let pairs = pairs.chunks(PAIR);
    let pairs = pairs.map(|pair| (pair[1], f32::from_bits(pair[0])));
    let mut known: Largest = pairs
        .filter(|(place, _)| (*place as usize) < width)
        .collect();
    known.sort_unstable_by_key(|(place, _)| *place);
    known
}
