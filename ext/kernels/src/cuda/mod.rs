//! The row kernels on CUDA; beside them attention and products.

pub(super) mod attention;
mod attention_runs;
mod blas;
mod block_panels;
pub(super) mod blocks;
pub(super) mod columns;
mod compile;
pub(super) mod device;
pub(super) mod expert_matrices;
pub(super) mod experts;
pub(super) mod fp8;
pub(super) mod gated_norm;
pub(super) mod gather;
pub(super) mod largest;
mod launch;
pub(super) mod matrix;
mod memory;
pub(super) mod order;
mod parameters;
pub(super) mod product;
pub(super) mod recording;
pub(super) mod sampling;
pub(super) mod scan;
pub(super) mod scan_gates;
mod staging;
pub(super) mod store;
mod tensor_map;
mod wide_product;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaView, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{
    CudaDevice, CudaStorage, DType, Layout, Result, Shape, Storage, StorageRef, Tensor, WithDType,
};
use half::{bf16, f16};

use super::ops::{
    Activate, EachElement, Gated, GatedClamped, L2Normalize, MeanPool, Norm, Rope, Softmax,
};
use super::rows::Rows;
use super::types::Function;
use super::{Activation, RopeKind};
use device::ALIGNMENT;
use launch::{argument, launch_early};
use parameters::small;
use parameters::{
    ActivationParameters, DeviceRows, NormParameters, PointwiseParameters, PoolParameters,
    RopeParameters, SoftmaxParameters, CENTERED, HAS_ADDITIVE, HAS_BIAS, HAS_KEEP, HAS_LENGTHS,
    HAS_RESIDUAL,
};

/// Threads of a block that walks over elements.
const ELEMENT_THREADS: usize = 256;

/// Elements that a thread of the `_vectors` kernels reads at a time, and how many times it may.
const VECTOR: usize = 8;
const HELD: usize = 4;

/// Fewer rows than this leave most of the GPU idle: then a row gets as many threads as it can use.
const MANY_ROWS: usize = 512;

trait Float: CudaDType + DeviceRepr + WithDType {}
impl Float for f32 {}
impl Float for f16 {}
impl Float for bf16 {}

fn function<T: Float>(device: &CudaDevice, kernel: &str) -> Result<CudaFunction> {
    compile::function(device, compile::ROWS, kernel, T::DTYPE, &[], 0)
}

/// One block per row, as wide as the row asks for.
fn row_grid(rows: &Rows) -> Result<LaunchConfig> {
    let threads = rows.width.div_ceil(4).next_multiple_of(32).clamp(32, 1024);
    Ok(LaunchConfig {
        grid_dim: (small(rows.count)?, 1, 1),
        block_dim: (threads as u32, 1, 1),
        shared_mem_bytes: 0,
    })
}

/// A grid for the kernel that holds rows in registers, where they fit.
fn vector_grid(rows: &Rows) -> Result<Option<LaunchConfig>> {
    let vectors = rows.width / VECTOR;
    let warps = |threads: usize| threads.next_multiple_of(32);
    let (threads, together) = match vectors {
        _ if vectors > 1024 * HELD => return Ok(None),
        _ if rows.count < MANY_ROWS => (warps(vectors).min(1024), 1),
        0..=128 => (32, 4),
        _ => (warps(vectors.div_ceil(HELD)), 1),
    };
    Ok(Some(LaunchConfig {
        grid_dim: (small(rows.count.div_ceil(together))?, 1, 1),
        block_dim: (threads as u32, together as u32, 1),
        shared_mem_bytes: 0,
    }))
}

/// A tensor on the device: its elements from its first on, and its rows.
struct Input<'a, T> {
    view: CudaView<'a, T>,
    rows: Rows,
}

impl<'a, T: CudaDType> Input<'a, T> {
    fn new(storage: &'a CudaStorage, layout: &Layout) -> Result<Self> {
        let slice = storage.as_cuda_slice::<T>()?;
        match Rows::of(layout) {
            // Nothing can be cut off an empty tensor.
            Some(rows) if slice.len() <= rows.start => Ok(Self {
                view: slice.as_view(),
                rows,
            }),
            Some(rows) => Ok(Self {
                view: slice.slice(rows.start..),
                rows,
            }),
            None => candle_core::bail!("a kernel needs a contiguous last dimension"),
        }
    }

    /// Whether every row can be read a vector at a time.
    fn is_aligned(&self) -> bool {
        let size = size_of::<T>();
        let mut offsets = vec![self.rows.start, self.rows.width];
        offsets.extend(self.rows.dims.iter().map(|&(_, stride)| stride));
        self.rows.width.is_multiple_of(VECTOR)
            && offsets
                .iter()
                .all(|offset| ((offset * size) as u64).is_multiple_of(ALIGNMENT))
    }

    fn held(held: &'a (StorageRef<'_>, &Layout)) -> Result<Self> {
        match &*held.0 {
            Storage::Cuda(storage) => Self::new(storage, held.1),
            _ => candle_core::bail!("a kernel's tensors must all be on one device"),
        }
    }
}

/// Runs `$body` with `$T` the element type.
macro_rules! for_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::F16 => {
                type $T = f16;
                $body
            }
            DType::BF16 => {
                type $T = bf16;
                $body
            }
            other => candle_core::bail!("kernels take f32, f16 or bf16 tensors, not {other:?}"),
        }
    };
}

/// A weight or bias in the input's type.
fn vector(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let vector = tensor.to_dtype(dtype)?.contiguous()?;
    device::keep(&vector);
    Ok(vector)
}

/// With a residual, the sums are written over `x`.
fn run_norm<T: Float>(
    op: &Norm,
    x: (&CudaStorage, &Layout),
    residual: Option<(&CudaStorage, &Layout)>,
) -> Result<CudaStorage> {
    let device = x.0.device().clone();
    let input = Input::<T>::new(x.0, x.1)?;
    let other = residual.map(|(s, l)| Input::<T>::new(s, l)).transpose()?;
    let weights = vector(&op.weight, T::DTYPE)?;
    let bias = op.bias.as_ref().map(|b| vector(b, T::DTYPE)).transpose()?;
    let weight = weights.storage_and_layout();
    let weight = Input::<T>::held(&weight)?;
    let bias = bias.as_ref().map(Tensor::storage_and_layout);
    let bias = bias.as_ref().map(Input::<T>::held).transpose()?;
    let flag = |on: bool, bit: u32| if on { bit } else { 0 };
    let parameters = NormParameters {
        columns: small(input.rows.width)?,
        flags: flag(bias.is_some(), HAS_BIAS)
            | flag(op.centered, CENTERED)
            | flag(other.is_some(), HAS_RESIDUAL),
        epsilon: op.epsilon,
        weight_offset: op.weight_offset,
        input: DeviceRows::of(&input.rows)?,
        residual: match &other {
            Some(other) => DeviceRows::of(&other.rows)?,
            None => DeviceRows::NONE,
        },
        rows: small(input.rows.count)?,
    };
    let elements = input.rows.count * input.rows.width;
    // SAFETY: the memory is uninitialized; the kernel launched below writes all `elements` before anything on the
    // stream reads them.
    let normed = unsafe { recording::alloc::<T>(&device, elements)? };
    if elements > 0 {
        let aligned = [Some(&input), other.as_ref(), Some(&weight), bias.as_ref()];
        let vectors = if aligned.into_iter().flatten().all(Input::is_aligned) {
            vector_grid(&input.rows)?
        } else {
            None
        };
        let (kernel, grid) = match vectors {
            Some(grid) => {
                if input.rows.width <= VECTOR * grid.block_dim.0 as usize {
                    ("norm_single_vectors", grid)
                } else {
                    ("norm_vectors", grid)
                }
            }
            None => ("norm_rows", row_grid(&input.rows)?),
        };
        let function = function::<T>(&device, kernel)?;
        let stream = device.cuda_stream();
        // What is not there is not read: any address serves.
        let addresses = [
            Some(&input.view),
            other.as_ref().map(|other| &other.view),
            Some(&weight.view),
            bias.as_ref().map(|bias| &bias.view),
        ]
        .map(|view| view.unwrap_or(&input.view).device_ptr(&stream).0);
        let out = normed.device_ptr(&stream).0;
        let [from, other, weight, bias] = &addresses;
        let arguments = [from, other, weight, bias, &out].map(argument);
        let arguments = [&arguments[..], &[argument(&parameters)]].concat();
        // SAFETY: the arguments are those of the kernel, and rows lie within their buffers; it reads the weight ahead.
        unsafe {
            launch_early(
                &device,
                &function,
                grid,
                &arguments,
                recording::is_older(&weights),
            )
        }?;
    }
    Ok(CudaStorage::wrap_cuda_slice(normed, device))
}

pub(super) fn norm(op: &Norm, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let out = for_float!(x.dtype(), T => run_norm::<T>(op, (x, layout), None)?);
    Ok((out, layout.shape().clone()))
}

/// The norms of the sums, which are written over `x`.
pub(super) fn add_norm(
    op: &Norm,
    x: (&mut CudaStorage, &Layout),
    residual: (&CudaStorage, &Layout),
) -> Result<CudaStorage> {
    for_float!(x.0.dtype(), T => run_norm::<T>(op, (x.0, x.1), Some(residual)))
}

fn run_softmax<T: Float>(op: &Softmax, x: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
    let device = x.device().clone();
    let input = Input::<T>::new(x, layout)?;
    let held = [&op.additive, &op.keep, &op.lengths]
        .map(|mask| mask.as_ref().map(Tensor::storage_and_layout));
    let additive = held[0].as_ref().map(Input::<T>::held).transpose()?;
    let keep = held[1].as_ref().map(Input::<u8>::held).transpose()?;
    let lengths = held[2].as_ref().map(Input::<u32>::held).transpose()?;
    let rows = |rows: Option<&Rows>| rows.map_or(Ok(DeviceRows::NONE), DeviceRows::of);
    let flag = |on: bool, bit: u32| if on { bit } else { 0 };
    let parameters = SoftmaxParameters {
        columns: small(input.rows.width)?,
        flags: flag(additive.is_some(), HAS_ADDITIVE)
            | flag(keep.is_some(), HAS_KEEP)
            | flag(lengths.is_some(), HAS_LENGTHS),
        scale: op.scale,
        lowest: crate::types::lowest_finite(T::DTYPE),
        input: DeviceRows::of(&input.rows)?,
        additive: rows(additive.as_ref().map(|m| &m.rows))?,
        keep: rows(keep.as_ref().map(|m| &m.rows))?,
        lengths: rows(lengths.as_ref().map(|m| &m.rows))?,
    };
    let elements = input.rows.count * input.rows.width;
    // SAFETY: the memory is uninitialized; the kernel launched below writes all `elements` before anything on the
    // stream reads them.
    let out = unsafe { recording::alloc::<T>(&device, elements)? };
    if elements > 0 {
        let function = function::<T>(&device, "softmax")?;
        let stream = device.cuda_stream();
        let mut builder = stream.launch_builder(&function);
        builder.arg(&input.view);
        builder.arg(additive.as_ref().map_or(&input.view, |m| &m.view));
        // A mask that is not there is not read: any pointer serves.
        match &keep {
            Some(keep) => builder.arg(&keep.view),
            None => builder.arg(&input.view),
        };
        match &lengths {
            Some(lengths) => builder.arg(&lengths.view),
            None => builder.arg(&input.view),
        };
        builder.arg(&out);
        builder.arg(&parameters);
        // SAFETY: the arguments are those of the kernel, and rows lie within their buffers.
        unsafe { builder.launch(row_grid(&input.rows)?) }.w()?;
    }
    Ok(CudaStorage::wrap_cuda_slice(out, device))
}

pub(super) fn softmax(
    op: &Softmax,
    x: &CudaStorage,
    layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let out = for_float!(x.dtype(), T => run_softmax::<T>(op, x, layout)?);
    Ok((out, layout.shape().clone()))
}

fn run_activation<T: Float>(
    activation: Activation,
    gate: (&CudaStorage, &Layout),
    up: Option<(&CudaStorage, &Layout)>,
) -> Result<CudaStorage> {
    let device = gate.0.device().clone();
    let input = Input::<T>::new(gate.0, gate.1)?;
    let other = up.map(|(s, l)| Input::<T>::new(s, l)).transpose()?;
    let elements = input.rows.count * input.rows.width;
    let dense = gate.1.is_contiguous() && up.is_none_or(|(_, layout)| layout.is_contiguous());
    let parameters = ActivationParameters {
        elements: elements as u64,
        columns: small(input.rows.width)?,
        activation: activation.number(),
        gated: u32::from(other.is_some()),
        dense: u32::from(dense),
        gate: DeviceRows::of(&input.rows)?,
        up: match &other {
            Some(other) => DeviceRows::of(&other.rows)?,
            None => DeviceRows::NONE,
        },
    };
    let aligned = [Some(&input), other.as_ref()];
    let aligned = aligned.into_iter().flatten().all(Input::is_aligned);
    let vectors = aligned && elements / VECTOR <= i32::MAX as usize;
    let kernel = if vectors {
        ("activate_vectors", elements / VECTOR)
    } else {
        ("activate", elements)
    };
    run_elements(
        &device,
        kernel,
        (&input, other.as_ref()),
        elements,
        &parameters,
    )
}

/// Launches a kernel that writes one element for each of `elements`, in so many `steps`.
fn run_elements<T: Float, P: DeviceRepr>(
    device: &CudaDevice,
    (kernel, steps): (&'static str, usize),
    (input, other): (&Input<T>, Option<&Input<T>>),
    elements: usize,
    parameters: &P,
) -> Result<CudaStorage> {
    // SAFETY: the memory is uninitialized; the kernel launched below writes all `elements` before anything on the
    // stream reads them.
    let out = unsafe { recording::alloc::<T>(device, elements)? };
    if elements > 0 {
        let function = function::<T>(device, kernel)?;
        let stream = device.cuda_stream();
        let mut builder = stream.launch_builder(&function);
        builder.arg(&input.view);
        builder.arg(other.map_or(&input.view, |other| &other.view));
        builder.arg(&out);
        builder.arg(parameters);
        let blocks = steps.div_ceil(ELEMENT_THREADS).min(1 << 16);
        // SAFETY: the arguments are those of the kernel, and rows lie within their buffers.
        unsafe {
            builder.launch(LaunchConfig {
                grid_dim: (blocks as u32, 1, 1),
                block_dim: (ELEMENT_THREADS as u32, 1, 1),
                shared_mem_bytes: 0,
            })
        }
        .w()?;
    }
    Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
}

pub(super) fn activate(
    op: &Activate,
    x: &CudaStorage,
    layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let out = for_float!(x.dtype(), T => run_activation::<T>(op.0, (x, layout), None)?);
    Ok((out, layout.shape().clone()))
}

pub(super) fn gated(
    op: &Gated,
    gate: &CudaStorage,
    layout: &Layout,
    up: &CudaStorage,
    up_layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let up = Some((up, up_layout));
    let out = for_float!(gate.dtype(), T => run_activation::<T>(op.0, (gate, layout), up)?);
    Ok((out, layout.shape().clone()))
}

fn run_pointwise<T: Float>(
    function: Function,
    x: (&CudaStorage, &Layout),
    other: Option<(&CudaStorage, &Layout)>,
) -> Result<CudaStorage> {
    let device = x.0.device().clone();
    let input = Input::<T>::new(x.0, x.1)?;
    let other = other.map(|(s, l)| Input::<T>::new(s, l)).transpose()?;
    let elements = input.rows.count * input.rows.width;
    let parameters = PointwiseParameters {
        elements: elements as u64,
        columns: small(input.rows.width)?,
        function: function.number(),
        numbers: function.numbers(),
        input: DeviceRows::of(&input.rows)?,
        other: match &other {
            Some(other) => DeviceRows::of(&other.rows)?,
            None => DeviceRows::NONE,
        },
    };
    let inputs = (&input, other.as_ref());
    run_elements(
        &device,
        ("pointwise", elements),
        inputs,
        elements,
        &parameters,
    )
}

pub(super) fn each_element(
    op: &EachElement,
    x: &CudaStorage,
    layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let function = Function::Pointwise(op.0);
    let out = for_float!(x.dtype(), T => run_pointwise::<T>(function, (x, layout), None)?);
    Ok((out, layout.shape().clone()))
}

pub(super) fn clamped_glu(
    op: &GatedClamped,
    gate: &CudaStorage,
    layout: &Layout,
    up: &CudaStorage,
    up_layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let (function, up) = (Function::ClampedGlu(op.0), Some((up, up_layout)));
    let out = for_float!(gate.dtype(), T => run_pointwise::<T>(function, (gate, layout), up)?);
    Ok((out, layout.shape().clone()))
}

fn run_rope<T: Float>(op: &Rope, x: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
    let device = x.device().clone();
    let input = Input::<T>::new(x, layout)?;
    let tables = [&op.cosines, &op.sines, &op.positions];
    tables.into_iter().for_each(device::keep);
    let held = tables.map(Tensor::storage_and_layout);
    let (cosines, sines) = (Input::<f32>::held(&held[0])?, Input::<f32>::held(&held[1])?);
    let positions = Input::<u32>::held(&held[2])?;
    let (known, pairs) = op.cosines.dims2()?;
    let parameters = RopeParameters {
        columns: small(input.rows.width)?,
        rotated: small(2 * pairs)?,
        heads: small(layout.dims()[1])?,
        known: small(known)?,
        interleaved: u32::from(op.kind == RopeKind::Interleaved),
        input: DeviceRows::of(&input.rows)?,
    };
    let elements = input.rows.count * input.rows.width;
    // SAFETY: the memory is uninitialized; the kernel launched below writes all `elements` before anything on the
    // stream reads them.
    let out = unsafe { recording::alloc::<T>(&device, elements)? };
    if elements > 0 {
        let function = function::<T>(&device, "rope")?;
        let stream = device.cuda_stream();
        let mut builder = stream.launch_builder(&function);
        builder.arg(&input.view);
        builder.arg(&cosines.view);
        builder.arg(&sines.view);
        builder.arg(&positions.view);
        builder.arg(&out);
        builder.arg(&parameters);
        // SAFETY: the arguments are those of the kernel, and rows lie within their buffers.
        unsafe { builder.launch(row_grid(&input.rows)?) }.w()?;
    }
    Ok(CudaStorage::wrap_cuda_slice(out, device))
}

pub(super) fn rope(op: &Rope, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let out = for_float!(x.dtype(), T => run_rope::<T>(op, x, layout)?);
    Ok((out, layout.shape().clone()))
}

fn run_mean_pool<T: Float>(op: &MeanPool, x: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
    let device = x.device().clone();
    let input = Input::<T>::new(x, layout)?;
    let sequences = op.boundaries.len() - 1;
    let parameters = PoolParameters {
        columns: small(input.rows.width)?,
        least: 0.0,
        input: DeviceRows::of(&input.rows)?,
    };
    let elements = sequences * input.rows.width;
    // SAFETY: the memory is uninitialized; the kernel launched below writes all `elements` before anything on the
    // stream reads them.
    let out = unsafe { recording::alloc::<T>(&device, elements)? };
    if elements > 0 {
        let boundaries = device::constant(&device, &op.boundaries)?;
        let first = boundaries.address();
        let function = function::<T>(&device, "mean_pool")?;
        let stream = device.cuda_stream();
        let mut builder = stream.launch_builder(&function);
        builder.arg(&input.view);
        builder.arg(&first);
        builder.arg(&out);
        builder.arg(&parameters);
        let blocks = input.rows.width.div_ceil(ELEMENT_THREADS);
        if sequences > 65_535 {
            candle_core::bail!("mean_pool: {sequences} sequences are more than one launch takes");
        }
        // SAFETY: the arguments are those of the kernel; the boundaries lie within the rows.
        unsafe {
            builder.launch(LaunchConfig {
                grid_dim: (small(blocks)?, sequences as u32, 1),
                block_dim: (ELEMENT_THREADS as u32, 1, 1),
                shared_mem_bytes: 0,
            })
        }
        .w()?;
    }
    Ok(CudaStorage::wrap_cuda_slice(out, device))
}

pub(super) fn mean_pool(
    op: &MeanPool,
    x: &CudaStorage,
    layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let out = for_float!(x.dtype(), T => run_mean_pool::<T>(op, x, layout)?);
    Ok((out, (op.boundaries.len() - 1, layout.dims()[1]).into()))
}

fn run_l2_normalize<T: Float>(
    op: &L2Normalize,
    x: &CudaStorage,
    layout: &Layout,
) -> Result<CudaStorage> {
    let device = x.device().clone();
    let input = Input::<T>::new(x, layout)?;
    let parameters = PoolParameters {
        columns: small(input.rows.width)?,
        least: op.least,
        input: DeviceRows::of(&input.rows)?,
    };
    let elements = input.rows.count * input.rows.width;
    // SAFETY: the memory is uninitialized; the kernel launched below writes all `elements` before anything on the
    // stream reads them.
    let out = unsafe { recording::alloc::<T>(&device, elements)? };
    if elements > 0 {
        let function = function::<T>(&device, "l2_normalize")?;
        let stream = device.cuda_stream();
        let mut builder = stream.launch_builder(&function);
        builder.arg(&input.view);
        builder.arg(&out);
        builder.arg(&parameters);
        // SAFETY: the arguments are those of the kernel, and rows lie within their buffers.
        unsafe { builder.launch(row_grid(&input.rows)?) }.w()?;
    }
    Ok(CudaStorage::wrap_cuda_slice(out, device))
}

pub(super) fn l2_normalize(
    op: &L2Normalize,
    x: &CudaStorage,
    layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let out = for_float!(x.dtype(), T => run_l2_normalize::<T>(op, x, layout)?);
    Ok((out, layout.shape().clone()))
}
