//! Launches products of rows with up to three matrices, dense or of quantized blocks, and what follows them.

use std::cell::Cell;

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{Result, Storage, Tensor};

use super::operands::{dispatch, gpu, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::product::{
    Format, Formats, ProductLaunch, ProductSource, Tiles, MOST_FEW_ROWS, MOST_MATRICES,
};
use super::plan::{self, ProductParameters, Source};
use crate::blocks::{BlockFactor, DeviceBlocks};
use crate::matrix::{Epilogue, Matrix};
use crate::Activation;

/// A matrix [outputs, inputs] and its bias.
#[derive(Clone, Copy)]
pub struct Factor<'a> {
    weight: Weight<'a>,
    bias: Option<&'a Tensor>,
}

#[derive(Clone, Copy)]
enum Weight<'a> {
    Dense(&'a Tensor),
    Blocks(&'a DeviceBlocks),
}

impl<'a> From<Matrix<'a>> for Factor<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Self {
            weight: Weight::Dense(matrix.weight),
            bias: matrix.bias,
        }
    }
}

impl<'a> From<BlockFactor<'a>> for Factor<'a> {
    fn from(factor: BlockFactor<'a>) -> Self {
        Self {
            weight: Weight::Blocks(factor.blocks),
            bias: factor.bias,
        }
    }
}

impl<'a> Factor<'a> {
    fn format(&self) -> Format {
        match self.weight {
            Weight::Dense(_) => Format::Dense,
            Weight::Blocks(blocks) => Format::Blocks(blocks.kind()),
        }
    }

    fn stored(&self) -> &'a Tensor {
        match self.weight {
            Weight::Dense(weight) => weight,
            Weight::Blocks(blocks) => blocks.bytes(),
        }
    }

    fn outputs(&self) -> usize {
        match self.weight {
            Weight::Dense(weight) => weight.dims().first().copied().unwrap_or(0),
            Weight::Blocks(blocks) => blocks.outputs(),
        }
    }

    /// Whether the kernels read it where it lies.
    fn suits(&self, x: &Tensor) -> bool {
        let inputs = x.dims().last();
        let sound = match self.weight {
            Weight::Dense(weight) => {
                weight.rank() == 2
                    && weight.dims().last() == inputs
                    && weight.is_contiguous()
                    && weight.dtype() == x.dtype()
                    && weight.layout().start_offset().is_multiple_of(plan::VECTOR)
            }
            Weight::Blocks(blocks) => Some(&blocks.inputs()) == inputs,
        };
        let same = |bias: &Tensor| bias.is_contiguous() && bias.dtype() == x.dtype();
        sound && self.bias.is_none_or(same)
    }
}

/// What becomes of the products.
#[derive(Clone, Copy)]
pub enum Outcome {
    /// They stand side by side, activated.
    Joined(Activation),
    /// activation(first) · second, of two matrices of one shape.
    Gated(Activation),
}

thread_local! {
    static FORCED: Cell<Option<Tiles>> = const { Cell::new(None) };
}

/// Runs `work` with these tiles instead of the GPU's own.
#[cfg(feature = "selftest")]
pub fn with_tiles<R>(tiles: Tiles, work: impl FnOnce() -> R) -> R {
    let before = FORCED.replace(Some(tiles));
    let result = work();
    FORCED.set(before);
    result
}

/// `None` where the shapes or layouts ask for another way. `x` is [rows, inputs], the residual of as many elements
/// as the result.
pub fn product(
    x: &Tensor,
    factors: &[Factor<'_>],
    outcome: Outcome,
    residual: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let (rows, inputs) = x.dims2()?;
    let (gated, activation) = match outcome {
        Outcome::Joined(activation) => (false, activation),
        Outcome::Gated(activation) => (true, activation),
    };
    let formats: Vec<Format> = factors.iter().map(Factor::format).collect();
    let Some(formats) = Formats::of(&formats) else {
        return Ok(None);
    };
    let x = x.contiguous()?;
    let pair = factors.len() == 2 && factors[0].outputs() == factors[1].outputs();
    let fits = factors.len() <= MOST_MATRICES
        && factors.iter().all(|factor| factor.suits(&x))
        && (!gated || pair);
    if !fits {
        return Ok(None);
    }
    let ends = ends(factors);
    let outputs = if gated {
        ends[0]
    } else {
        ends[MOST_MATRICES - 1]
    };
    let held = (hold(&x), residual.map(Tensor::contiguous).transpose()?);
    let input = held.0.input()?;
    let device = input.storage.device();
    let tiles = FORCED.get().unwrap_or_else(|| Tiles::of(gpu(device)));
    let Some(launch) = ProductLaunch::new((rows, inputs, outputs), gated, tiles) else {
        return Ok(None);
    };
    // What is not there is bound to something that is, and not read.
    let at = |index: usize| &factors[index.min(factors.len() - 1)];
    let matrices = [0, 1, 2].map(|index| hold(at(index).stored()));
    let biases = [0, 1, 2].map(|index| hold(at(index).bias.unwrap_or(&x)));
    let residual_held = hold(held.1.as_ref().unwrap_or(&x));
    let residual_input = residual_held.input()?;
    let aligned = input.layout.start_offset().is_multiple_of(plan::VECTOR);
    let mut flags =
        plan::flag(aligned, plan::ALIGNED) | plan::flag(residual.is_some(), plan::HAS_RESIDUAL);
    for (index, factor) in factors.iter().enumerate() {
        flags |= plan::flag(factor.bias.is_some(), plan::HAS_BIAS << index);
    }
    let parameters = ProductParameters {
        inputs: plan::narrow(inputs)?,
        outputs: plan::narrow(outputs)?,
        rows: plan::narrow(rows)?,
        first_end: plan::narrow(ends[0])?,
        second_end: plan::narrow(ends[1])?,
        activation: activation.number(),
        flags,
    };
    let kernel = format!("{}_{}", launch.kernel, formats.name());
    let dtype = x.dtype();
    let source = Source::Product(ProductSource {
        formats,
        dtype,
        tiles,
    });
    let pipeline = pipeline(device, source, &kernel, dtype)?;
    let out = Output::new(device, rows * outputs, dtype)?;
    let grid = Grid {
        groups: launch.groups,
        lanes: launch.lanes,
    };
    let matrices = [
        matrices[0].input()?,
        matrices[1].input()?,
        matrices[2].input()?,
    ];
    let biases = [biases[0].input()?, biases[1].input()?, biases[2].input()?];
    dispatch(device, &pipeline, grid, |encoder| {
        input.bind(encoder, 0);
        for (index, operand) in matrices.iter().chain(&biases).enumerate() {
            operand.bind(encoder, 1 + index);
        }
        residual_input.bind(encoder, 7);
        out.bind(encoder, 8);
        encoder.set_bytes(9, &parameters);
    })?;
    let storage = Storage::Metal(out.into_storage());
    let shape = (rows, outputs);
    Ok(Some(Tensor::from_storage(
        storage,
        shape,
        BackpropOp::none(),
        false,
    )))
}

/// Where the outputs of each matrix end among all.
fn ends(factors: &[Factor<'_>]) -> [usize; MOST_MATRICES] {
    let mut end = 0;
    [0, 1, 2].map(|index| {
        end += factors.get(index).map_or(0, Factor::outputs);
        end
    })
}

/// x · weightᵀ + bias and what follows.
pub fn multiply(x: &Tensor, factor: Factor<'_>, epilogue: &Epilogue<'_>) -> Result<Option<Tensor>> {
    let activation = epilogue.activation.unwrap_or(Activation::Identity);
    let (rows, outputs) = (x.dim(0)?, factor.outputs());
    let fits = |residual: &Tensor| {
        residual.elem_count() == rows * outputs && residual.dtype() == x.dtype()
    };
    if epilogue.residual.is_none_or(fits) {
        product(x, &[factor], Outcome::Joined(activation), epilogue.residual)
    } else {
        Ok(None)
    }
}

/// Whether candle's product is made for it: many rows, and nothing that follows.
fn is_candles(x: &Tensor, matrices: &[Matrix<'_>]) -> Result<bool> {
    let plain = matrices.iter().all(|matrix| matrix.bias.is_none());
    Ok(plain && x.dim(0)? > MOST_FEW_ROWS)
}

/// `multiply` with a matrix as a checkpoint stores it.
pub fn multiply_dense(
    x: &Tensor,
    matrix: &Matrix<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<Option<Tensor>> {
    let activates = !matches!(epilogue.activation, None | Some(Activation::Identity));
    let follows = activates || epilogue.residual.is_some();
    if !follows && is_candles(x, &[*matrix])? {
        Ok(None)
    } else {
        multiply(x, (*matrix).into(), epilogue)
    }
}

/// The products with several matrices side by side.
pub fn multiply_joined_dense(x: &Tensor, matrices: &[Matrix<'_>]) -> Result<Option<Tensor>> {
    if is_candles(x, matrices)? {
        return Ok(None);
    }
    let factors: Vec<Factor<'_>> = matrices.iter().map(|&matrix| matrix.into()).collect();
    product(x, &factors, Outcome::Joined(Activation::Identity), None)
}
