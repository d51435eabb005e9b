//! Launches what stands around scans.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, Result, Shape, Storage, Tensor};

use super::operands::{dispatch, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::Source;
use crate::scan::launch::{GateParameters, UnitParameters, SIMD_WIDTH};
use crate::scan::{Decay, UnitHeads};

fn tensor(out: Output<'_>, shape: impl Into<Shape>) -> Tensor {
    let storage = Storage::Metal(out.into_storage());
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// How much states keep; `numbers` are biases and rates.
pub fn decays(x: &Tensor, numbers: &Tensor, rule: Decay) -> Result<Tensor> {
    let (tokens, width) = x.dims2()?;
    let parameters = GateParameters::new(width, rule)?;
    let held = [x, numbers].map(hold);
    let [x, numbers] = [held[0].input()?, held[1].input()?];
    let device = x.storage.device();
    let pipeline = pipeline(device, Source::ScanGates, "scan_decays", DType::F32)?;
    let out = Output::new(device, tokens * width, DType::F32)?;
    let grid = Grid::elementwise(width, tokens, &pipeline);
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        numbers.bind(encoder, 1);
        out.bind(encoder, 2);
        encoder.set_bytes(3, &parameters);
    })?;
    Ok(tensor(out, (tokens, width)))
}

/// What recurrent units take and keep, given inputs and both gates; `numbers` are both biases, and rates.
pub fn open(rows: [&Tensor; 3], numbers: &Tensor, begins: &Tensor) -> Result<Tensor> {
    let (tokens, width) = rows[0].dims2()?;
    let parameters = GateParameters::new(width, Decay::Softplus)?;
    let rows = [
        rows[0].contiguous()?,
        rows[1].contiguous()?,
        rows[2].contiguous()?,
    ];
    let held = [&rows[0], &rows[1], &rows[2], numbers, begins].map(hold);
    let first = held[0].input()?;
    let device = first.storage.device();
    let pipeline = pipeline(device, Source::ScanGates, "scan_open", DType::F32)?;
    let out = Output::new(device, 2 * tokens * width, DType::F32)?;
    let grid = Grid::elementwise(width, tokens, &pipeline);
    let inputs = held.iter().map(|one| one.input());
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    dispatch(device, &pipeline, grid, |encoder| {
        for (index, input) in inputs.iter().enumerate() {
            input.bind(encoder, index);
        }
        out.bind(encoder, 5);
        encoder.set_bytes(6, &parameters);
    })?;
    Ok(tensor(out, (tokens, 2 * width)))
}

/// The first heads of rows divided by their lengths.
pub fn units(x: &Tensor, heads: UnitHeads) -> Result<Tensor> {
    let (tokens, width) = x.dims2()?;
    let parameters = UnitParameters::new(width, heads)?;
    let held = hold(x);
    let input = held.input()?;
    let device = input.storage.device();
    let pipeline = pipeline(device, Source::ScanGates, "scan_units", DType::F32)?;
    let out = Output::new(device, tokens * width, DType::F32)?;
    let grid = Grid {
        groups: (width.div_ceil(heads.size), tokens),
        lanes: SIMD_WIDTH,
    };
    dispatch(device, &pipeline, grid, |encoder| {
        input.bind(encoder, 0);
        out.bind(encoder, 1);
        encoder.set_bytes(2, &parameters);
    })?;
    Ok(tensor(out, (tokens, width)))
}
