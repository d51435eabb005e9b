//! Launches the kernels on a candle Metal device.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{bail, DType, Layout, MetalDevice, MetalStorage, Result};
use candle_metal_kernels::metal::{Buffer, ComputeCommandEncoder, ComputePipeline};
use objc2_metal::MTLSize;

use super::pipelines::pipeline;
use super::plan::{self, RowView, Rows, Source};
use crate::kernels::{Activation, RopeKind};

/// A tensor on the device.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub storage: &'a MetalStorage,
    pub layout: &'a Layout,
}

/// What follows a normalization. Weight and bias are contiguous vectors of the input's type.
#[derive(Clone, Copy, Default)]
pub struct Affine<'a> {
    pub weight: Option<Input<'a>>,
    pub bias: Option<Input<'a>>,
    /// Added to the weight: 1 for Gemma.
    pub weight_offset: f32,
}

/// Masks of a softmax, broadcast to the input's shape by their layouts: `additive` of the input's
/// type, `keep` u8, `lengths` u32 with the input's shape but for the last dimension.
#[derive(Clone, Copy, Default)]
pub struct Masks<'a> {
    pub additive: Option<Input<'a>>,
    pub keep: Option<Input<'a>>,
    pub lengths: Option<Input<'a>>,
}

impl<'a> Input<'a> {
    pub fn new(storage: &'a MetalStorage, layout: &'a Layout) -> Self {
        Input { storage, layout }
    }

    fn dtype(&self) -> DType {
        self.storage.dtype()
    }

    fn rows(&self, kernel: &str) -> Result<RowView> {
        RowView::of(kernel, self.layout)
    }

    fn bind(&self, encoder: &ComputeCommandEncoder, index: usize) {
        let offset = self.layout.start_offset() * self.dtype().size_in_bytes();
        encoder.set_input_buffer(index, Some(self.storage.buffer()), offset);
    }

    fn expect(&self, kernel: &str, what: &str, dtype: DType) -> Result<()> {
        if self.dtype() != dtype {
            bail!("{kernel}: {what} is {:?}, expected {dtype:?}", self.dtype());
        }
        Ok(())
    }

    /// A vector along the row, such as a weight; whether it may be loaded four elements at once.
    fn expect_vector(
        &self,
        kernel: &str,
        what: &str,
        dtype: DType,
        columns: usize,
    ) -> Result<bool> {
        self.expect(kernel, what, dtype)?;
        if self.layout.shape().elem_count() != columns || !self.layout.is_contiguous() {
            bail!(
                "{kernel}: {what} of shape {:?} does not fit rows of {columns}",
                self.layout.dims()
            );
        }
        Ok(self.layout.start_offset() % plan::VECTOR == 0)
    }
}

/// An output being written, and the storage it becomes.
struct Output<'a> {
    device: &'a MetalDevice,
    buffer: Arc<Buffer>,
    count: usize,
    dtype: DType,
}

impl<'a> Output<'a> {
    fn new(device: &'a MetalDevice, count: usize, dtype: DType) -> Result<Self> {
        let buffer = device
            .new_buffer_builder()
            .with_size_for(count, dtype)
            .build()?;
        Ok(Output {
            device,
            buffer,
            count,
            dtype,
        })
    }

    fn bind(&self, encoder: &ComputeCommandEncoder, index: usize) {
        encoder.set_output_buffer(index, Some(&self.buffer), 0);
    }

    fn into_storage(self) -> MetalStorage {
        MetalStorage::new(self.buffer, self.device.clone(), self.count, self.dtype)
    }
}

struct Grid {
    groups: (usize, usize),
    lanes: usize,
}

impl Grid {
    fn of_rows(view: &RowView, pipeline: &ComputePipeline) -> Grid {
        let lanes = plan::row_lanes(view.columns, pipeline.max_total_threads_per_threadgroup());
        Grid {
            groups: (view.count, 1),
            lanes,
        }
    }

    fn elementwise(lanes_per_row: usize, rows: usize, pipeline: &ComputePipeline) -> Grid {
        let lanes = plan::ELEMENTWISE_LANES.min(pipeline.max_total_threads_per_threadgroup());
        Grid {
            groups: (lanes_per_row.div_ceil(lanes), rows),
            lanes,
        }
    }

    fn is_empty(&self) -> bool {
        self.groups.0 == 0 || self.groups.1 == 0
    }
}

/// Encodes one dispatch. The encoder holds the device's command lock: `bind` must not allocate.
fn dispatch(
    device: &MetalDevice,
    pipeline: &ComputePipeline,
    grid: Grid,
    bind: impl FnOnce(&ComputeCommandEncoder),
) -> Result<()> {
    if grid.is_empty() {
        return Ok(());
    }
    let guard = device.command_encoder()?;
    let encoder: &ComputeCommandEncoder = guard.as_ref();
    encoder.set_compute_pipeline_state(pipeline);
    bind(encoder);
    encoder.dispatch_thread_groups(
        MTLSize {
            width: grid.groups.0,
            height: grid.groups.1,
            depth: 1,
        },
        MTLSize {
            width: grid.lanes,
            height: 1,
            depth: 1,
        },
    );
    Ok(())
}

fn norm_parameters(
    kernel: &str,
    x: Input<'_>,
    residual: Option<Input<'_>>,
    affine: &Affine<'_>,
    epsilon: f32,
) -> Result<(RowView, plan::NormParameters)> {
    let view = x.rows(kernel)?;
    let mut aligned = view.aligned && view.output_aligned();
    let mut residual_rows = Rows::SINGLE;
    if let Some(residual) = residual {
        residual.expect(kernel, "the residual", x.dtype())?;
        if residual.layout.dims() != x.layout.dims() {
            bail!(
                "{kernel}: a residual of shape {:?} does not fit {:?}",
                residual.layout.dims(),
                x.layout.dims()
            );
        }
        let rows = residual.rows(kernel)?;
        aligned &= rows.aligned;
        residual_rows = rows.rows;
    }
    if let Some(weight) = affine.weight {
        aligned &= weight.expect_vector(kernel, "the weight", x.dtype(), view.columns)?;
    }
    if let Some(bias) = affine.bias {
        aligned &= bias.expect_vector(kernel, "the bias", x.dtype(), view.columns)?;
    }
    let parameters = plan::NormParameters {
        columns: plan::narrow(view.columns)?,
        flags: plan::flag(aligned, plan::ALIGNED)
            | plan::flag(affine.weight.is_some(), plan::HAS_WEIGHT)
            | plan::flag(affine.bias.is_some(), plan::HAS_BIAS),
        epsilon,
        weight_offset: affine.weight_offset,
        input: view.rows,
        residual: residual_rows,
    };
    Ok((view, parameters))
}

/// LayerNorm where `centered`, else RMSNorm, over the last dimension.
pub fn norm(
    x: Input<'_>,
    affine: &Affine<'_>,
    centered: bool,
    epsilon: f32,
) -> Result<MetalStorage> {
    let kernel = if centered { "layer_norm" } else { "rms_norm" };
    let device = x.storage.device();
    let (view, parameters) = norm_parameters(kernel, x, None, affine, epsilon)?;
    let pipeline = pipeline(device, Source::Norm, kernel, x.dtype())?;
    let out = Output::new(device, view.count * view.columns, x.dtype())?;
    dispatch(
        device,
        &pipeline,
        Grid::of_rows(&view, &pipeline),
        |encoder| {
            x.bind(encoder, 0);
            affine.weight.unwrap_or(x).bind(encoder, 1);
            affine.bias.unwrap_or(x).bind(encoder, 2);
            out.bind(encoder, 3);
            encoder.set_bytes(4, &parameters);
        },
    )?;
    Ok(out.into_storage())
}

/// x + residual, and its norm.
pub fn add_norm(
    x: Input<'_>,
    residual: Input<'_>,
    affine: &Affine<'_>,
    centered: bool,
    epsilon: f32,
) -> Result<(MetalStorage, MetalStorage)> {
    let kernel = if centered {
        "add_layer_norm"
    } else {
        "add_rms_norm"
    };
    let device = x.storage.device();
    let (view, parameters) = norm_parameters(kernel, x, Some(residual), affine, epsilon)?;
    let pipeline = pipeline(device, Source::Norm, kernel, x.dtype())?;
    let elements = view.count * view.columns;
    let sum = Output::new(device, elements, x.dtype())?;
    let out = Output::new(device, elements, x.dtype())?;
    dispatch(
        device,
        &pipeline,
        Grid::of_rows(&view, &pipeline),
        |encoder| {
            x.bind(encoder, 0);
            residual.bind(encoder, 1);
            affine.weight.unwrap_or(x).bind(encoder, 2);
            affine.bias.unwrap_or(x).bind(encoder, 3);
            sum.bind(encoder, 4);
            out.bind(encoder, 5);
            encoder.set_bytes(6, &parameters);
        },
    )?;
    Ok((sum.into_storage(), out.into_storage()))
}

/// Rows of a mask with the input's shape; `SINGLE` where there is none.
fn mask_rows(
    mask: Option<Input<'_>>,
    what: &str,
    dtype: DType,
    dims: &[usize],
) -> Result<(Rows, bool)> {
    let Some(mask) = mask else {
        return Ok((Rows::SINGLE, true));
    };
    mask.expect("softmax", what, dtype)?;
    if mask.layout.dims() != dims {
        bail!(
            "softmax: {what} of shape {:?} is not broadcast to {dims:?}",
            mask.layout.dims()
        );
    }
    let view = mask.rows("softmax")?;
    Ok((view.rows, view.aligned))
}

/// Softmax of scale · x over what the masks keep of the last dimension.
pub fn softmax(x: Input<'_>, scale: f32, masks: &Masks<'_>) -> Result<MetalStorage> {
    let device = x.storage.device();
    let dims = x.layout.dims();
    let view = x.rows("softmax")?;
    let (additive_rows, additive_aligned) =
        mask_rows(masks.additive, "the additive mask", x.dtype(), dims)?;
    let (boolean_rows, _) = mask_rows(masks.keep, "the boolean mask", DType::U8, dims)?;
    let length_rows = match masks.lengths {
        None => Rows::SINGLE,
        Some(lengths) => {
            lengths.expect("softmax", "the row lengths", DType::U32)?;
            if lengths.layout.dims() != &dims[..dims.len() - 1] {
                bail!(
                    "softmax: row lengths of shape {:?} do not fit {dims:?}",
                    lengths.layout.dims()
                );
            }
            Rows::along(lengths.layout.dims(), lengths.layout.stride())?
        }
    };
    let aligned = view.aligned && view.output_aligned() && additive_aligned;
    let parameters = plan::SoftmaxParameters {
        columns: plan::narrow(view.columns)?,
        flags: plan::flag(aligned, plan::ALIGNED)
            | plan::flag(masks.additive.is_some(), plan::HAS_ADDITIVE)
            | plan::flag(masks.keep.is_some(), plan::HAS_BOOLEAN)
            | plan::flag(masks.lengths.is_some(), plan::HAS_LENGTHS),
        scale,
        input: view.rows,
        additive: additive_rows,
        boolean: boolean_rows,
        lengths: length_rows,
    };
    let pipeline = pipeline(device, Source::Softmax, "softmax", x.dtype())?;
    let out = Output::new(device, view.count * view.columns, x.dtype())?;
    dispatch(
        device,
        &pipeline,
        Grid::of_rows(&view, &pipeline),
        |encoder| {
            x.bind(encoder, 0);
            masks.additive.unwrap_or(x).bind(encoder, 1);
            masks.keep.unwrap_or(x).bind(encoder, 2);
            masks.lengths.unwrap_or(x).bind(encoder, 3);
            out.bind(encoder, 4);
            encoder.set_bytes(5, &parameters);
        },
    )?;
    Ok(out.into_storage())
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
        Activation::Identity => "identity",
    }
}

pub fn activate(x: Input<'_>, activation: Activation) -> Result<MetalStorage> {
    let kernel = activation_kernel(activation);
    let view = x.rows(kernel)?.flattened(x.layout);
    run_activation(kernel, x, x, (view, view), 0)
}

/// activation(gate) · up; both may be strided, such as the halves of one fused projection.
pub fn gated(gate: Input<'_>, up: Input<'_>, activation: Activation) -> Result<MetalStorage> {
    let kernel = activation_kernel(activation);
    up.expect(kernel, "the second factor", gate.dtype())?;
    if gate.layout.dims() != up.layout.dims() {
        bail!(
            "{kernel}: factors of shapes {:?} and {:?} differ",
            gate.layout.dims(),
            up.layout.dims()
        );
    }
    let mut views = (gate.rows(kernel)?, up.rows(kernel)?);
    if gate.layout.is_contiguous() && up.layout.is_contiguous() {
        views = (views.0.flattened(gate.layout), views.1.flattened(up.layout));
    }
    run_activation(kernel, gate, up, views, plan::IS_GATED)
}

fn run_activation(
    kernel: &str,
    gate: Input<'_>,
    up: Input<'_>,
    (view, up_view): (RowView, RowView),
    flags: u32,
) -> Result<MetalStorage> {
    let device = gate.storage.device();
    let aligned = view.aligned && up_view.aligned && view.output_aligned();
    let parameters = plan::ActivationParameters {
        columns: plan::narrow(view.columns)?,
        flags: flags | plan::flag(aligned, plan::ALIGNED),
        gate: view.rows,
        up: up_view.rows,
    };
    let pipeline = pipeline(device, Source::Activation, kernel, gate.dtype())?;
    let out = Output::new(device, view.count * view.columns, gate.dtype())?;
    let grid = Grid::elementwise(view.columns.div_ceil(plan::VECTOR), view.count, &pipeline);
    dispatch(device, &pipeline, grid, |encoder| {
        gate.bind(encoder, 0);
        up.bind(encoder, 1);
        out.bind(encoder, 2);
        encoder.set_bytes(3, &parameters);
    })?;
    Ok(out.into_storage())
}

/// Rotates x [tokens, heads, width]: tables f32 [positions, rotary / 2], `positions` u32 [tokens].
pub fn rope(
    x: Input<'_>,
    (cosines, sines): (Input<'_>, Input<'_>),
    positions: Input<'_>,
    kind: RopeKind,
    rotary: usize,
) -> Result<MetalStorage> {
    let device = x.storage.device();
    let view = x.rows("rope")?;
    let &[tokens, heads, width] = x.layout.dims() else {
        bail!(
            "rope: expected [tokens, heads, width], got {:?}",
            x.layout.dims()
        )
    };
    if rotary > width || rotary % 2 != 0 {
        bail!("rope: {rotary} rotary elements do not fit heads of {width}");
    }
    positions.expect("rope", "the positions", DType::U32)?;
    if positions.layout.dims() != [tokens] {
        bail!(
            "rope: positions of shape {:?} do not fit {tokens} tokens",
            positions.layout.dims()
        );
    }
    let pairs = rotary / 2;
    let mut tables_aligned = true;
    for table in [cosines, sines] {
        table.expect("rope", "a table", DType::F32)?;
        if !table.layout.is_contiguous() || table.layout.dims().last() != Some(&pairs) {
            bail!(
                "rope: a table of shape {:?} does not hold rows of {pairs}",
                table.layout.dims()
            );
        }
        tables_aligned &= table.layout.start_offset() % plan::VECTOR == 0;
    }
    let aligned =
        view.aligned && view.output_aligned() && tables_aligned && pairs % plan::VECTOR == 0;
    let parameters = plan::RopeParameters {
        columns: plan::narrow(width)?,
        rotated: plan::narrow(rotary)?,
        flags: plan::flag(aligned, plan::ALIGNED)
            | plan::flag(kind == RopeKind::Interleaved, plan::INTERLEAVED),
        input: view.rows,
        positions: Rows::along(&[tokens, heads], &[positions.layout.stride()[0], 0])?,
    };
    let pipeline = pipeline(device, Source::Rope, "rope", x.dtype())?;
    let out = Output::new(device, view.count * width, x.dtype())?;
    let grid = Grid::elementwise(plan::rope_lanes(width, rotary), view.count, &pipeline);
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        cosines.bind(encoder, 1);
        sines.bind(encoder, 2);
        positions.bind(encoder, 3);
        out.bind(encoder, 4);
        encoder.set_bytes(5, &parameters);
    })?;
    Ok(out.into_storage())
}

/// The mean of the rows from `boundaries[i]` to `boundaries[i + 1]` for every i; x is [tokens, width].
pub fn mean_pool(x: Input<'_>, boundaries: &[u32]) -> Result<MetalStorage> {
    let device = x.storage.device();
    let view = x.rows("mean_pool")?;
    if x.layout.dims().len() != 2 {
        bail!(
            "mean_pool: expected [tokens, width], got {:?}",
            x.layout.dims()
        );
    }
    let ordered = boundaries.windows(2).all(|pair| pair[0] <= pair[1]);
    if !ordered
        || boundaries
            .last()
            .is_some_and(|last| *last as usize > view.count)
    {
        bail!(
            "mean_pool: the boundaries {boundaries:?} do not fit {} tokens",
            view.count
        );
    }
    let sequences = boundaries.len().saturating_sub(1);
    let aligned = view.aligned && (sequences <= 1 || view.columns % plan::VECTOR == 0);
    let parameters = plan::PoolParameters {
        columns: plan::narrow(view.columns)?,
        flags: plan::flag(aligned, plan::ALIGNED),
        row_stride: plan::narrow(x.layout.stride()[0])?,
    };
    let pipeline = pipeline(device, Source::Pooling, "mean_pool", x.dtype())?;
    let out = Output::new(device, sequences * view.columns, x.dtype())?;
    let grid = Grid {
        groups: (view.columns.div_ceil(plan::POOL_COLUMNS), sequences),
        lanes: plan::POOL_LANES,
    };
    if grid.is_empty() {
        return Ok(out.into_storage());
    }
    let boundary_buffer = device.new_buffer_with_data(boundaries)?;
    dispatch(device, &pipeline, grid, |encoder| {
        x.bind(encoder, 0);
        encoder.set_input_buffer(1, Some(&boundary_buffer), 0);
        out.bind(encoder, 2);
        encoder.set_bytes(3, &parameters);
    })?;
    Ok(out.into_storage())
}

/// Each row divided by its Euclidean length, or by `epsilon` where that is longer.
pub fn l2_normalize(x: Input<'_>, epsilon: f32) -> Result<MetalStorage> {
    let device = x.storage.device();
    let view = x.rows("l2_normalize")?;
    let aligned = view.aligned && view.output_aligned();
    let parameters = plan::L2Parameters {
        columns: plan::narrow(view.columns)?,
        flags: plan::flag(aligned, plan::ALIGNED),
        epsilon,
        input: view.rows,
    };
    let pipeline = pipeline(device, Source::Pooling, "l2_normalize", x.dtype())?;
    let out = Output::new(device, view.count * view.columns, x.dtype())?;
    dispatch(
        device,
        &pipeline,
        Grid::of_rows(&view, &pipeline),
        |encoder| {
            x.bind(encoder, 0);
            out.bind(encoder, 1);
            encoder.set_bytes(2, &parameters);
        },
    )?;
    Ok(out.into_storage())
}
