//! What samplers have to know of logits, found where they lie.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, MetalDevice, Result, Storage, Tensor};

use super::largest::{self, PAIR};
use super::operands::{dispatch, hold, Grid, Input, Output};
use super::pipelines::pipeline;
use super::plan::sampling::{found, want, WORDS};
use super::plan::{self, SamplingParameters, Source};
use crate::sampling::{Found, Want};

/// As the function of this name for all devices; `None`, too, where all logits are no more bytes.
pub fn sample(x: &Tensor, wants: &[Want]) -> Result<Option<Vec<Found>>> {
    let (rows, width) = x.dims2()?;
    if x.dtype() != DType::F32 || !x.is_contiguous() || rows != wants.len() || rows * width == 0 {
        return Ok(None);
    }
    let most = wants.iter().map(|want| want.count.min(width)).max();
    let most = most.unwrap_or(0);
    let weighs = wants.iter().any(|want| want.temperature > 0.0);
    if !weighs && most >= width / 2 {
        // The pairs are no fewer bytes than half of the rows.
        return Ok(None);
    }
    let held = hold(x);
    let input = held.input()?;
    let device = input.storage.device();
    // The pairs of all rows, then what the sums say of each.
    let pairs = rows * most * PAIR;
    let words = pairs + if weighs { rows * WORDS } else { 0 };
    if words == 0 {
        return Ok(Some(vec![Found::default(); rows]));
    }
    let out = Output::new(device, words, DType::U32)?;
    if most > 0 {
        largest::encode((input, rows, width), most, &out)?;
    }
    if weighs {
        weigh(device, (input, rows, width), wants, (&out, pairs))?;
    }
    let storage = Storage::Metal(out.into_storage());
    let told = Tensor::from_storage(storage, words, BackpropOp::none(), false);
    let told: Vec<u32> = told.to_vec1()?;
    let row = |(at, own): (usize, &Want)| {
        let largest = &told[at * most * PAIR..][..most * PAIR];
        let said = if weighs {
            &told[pairs + at * WORDS..][..WORDS]
        } else {
            &[]
        };
        found(own, largest::of_row(largest, width), said)
    };
    Ok(Some(wants.iter().enumerate().map(row).collect()))
}

/// Encodes the sums of the weights; what is said of them goes to a place in the output, in words.
fn weigh(
    device: &MetalDevice,
    (x, rows, width): (Input<'_>, usize, usize),
    wants: &[Want],
    (out, place): (&Output<'_>, usize),
) -> Result<()> {
    let given: Vec<u32> = wants.iter().flat_map(want).collect();
    let given = Tensor::from_vec(
        given,
        rows * WORDS,
        &candle_core::Device::Metal(device.clone()),
    )?;
    let held = hold(&given);
    let given = held.input()?;
    let parameters = SamplingParameters {
        columns: plan::narrow(width)?,
    };
    let pipeline = pipeline(device, Source::Sampling, "sample", DType::F32)?;
    let maximum = pipeline.max_total_threads_per_threadgroup();
    let grid = Grid {
        groups: (rows, 1),
        lanes: plan::row_lanes(width, maximum),
    };
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        given.bind(encoder, 1);
        out.bind_at(encoder, 2, place);
        encoder.set_bytes(3, &parameters);
    })
}
