//! Launches products with a matrix for each head.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, Result, Storage, Tensor};

use super::operands::{dispatch, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::{self, HeadParameters, Source};

/// `None` where something is empty or of no type that kernels take. `x` is [tokens, heads, width], `matrices` [heads,
/// width, columns].
pub fn multiply(x: &Tensor, matrices: &Tensor) -> Result<Option<Tensor>> {
    let ((tokens, heads, width), dtype) = (x.dims3()?, x.dtype());
    let (_, _, columns) = matrices.dims3()?;
    let computed = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if !computed || matrices.dtype() != dtype || tokens * heads * width * columns == 0 {
        return Ok(None);
    }
    let (x, matrices) = (plan::dense_heads(x)?, plan::dense_heads(matrices)?);
    let aligned = [&x, &matrices].iter().all(|t| plan::heads_are_aligned(t));
    let (x_strides, matrix_strides) = (x.stride(), matrices.stride());
    let parameters = HeadParameters {
        tokens: plan::narrow(tokens)?,
        heads: plan::narrow(heads)?,
        width: plan::narrow(width)?,
        columns: plan::narrow(columns)?,
        x_token: plan::narrow(x_strides[0])?,
        x_head: plan::narrow(x_strides[1])?,
        matrix_head: plan::narrow(matrix_strides[0])?,
        matrix_row: plan::narrow(matrix_strides[1])?,
        flags: plan::flag(aligned, plan::ALIGNED),
    };
    let held = (hold(&x), hold(&matrices));
    let (x, matrices) = (held.0.input()?, held.1.input()?);
    let device = x.storage.device();
    let pipeline = pipeline(device, Source::Heads, "head_product", dtype)?;
    let out = Output::new(device, tokens * heads * columns, dtype)?;
    let grid = Grid {
        groups: (
            columns.div_ceil(plan::HEAD_SIDE) * heads,
            tokens.div_ceil(plan::HEAD_SIDE),
        ),
        lanes: plan::HEAD_LANES,
    };
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        matrices.bind(encoder, 1);
        out.bind(encoder, 2);
        encoder.set_bytes(3, &parameters);
    })?;
    let storage = Storage::Metal(out.into_storage());
    let shape = (tokens, heads, columns);
    Ok(Some(Tensor::from_storage(
        storage,
        shape,
        BackpropOp::none(),
        false,
    )))
}
