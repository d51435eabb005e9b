//! Launches the lookup of rows in tables of quantized blocks.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, MetalDevice, Result, Storage, Tensor};

use super::operands::{dispatch, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::product::RUN;
use super::plan::{self, BlockParameters, Source};
use crate::blocks::DeviceBlocks;

/// `numbers` are within the table, which is not empty, and neither are they.
pub fn rows(table: &DeviceBlocks, numbers: &[u32], dtype: DType) -> Result<Tensor> {
    let held = hold(table.bytes());
    let blocks = held.input()?;
    let device: &MetalDevice = blocks.storage.device();
    let kind = table.kind();
    let kernel = format!("table_rows_{}", kind.name());
    let pipeline = pipeline(device, Source::Blocks(kind), &kernel, dtype)?;
    let parameters = BlockParameters {
        inputs: plan::narrow(table.inputs())?,
        row_bytes: plan::narrow(table.inputs() / kind.elements() * kind.bytes())?,
    };
    let out = Output::new(device, numbers.len() * table.inputs(), dtype)?;
    let indices = device.new_buffer_with_data(numbers)?;
    let grid = Grid::elementwise(table.inputs() / RUN, numbers.len(), &pipeline);
    dispatch(device, &pipeline, grid, |encoder| {
        blocks.bind(encoder, 0);
        encoder.set_input_buffer(1, Some(&indices), 0);
        out.bind(encoder, 2);
        encoder.set_bytes(3, &parameters);
    })?;
    let storage = Storage::Metal(out.into_storage());
    let shape = (numbers.len(), table.inputs());
    Ok(Tensor::from_storage(
        storage,
        shape,
        BackpropOp::none(),
        false,
    ))
}
