//! Launches the ops on a candle Metal device.

use candle_core::backend::BackendStorage;
use candle_core::{bail, DType, Layout, MetalStorage, Result, Shape, Tensor};

use super::operands::{dispatch, hold, Grid, Input, Output};
use super::pipelines::pipeline;
use super::plan::{self, RowStarts, Source};
use crate::ops::{
    Activate, EachElement, Gated, GatedClamped, L2Normalize, MeanPool, Norm, Rope, Softmax,
};
use crate::rows::Rows;
use crate::types::Function;
use crate::{Activation, RopeKind};

/// Weight and bias of a norm, dense and of the input's type.
struct Affine {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Affine {
    fn of(norm: &Norm, dtype: DType) -> Result<Affine> {
        let dense = |tensor: &Tensor| tensor.to_dtype(dtype)?.contiguous();
        Ok(Affine {
            weight: dense(&norm.weight)?,
            bias: norm.bias.as_ref().map(dense).transpose()?,
        })
    }

    fn is_aligned(&self) -> bool {
        let starts_aligned =
            |tensor: &Tensor| tensor.layout().start_offset().is_multiple_of(plan::VECTOR);
        starts_aligned(&self.weight) && self.bias.as_ref().is_none_or(starts_aligned)
    }
}

fn norm_parameters(
    norm: &Norm,
    affine: &Affine,
    rows: &Rows,
    residual: Option<&Rows>,
) -> Result<plan::NormParameters> {
    let aligned = plan::is_aligned(rows)
        && plan::output_is_aligned(rows.count, rows.width)
        && affine.is_aligned()
        && residual.is_none_or(plan::is_aligned);
    Ok(plan::NormParameters {
        columns: plan::narrow(rows.width)?,
        flags: plan::HAS_WEIGHT
            | plan::flag(aligned, plan::ALIGNED)
            | plan::flag(affine.bias.is_some(), plan::HAS_BIAS),
        epsilon: norm.epsilon,
        weight_offset: norm.weight_offset,
        input: RowStarts::of(rows)?,
        residual: residual.map_or(Ok(RowStarts::SINGLE), RowStarts::of)?,
    })
}

pub fn norm(op: &Norm, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
    let kernel = if op.centered {
        "layer_norm"
    } else {
        "rms_norm"
    };
    let (x, device) = (Input { storage, layout }, storage.device());
    let rows = x.rows(kernel)?;
    let affine = Affine::of(op, x.dtype())?;
    let parameters = norm_parameters(op, &affine, &rows, None)?;
    let pipeline = pipeline(device, Source::Norm, kernel, x.dtype())?;
    let out = Output::new(device, rows.count * rows.width, x.dtype())?;
    let held = (hold(&affine.weight), affine.bias.as_ref().map(hold));
    let weight = held.0.input()?;
    let bias = held.1.as_ref().map_or(Ok(x), |bias| bias.input())?;
    dispatch(
        device,
        &pipeline,
        Grid::of_rows(&rows, &pipeline),
        |encoder| {
            x.bind(encoder, 0);
            weight.bind(encoder, 1);
            bias.bind(encoder, 2);
            out.bind(encoder, 3);
            encoder.set_bytes(4, &parameters);
        },
    )?;
    Ok((out.into_storage(), layout.shape().clone()))
}

/// The norms of the sums, which are written over `x`.
pub fn add_norm(
    op: &Norm,
    (storage, layout): (&mut MetalStorage, &Layout),
    (residual, residual_layout): (&MetalStorage, &Layout),
) -> Result<MetalStorage> {
    let kernel = if op.centered {
        "add_layer_norm"
    } else {
        "add_rms_norm"
    };
    let storage = &*storage;
    let (x, device) = (Input { storage, layout }, storage.device());
    let residual = Input {
        storage: residual,
        layout: residual_layout,
    };
    let (rows, residual_rows) = (x.rows(kernel)?, residual.rows(kernel)?);
    let affine = Affine::of(op, x.dtype())?;
    let parameters = norm_parameters(op, &affine, &rows, Some(&residual_rows))?;
    let pipeline = pipeline(device, Source::Norm, kernel, x.dtype())?;
    let out = Output::new(device, rows.count * rows.width, x.dtype())?;
    let held = (hold(&affine.weight), affine.bias.as_ref().map(hold));
    let weight = held.0.input()?;
    let bias = held.1.as_ref().map_or(Ok(residual), |bias| bias.input())?;
    dispatch(
        device,
        &pipeline,
        Grid::of_rows(&rows, &pipeline),
        |encoder| {
            x.bind_for_writing(encoder, 0);
            residual.bind(encoder, 1);
            weight.bind(encoder, 2);
            bias.bind(encoder, 3);
            out.bind(encoder, 4);
            encoder.set_bytes(5, &parameters);
        },
    )?;
    Ok(out.into_storage())
}

pub fn softmax(
    op: &Softmax,
    storage: &MetalStorage,
    layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let (x, device) = (Input { storage, layout }, storage.device());
    let rows = x.rows("softmax")?;
    let held = [&op.additive, &op.keep, &op.lengths].map(|mask| mask.as_ref().map(hold));
    let mut masks = [x; 3];
    let mut mask_rows = [None, None, None];
    for (index, mask) in held.iter().enumerate() {
        if let Some(mask) = mask {
            masks[index] = mask.input()?;
            mask_rows[index] = Some(masks[index].rows("softmax")?);
        }
    }
    let [additive, keep, lengths] = mask_rows;
    let aligned = plan::is_aligned(&rows)
        && plan::output_is_aligned(rows.count, rows.width)
        && additive.as_ref().is_none_or(plan::is_aligned);
    let starts = |rows: &Option<Rows>| rows.as_ref().map_or(Ok(RowStarts::SINGLE), RowStarts::of);
    let parameters = plan::SoftmaxParameters {
        columns: plan::narrow(rows.width)?,
        flags: plan::flag(aligned, plan::ALIGNED)
            | plan::flag(additive.is_some(), plan::HAS_ADDITIVE)
            | plan::flag(keep.is_some(), plan::HAS_BOOLEAN)
            | plan::flag(lengths.is_some(), plan::HAS_LENGTHS),
        scale: op.scale,
        input: RowStarts::of(&rows)?,
        additive: starts(&additive)?,
        boolean: starts(&keep)?,
        lengths: starts(&lengths)?,
    };
    let pipeline = pipeline(device, Source::Softmax, "softmax", x.dtype())?;
    let out = Output::new(device, rows.count * rows.width, x.dtype())?;
    dispatch(
        device,
        &pipeline,
        Grid::of_rows(&rows, &pipeline),
        |encoder| {
            x.bind(encoder, 0);
            for (index, mask) in masks.iter().enumerate() {
                mask.bind(encoder, 1 + index);
            }
            out.bind(encoder, 4);
            encoder.set_bytes(5, &parameters);
        },
    )?;
    Ok((out.into_storage(), layout.shape().clone()))
}

fn activation_kernel(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu_erf",
        Activation::GeluTanh => "gelu_tanh",
        Activation::QuickGelu => "quick_gelu",
        Activation::Silu => "silu",
        Activation::Relu => "relu",
        Activation::Tanh => "tanh",
        Activation::Sigmoid => "sigmoid",
        Activation::ReluSquared => "relu_squared",
        Activation::Relu6 => "relu6",
        Activation::Identity => "identity",
    }
}

pub fn activate(
    op: &Activate,
    storage: &MetalStorage,
    layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let kernel = activation_kernel(op.0);
    let x = Input { storage, layout };
    let rows = plan::flattened(x.rows(kernel)?);
    Ok((
        run_activation(kernel, (x, &rows), None)?,
        layout.shape().clone(),
    ))
}

pub fn gated(
    op: &Gated,
    gate: &MetalStorage,
    layout: &Layout,
    up: &MetalStorage,
    up_layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let kernel = activation_kernel(op.0);
    let gate = Input {
        storage: gate,
        layout,
    };
    let up = Input {
        storage: up,
        layout: up_layout,
    };
    let (mut rows, mut up_rows) = (gate.rows(kernel)?, up.rows(kernel)?);
    if rows.is_dense() && up_rows.is_dense() {
        (rows, up_rows) = (plan::flattened(rows), plan::flattened(up_rows));
    }
    let out = run_activation(kernel, (gate, &rows), Some((up, &up_rows)))?;
    Ok((out, layout.shape().clone()))
}

fn run_activation(
    kernel: &str,
    (gate, rows): (Input<'_>, &Rows),
    up: Option<(Input<'_>, &Rows)>,
) -> Result<MetalStorage> {
    let device = gate.storage.device();
    let aligned = plan::is_aligned(rows)
        && plan::output_is_aligned(rows.count, rows.width)
        && up.is_none_or(|(_, up_rows)| plan::is_aligned(up_rows));
    let parameters = plan::ActivationParameters {
        columns: plan::narrow(rows.width)?,
        flags: plan::flag(aligned, plan::ALIGNED) | plan::flag(up.is_some(), plan::IS_GATED),
        gate: RowStarts::of(rows)?,
        up: up.map_or(Ok(RowStarts::SINGLE), |(_, up_rows)| RowStarts::of(up_rows))?,
    };
    let pipeline = pipeline(device, Source::Activation, kernel, gate.dtype())?;
    let out = Output::new(device, rows.count * rows.width, gate.dtype())?;
    let grid = Grid::elementwise(rows.width.div_ceil(plan::VECTOR), rows.count, &pipeline);
    dispatch(device, &pipeline, grid, |encoder| {
        gate.bind(encoder, 0);
        up.map_or(gate, |(up, _)| up).bind(encoder, 1);
        out.bind(encoder, 2);
        encoder.set_bytes(3, &parameters);
    })?;
    Ok(out.into_storage())
}

pub fn each_element(
    op: &EachElement,
    storage: &MetalStorage,
    layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let out = run_pointwise(Function::Pointwise(op.0), Input { storage, layout }, None)?;
    Ok((out, layout.shape().clone()))
}

pub fn clamped_glu(
    op: &GatedClamped,
    gate: &MetalStorage,
    layout: &Layout,
    up: &MetalStorage,
    up_layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let gate = Input {
        storage: gate,
        layout,
    };
    let up = Input {
        storage: up,
        layout: up_layout,
    };
    let out = run_pointwise(Function::ClampedGlu(op.0), gate, Some(up))?;
    Ok((out, layout.shape().clone()))
}

fn run_pointwise(
    function: Function,
    x: Input<'_>,
    other: Option<Input<'_>>,
) -> Result<MetalStorage> {
    let (device, kernel) = (x.storage.device(), function.kernel());
    let rows = x.rows(kernel)?;
    let other_rows = other.map(|other| other.rows(kernel)).transpose()?;
    let [first, second, third, fourth] = function.numbers();
    let parameters = plan::PointwiseParameters {
        columns: plan::narrow(rows.width)?,
        flags: plan::flag(other.is_some(), plan::IS_GATED),
        first,
        second,
        third,
        fourth,
        input: RowStarts::of(&rows)?,
        other: match &other_rows {
            Some(rows) => RowStarts::of(rows)?,
            None => RowStarts::SINGLE,
        },
    };
    let pipeline = pipeline(device, Source::Activation, kernel, x.dtype())?;
    let out = Output::new(device, rows.count * rows.width, x.dtype())?;
    let grid = Grid::elementwise(rows.width.div_ceil(plan::VECTOR), rows.count, &pipeline);
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        other.unwrap_or(x).bind(encoder, 1);
        out.bind(encoder, 2);
        encoder.set_bytes(3, &parameters);
    })?;
    Ok(out.into_storage())
}

pub fn rope(op: &Rope, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
    let (x, device) = (Input { storage, layout }, storage.device());
    let rows = x.rows("rope")?;
    let &[tokens, heads, width] = layout.dims() else {
        bail!(
            "rope: expected [tokens, heads, width], got {:?}",
            layout.dims()
        )
    };
    let (known_positions, pairs) = op.cosines.dims2()?;
    let held = [&op.cosines, &op.sines, &op.positions].map(hold);
    let [cosines, sines, positions] = [held[0].input()?, held[1].input()?, held[2].input()?];
    let aligned = plan::is_aligned(&rows)
        && plan::output_is_aligned(rows.count, width)
        && pairs.is_multiple_of(plan::VECTOR)
        && [cosines, sines]
            .iter()
            .all(|table| table.layout.start_offset().is_multiple_of(plan::VECTOR));
    let parameters = plan::RopeParameters {
        columns: plan::narrow(width)?,
        rotated: plan::narrow(2 * pairs)?,
        known_positions: plan::narrow(known_positions)?,
        flags: plan::flag(aligned, plan::ALIGNED)
            | plan::flag(op.kind == RopeKind::Interleaved, plan::INTERLEAVED),
        input: RowStarts::of(&rows)?,
        positions: RowStarts::per_token(tokens, heads)?,
    };
    let pipeline = pipeline(device, Source::Rope, "rope", x.dtype())?;
    let out = Output::new(device, rows.count * width, x.dtype())?;
    let grid = Grid::elementwise(plan::rope_lanes(width, 2 * pairs), rows.count, &pipeline);
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        cosines.bind(encoder, 1);
        sines.bind(encoder, 2);
        positions.bind(encoder, 3);
        out.bind(encoder, 4);
        encoder.set_bytes(5, &parameters);
    })?;
    Ok((out.into_storage(), layout.shape().clone()))
}

pub fn mean_pool(
    op: &MeanPool,
    storage: &MetalStorage,
    layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let (x, device) = (Input { storage, layout }, storage.device());
    let rows = x.rows("mean_pool")?;
    let [_, _, (_, row_stride)] = rows.dims;
    let sequences = op.boundaries.len().saturating_sub(1);
    let shape = Shape::from((sequences, rows.width));
    let aligned = plan::is_aligned(&rows) && plan::output_is_aligned(sequences, rows.width);
    let parameters = plan::PoolParameters {
        columns: plan::narrow(rows.width)?,
        flags: plan::flag(aligned, plan::ALIGNED),
        row_stride: plan::narrow(row_stride)?,
    };
    let pipeline = pipeline(device, Source::Pooling, "mean_pool", x.dtype())?;
    let out = Output::new(device, sequences * rows.width, x.dtype())?;
    let grid = Grid {
        groups: (rows.width.div_ceil(plan::POOL_COLUMNS), sequences),
        lanes: plan::POOL_LANES,
    };
    if grid.is_empty() {
        return Ok((out.into_storage(), shape));
    }
    let boundaries = device.new_buffer_with_data(&op.boundaries)?;
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        encoder.set_input_buffer(1, Some(&boundaries), 0);
        out.bind(encoder, 2);
        encoder.set_bytes(3, &parameters);
    })?;
    Ok((out.into_storage(), shape))
}

pub fn l2_normalize(
    op: &L2Normalize,
    storage: &MetalStorage,
    layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let (x, device) = (Input { storage, layout }, storage.device());
    let rows = x.rows("l2_normalize")?;
    let aligned = plan::is_aligned(&rows) && plan::output_is_aligned(rows.count, rows.width);
    let parameters = plan::L2Parameters {
        columns: plan::narrow(rows.width)?,
        flags: plan::flag(aligned, plan::ALIGNED),
        epsilon: op.least,
        input: RowStarts::of(&rows)?,
    };
    let pipeline = pipeline(device, Source::Pooling, "l2_normalize", x.dtype())?;
    let out = Output::new(device, rows.count * rows.width, x.dtype())?;
    dispatch(
        device,
        &pipeline,
        Grid::of_rows(&rows, &pipeline),
        |encoder| {
            x.bind(encoder, 0);
            out.bind(encoder, 1);
            encoder.set_bytes(2, &parameters);
        },
    )?;
    Ok((out.into_storage(), layout.shape().clone()))
}
