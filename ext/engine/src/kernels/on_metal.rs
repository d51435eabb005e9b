//! The custom ops' calls of the Metal launcher.

use candle_core::{DType, Layout, MetalStorage, Result, Shape, Storage, StorageRef, Tensor};

use super::metal::{self, Affine, Input, Masks};
use super::ops::{Activate, Gated, L2Normalize, MeanPool, Norm, Rope, Softmax};

type Held<'a> = (StorageRef<'a>, &'a Layout);

fn input<'a>(held: &'a Held<'_>) -> Result<Input<'a>> {
    match &*held.0 {
        Storage::Metal(storage) => Ok(Input::new(storage, held.1)),
        _ => candle_core::bail!("a kernel's tensors must all be on one device"),
    }
}

fn optional<'a>(held: &'a Option<Held<'_>>) -> Result<Option<Input<'a>>> {
    held.as_ref().map(input).transpose()
}

/// Runs `work` with weight and bias in the input's type.
fn with_affine<R>(op: &Norm, dtype: DType, work: impl FnOnce(&Affine<'_>) -> Result<R>) -> Result<R> {
    let vector = |t: &Tensor| t.to_dtype(dtype)?.contiguous();
    let weight = vector(&op.weight)?;
    let bias = op.bias.as_ref().map(vector).transpose()?;
    let weight = weight.storage_and_layout();
    let bias = bias.as_ref().map(Tensor::storage_and_layout);
    work(&Affine {
        weight: Some(input(&weight)?),
        bias: optional(&bias)?,
        weight_offset: op.weight_offset,
    })
}

pub(super) fn norm(op: &Norm, x: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
    use candle_core::backend::BackendStorage;
    let out = with_affine(op, x.dtype(), |affine| {
        metal::norm(Input::new(x, layout), affine, op.centered, op.epsilon)
    })?;
    Ok((out, layout.shape().clone()))
}

/// The sums, then their norms.
pub(super) fn add_norm(
    op: &Norm,
    x: (&MetalStorage, &Layout),
    residual: (&MetalStorage, &Layout),
) -> Result<(MetalStorage, MetalStorage)> {
    use candle_core::backend::BackendStorage;
    with_affine(op, x.0.dtype(), |affine| {
        let (x, residual) = (Input::new(x.0, x.1), Input::new(residual.0, residual.1));
        metal::add_norm(x, residual, affine, op.centered, op.epsilon)
    })
}

pub(super) fn softmax(
    op: &Softmax,
    x: &MetalStorage,
    layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    // The launcher takes lengths without the last dimension of size 1.
    let lengths = op
        .lengths
        .as_ref()
        .map(|lengths| lengths.squeeze(candle_core::D::Minus1))
        .transpose()?;
    let held = [&op.additive, &op.keep, &lengths]
        .map(|mask| mask.as_ref().map(Tensor::storage_and_layout));
    let masks = Masks {
        additive: optional(&held[0])?,
        keep: optional(&held[1])?,
        lengths: optional(&held[2])?,
    };
    let out = metal::softmax(Input::new(x, layout), op.scale, &masks)?;
    Ok((out, layout.shape().clone()))
}

pub(super) fn activate(
    op: &Activate,
    x: &MetalStorage,
    layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let out = metal::activate(Input::new(x, layout), op.0)?;
    Ok((out, layout.shape().clone()))
}

pub(super) fn gated(
    op: &Gated,
    gate: &MetalStorage,
    layout: &Layout,
    up: &MetalStorage,
    up_layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let out = metal::gated(Input::new(gate, layout), Input::new(up, up_layout), op.0)?;
    Ok((out, layout.shape().clone()))
}

pub(super) fn rope(op: &Rope, x: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
    let held = [&op.cosines, &op.sines, &op.positions].map(Tensor::storage_and_layout);
    let tables = (input(&held[0])?, input(&held[1])?);
    let (_, pairs) = op.cosines.dims2()?;
    let x = Input::new(x, layout);
    let out = metal::rope(x, tables, input(&held[2])?, op.kind, 2 * pairs)?;
    Ok((out, layout.shape().clone()))
}

pub(super) fn mean_pool(
    op: &MeanPool,
    x: &MetalStorage,
    layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let out = metal::mean_pool(Input::new(x, layout), &op.boundaries)?;
    Ok((out, (op.boundaries.len() - 1, layout.dims()[1]).into()))
}

pub(super) fn l2_normalize(
    op: &L2Normalize,
    x: &MetalStorage,
    layout: &Layout,
) -> Result<(MetalStorage, Shape)> {
    let out = metal::l2_normalize(Input::new(x, layout), op.least)?;
    Ok((out, layout.shape().clone()))
}
