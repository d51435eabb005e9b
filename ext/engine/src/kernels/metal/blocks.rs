//! Launches products with quantized blocks, and the lookup of rows.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, MetalDevice, Result, Storage, Tensor};

use super::operands::{dispatch, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::{self, BlockParameters, Source};
use crate::kernels::blocks::DeviceBlocks;

/// `x` is [rows, inputs], it and the residual contiguous; nothing is empty.
pub fn multiply(
    matrix: &DeviceBlocks,
    x: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let ((rows, _), dtype) = (x.dims2()?, x.dtype());
    let typed = |tensor: &Tensor| tensor.to_dtype(dtype)?.contiguous();
    let (bias, residual) = (
        bias.map(typed).transpose()?,
        residual.map(typed).transpose()?,
    );
    let few = rows <= plan::MOST_FEW_ROWS;
    let (kernel, tile) = match few {
        true => ("product_of_few", (plan::FEW_SIMDGROUPS, plan::FEW_ROWS)),
        false => ("product_of_many", (plan::TILE_OUTPUTS, plan::TILE_ROWS)),
    };
    let held = (hold(x), hold(matrix.bytes()));
    let (x, blocks) = (held.0.input()?, held.1.input()?);
    let held = (bias.as_ref().map(hold), residual.as_ref().map(hold));
    // What is not there is bound to something that is, and not read.
    let bias_input = held.0.as_ref().map_or(Ok(x), |bias| bias.input())?;
    let residual_input = held.1.as_ref().map_or(Ok(x), |residual| residual.input())?;
    let aligned = x.layout.start_offset().is_multiple_of(plan::VECTOR);
    let flags = plan::flag(aligned, plan::ALIGNED)
        | plan::flag(bias.is_some(), plan::HAS_BIAS)
        | plan::flag(residual.is_some(), plan::HAS_RESIDUAL);
    let parameters = parameters(matrix, rows, flags)?;
    let device = x.storage.device();
    let kernel = format!("{kernel}_{}", matrix.kind().name());
    let pipeline = pipeline(device, Source::Blocks(matrix.kind()), &kernel, dtype)?;
    let out = Output::new(device, rows * matrix.outputs(), dtype)?;
    let grid = Grid {
        groups: (matrix.outputs().div_ceil(tile.0), rows.div_ceil(tile.1)),
        lanes: plan::PRODUCT_LANES,
    };
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        blocks.bind(encoder, 1);
        bias_input.bind(encoder, 2);
        residual_input.bind(encoder, 3);
        out.bind(encoder, 4);
        encoder.set_bytes(5, &parameters);
    })?;
    Ok(tensor(out, (rows, matrix.outputs())))
}

/// `numbers` are within the table, which is not empty, and neither are they.
pub fn rows(table: &DeviceBlocks, numbers: &[u32], dtype: DType) -> Result<Tensor> {
    let held = hold(table.bytes());
    let blocks = held.input()?;
    let device: &MetalDevice = blocks.storage.device();
    let kernel = format!("table_rows_{}", table.kind().name());
    let pipeline = pipeline(device, Source::Blocks(table.kind()), &kernel, dtype)?;
    let parameters = parameters(table, numbers.len(), 0)?;
    let out = Output::new(device, numbers.len() * table.inputs(), dtype)?;
    let indices = device.new_buffer_with_data(numbers)?;
    let grid = Grid::elementwise(table.inputs() / plan::RUN, numbers.len(), &pipeline);
    dispatch(device, &pipeline, grid, |encoder| {
        blocks.bind(encoder, 0);
        encoder.set_input_buffer(1, Some(&indices), 0);
        out.bind(encoder, 2);
        encoder.set_bytes(3, &parameters);
    })?;
    Ok(tensor(out, (numbers.len(), table.inputs())))
}

fn parameters(matrix: &DeviceBlocks, rows: usize, flags: u32) -> Result<BlockParameters> {
    let kind = matrix.kind();
    Ok(BlockParameters {
        inputs: plan::narrow(matrix.inputs())?,
        outputs: plan::narrow(matrix.outputs())?,
        rows: plan::narrow(rows)?,
        row_bytes: plan::narrow(matrix.inputs() / kind.elements() * kind.bytes())?,
        flags,
    })
}

fn tensor(out: Output<'_>, shape: (usize, usize)) -> Tensor {
    let storage = Storage::Metal(out.into_storage());
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}
