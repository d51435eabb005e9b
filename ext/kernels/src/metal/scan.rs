//! Launches scans.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, Result, Storage, Tensor};

use super::operands::{dispatch, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::Source;
use crate::scan::launch::{geometry, kernel, ScanSource, SCAN_LANES};
use crate::scan::{Scan, SlotStates};

/// As [`Scan::forward`].
pub fn scan(scan: &Scan, inputs: &Tensor, places: &SlotStates<'_>) -> Result<Tensor> {
    let tokens = inputs.dim(0)?;
    let (parameters, groups) = geometry(scan, places)?;
    let constants = scan.constants()?;
    // Without trails none is read or written.
    let trails = places.trails.map_or(places.states, |(trails, _)| trails);
    let read = [inputs, &constants.words, &constants.numbers].map(hold);
    let changed = [places.states, trails].map(hold);
    let table = hold(&places.table.words);
    let [inputs, words, numbers] = [read[0].input()?, read[1].input()?, read[2].input()?];
    let [states, trails] = [changed[0].input()?, changed[1].input()?];
    let table = table.input()?;
    let device = inputs.storage.device();
    let source = Source::Scan(ScanSource::of(scan.kind()));
    let pipeline = pipeline(device, source, kernel(scan.kind()), DType::F32)?;
    let out = Output::new(device, tokens * scan.outputs(), DType::F32)?;
    let grid = Grid {
        groups: (groups, places.table.sequences),
        lanes: SCAN_LANES,
    };
    dispatch(device, &pipeline, grid, |encoder| {
        inputs.bind(encoder, 0);
        words.bind(encoder, 1);
        numbers.bind(encoder, 2);
        states.bind_for_writing(encoder, 3);
        trails.bind_for_writing(encoder, 4);
        table.bind(encoder, 5);
        out.bind(encoder, 6);
        encoder.set_bytes(7, &parameters);
    })?;
    let storage = Storage::Metal(out.into_storage());
    let shape = (tokens, scan.outputs());
    Ok(Tensor::from_storage(
        storage,
        shape,
        BackpropOp::none(),
        false,
    ))
}
