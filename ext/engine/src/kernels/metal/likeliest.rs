//! The largest number of each row.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, Result, Storage, Tensor};

use super::operands::{dispatch, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::{self, LikeliestParameters, Source};

/// `None` where the rows ask for another way.
pub fn likeliest(x: &Tensor) -> Result<Option<Vec<Option<u32>>>> {
    let (rows, width) = x.dims2()?;
    if x.dtype() != DType::F32 || !x.is_contiguous() || rows == 0 || width == 0 {
        return Ok(None);
    }
    let held = hold(x);
    let input = held.input()?;
    let device = input.storage.device();
    let parameters = LikeliestParameters {
        columns: plan::narrow(width)?,
    };
    let pipeline = pipeline(device, Source::Likeliest, "likeliest", DType::F32)?;
    let out = Output::new(device, rows, DType::U32)?;
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
    let found = Tensor::from_storage(storage, rows, BackpropOp::none(), false);
    let known = |place: u32| ((place as usize) < width).then_some(place);
    Ok(Some(found.to_vec1()?.into_iter().map(known).collect()))
}
