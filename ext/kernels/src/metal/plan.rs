//! What a Metal launch needs that takes no Metal device to work out: sources, kernel names, parameter
//! blocks, row geometry and threadgroup sizes. Compiled for tests on every platform.

use std::borrow::Cow;

use candle_core::{bail, DType, Layout, Result, Tensor};

use crate::parameter_block::parameter_block;
use crate::rows::Rows;
use base::quant::BlockType;

pub mod attention;
pub mod product;
pub mod sampling;
#[cfg(test)]
mod tests;

use crate::scan::launch::ScanSource;
use attention::HeadWidths;
use product::ProductSource;

/// Bits of the `flags` field of a parameter block, as in `common.metal`.
pub const ALIGNED: u32 = 1;
pub const HAS_WEIGHT: u32 = 2;
pub const HAS_BIAS: u32 = 4;
pub const HAS_ADDITIVE: u32 = 8;
pub const HAS_BOOLEAN: u32 = 16;
pub const HAS_LENGTHS: u32 = 32;
pub const INTERLEAVED: u32 = 64;
pub const IS_GATED: u32 = 128;
pub const HAS_RESIDUAL: u32 = 256;

/// Elements a lane loads at once.
pub const VECTOR: usize = 4;
const SIMD_WIDTH: usize = 32;
const MAXIMUM_LANES: usize = 1024;
/// `float4` vectors a lane of a row kernel works on, where the row is short enough.
const VECTORS_PER_LANE: usize = 2;
/// The most lanes of an elementwise threadgroup.
const ELEMENTWISE_LANES: usize = 256;
/// Lanes and columns of a pooling threadgroup, as in `pooling.metal`.
pub const POOL_LANES: usize = 256;
pub const POOL_COLUMNS: usize = 128;
/// Tokens and columns, and lanes, of a product by heads, as in `heads.metal`.
pub const HEAD_SIDE: usize = 32;
pub const HEAD_LANES: usize = 128;

/// How large a GPU is: how many cores want work matters more to a launch than a chip's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gpu {
    Phone,
    /// Of a chip without a suffix, of a Pro, and what is not known.
    Base,
    Max,
    /// Two of them.
    Ultra,
}

impl Gpu {
    #[cfg(test)]
    pub const ALL: [Gpu; 4] = [Gpu::Phone, Gpu::Base, Gpu::Max, Gpu::Ultra];

    /// Of the largest of its kind.
    pub fn cores(self) -> usize {
        match self {
            Gpu::Phone => 6,
            Gpu::Base => 20,
            Gpu::Max => 40,
            Gpu::Ultra => 80,
        }
    }
}

/// The sources, each a library of its own so that the first use compiles only what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    Norm,
    Softmax,
    Activation,
    Rope,
    Pooling,
    Largest,
    Sampling,
    /// Tables of one format.
    Blocks(BlockType),
    Attention(HeadWidths),
    Heads,
    Product(ProductSource),
    Scan(ScanSource),
    ScanGates,
}

impl Source {
    pub fn text(self) -> Cow<'static, str> {
        macro_rules! with_common {
            ($($file:literal),+) => {
                concat!(include_str!("common.metal"), $(include_str!($file)),+)
            };
        }
        let text = match self {
            Source::Norm => with_common!("norm.metal"),
            Source::Softmax => with_common!("softmax.metal"),
            Source::Activation => with_common!("functions.metal", "activation.metal"),
            Source::Rope => with_common!("rope.metal"),
            Source::Pooling => with_common!("pooling.metal"),
            Source::Heads => with_common!("heads.metal"),
            Source::Attention(widths) => {
                let text = with_common!("attention.metal").to_owned();
                return Cow::Owned(text + &widths.instances());
            }
            Source::Largest => with_common!("largest.metal"),
            Source::Sampling => with_common!("sampling.metal"),
            Source::Blocks(kind) => {
                let text = with_common!("blocks.metal");
                let instances = format!("TABLE_KERNELS({}, {kind:?})\n", kind.name());
                return Cow::Owned(text.to_owned() + &instances);
            }
            Source::Product(source) => return Cow::Owned(source.text()),
            Source::Scan(source) => {
                let text = with_common!("functions.metal", "scan.metal").to_owned();
                return Cow::Owned(text + &scan_instances(source));
            }
            Source::ScanGates => with_common!("functions.metal", "scan_gates.metal"),
        };
        Cow::Borrowed(text)
    }
}

/// What the source of scans ends with.
fn scan_instances(source: ScanSource) -> String {
    match source {
        ScanSource::Matrix { rule, keys, groups } => {
            format!("MATRIX_KERNEL({}, {keys}, {groups})\n", rule.name())
        }
        ScanSource::Selective { kept } => format!("SELECTIVE_KERNEL({kept})\n"),
        ScanSource::Channels => String::new(),
    }
}

pub fn kernel_name(kernel: &str, dtype: DType) -> Result<String> {
    let suffix = match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        other => bail!("{kernel}: the Metal kernels take f32, f16 and bf16, not {other:?}"),
    };
    Ok(format!("{kernel}_{suffix}"))
}

parameter_block! {
    /// Where each row of a tensor starts: up to three leading dimensions, strides in elements.
    RowStarts {
        inner_size: u32,
        middle_size: u32,
        inner_stride: u32,
        middle_stride: u32,
        outer_stride: u32,
    }
}

parameter_block! {
    NormParameters {
        columns: u32,
        flags: u32,
        epsilon: f32,
        weight_offset: f32,
        input: RowStarts,
        residual: RowStarts,
    }
}

parameter_block! {
    SoftmaxParameters {
        columns: u32,
        flags: u32,
        scale: f32,
        input: RowStarts,
        additive: RowStarts,
        boolean: RowStarts,
        lengths: RowStarts,
    }
}

parameter_block! {
    ActivationParameters {
        columns: u32,
        flags: u32,
        gate: RowStarts,
        up: RowStarts,
    }
}

parameter_block! {
    PointwiseParameters {
        columns: u32,
        flags: u32,
        first: f32,
        second: f32,
        third: f32,
        fourth: f32,
        input: RowStarts,
        other: RowStarts,
    }
}

parameter_block! {
    RopeParameters {
        columns: u32,
        rotated: u32,
        known_positions: u32,
        flags: u32,
        input: RowStarts,
        positions: RowStarts,
    }
}

parameter_block! {
    PoolParameters {
        columns: u32,
        flags: u32,
        row_stride: u32,
    }
}

parameter_block! {
    L2Parameters {
        columns: u32,
        flags: u32,
        epsilon: f32,
        input: RowStarts,
    }
}

parameter_block! {
    RopeStoreParameters {
        columns: u32,
        rotated: u32,
        known_positions: u32,
        flags: u32,
        heads: u32,
        key_heads: u32,
        query: RowStarts,
        key: RowStarts,
        value: RowStarts,
    }
}

parameter_block! {
    LargestParameters {
        columns: u32,
        wanted: u32,
    }
}

parameter_block! {
    SamplingParameters {
        columns: u32,
    }
}

parameter_block! {
    BlockParameters {
        inputs: u32,
        row_bytes: u32,
    }
}

parameter_block! {
    ProductParameters {
        inputs: u32,
        outputs: u32,
        rows: u32,
        first_end: u32,
        second_end: u32,
        activation: u32,
        flags: u32,
    }
}

parameter_block! {
    #[derive(Default)]
    AttentionParameters {
        width: u32,
        value_width: u32,
        heads: u32,
        group: u32,
        sequences: u32,
        q_token: u32,
        q_head: u32,
        k_token: u32,
        k_head: u32,
        v_token: u32,
        v_head: u32,
        left: i32,
        right: i32,
        bias: u32,
        zero: i32,
        query_distances: i32,
        key_distances: i32,
        query_width: u32,
        key_width: u32,
        splits: u32,
        split_keys: i32,
        scale: f32,
        soft_cap: f32,
        flags: u32,
    }
}

parameter_block! {
    HeadParameters {
        tokens: u32,
        heads: u32,
        width: u32,
        columns: u32,
        x_token: u32,
        x_head: u32,
        matrix_head: u32,
        matrix_row: u32,
        flags: u32,
    }
}

impl RowStarts {
    /// One row.
    pub const SINGLE: RowStarts = RowStarts {
        inner_size: 1,
        middle_size: 1,
        inner_stride: 0,
        middle_stride: 0,
        outer_stride: 0,
    };

    pub fn of(rows: &Rows) -> Result<RowStarts> {
        let [(_, outer), (middle_size, middle), (inner_size, inner)] = rows.dims;
        narrow(rows.count)?;
        Ok(RowStarts {
            inner_size: narrow(inner_size.max(1))?,
            middle_size: narrow(middle_size.max(1))?,
            inner_stride: narrow(inner)?,
            middle_stride: narrow(middle)?,
            outer_stride: narrow(outer)?,
        })
    }

    /// Every token's number, repeated for each of its heads.
    pub fn per_token(tokens: usize, heads: usize) -> Result<RowStarts> {
        Ok(RowStarts {
            inner_size: narrow(heads.max(1))?,
            middle_size: narrow(tokens.max(1))?,
            inner_stride: 0,
            middle_stride: 1,
            outer_stride: 0,
        })
    }
}

/// The rows of an input of a kernel.
pub fn rows_of(kernel: &str, layout: &Layout) -> Result<Rows> {
    match Rows::of(layout) {
        Some(rows) => Ok(rows),
        None => bail!(
            "{kernel}: the layout {layout:?} does not reduce to rows; call contiguous() first"
        ),
    }
}

/// The same elements as one row where they follow each other: an elementwise kernel then works on
/// whole threadgroups even if the rows are short.
pub fn flattened(rows: Rows) -> Rows {
    let elements = rows.count * rows.width;
    if elements == 0 || narrow(elements).is_err() {
        return rows;
    }
    rows.rewidth(elements).unwrap_or(rows)
}

/// Whether every row starts where four elements may be loaded at once.
pub fn is_aligned(rows: &Rows) -> bool {
    rows.start.is_multiple_of(VECTOR)
        && rows
            .dims
            .iter()
            .all(|(_, stride)| stride.is_multiple_of(VECTOR))
}

/// Whether the rows of a contiguous output may be stored four elements at once.
pub fn output_is_aligned(rows: usize, columns: usize) -> bool {
    rows <= 1 || columns.is_multiple_of(VECTOR)
}

/// Lanes of the threadgroup that works on one row: whole simdgroups, about two vectors per lane.
pub fn row_lanes(columns: usize, pipeline_maximum: usize) -> usize {
    let maximum = (pipeline_maximum.min(MAXIMUM_LANES) / SIMD_WIDTH * SIMD_WIDTH).max(SIMD_WIDTH);
    columns
        .div_ceil(VECTOR * VECTORS_PER_LANE)
        .next_multiple_of(SIMD_WIDTH)
        .clamp(SIMD_WIDTH, maximum)
}

/// Lanes of a threadgroup along a row that so many work on: whole simdgroups, and no more than there is work for.
pub fn elementwise_lanes(lanes_per_row: usize, pipeline_maximum: usize) -> usize {
    let lanes = lanes_per_row.next_multiple_of(SIMD_WIDTH).max(SIMD_WIDTH);
    lanes.min(ELEMENTWISE_LANES).min(pipeline_maximum)
}

/// Lanes along a row of the rope kernel: four pairs or four copied elements each.
pub fn rope_lanes(columns: usize, rotated: usize) -> usize {
    (rotated / 2).div_ceil(VECTOR) + (columns - rotated).div_ceil(VECTOR)
}

pub fn flag(condition: bool, bit: u32) -> u32 {
    if condition {
        bit
    } else {
        0
    }
}

/// Three dimensions, whose last elements follow each other.
pub fn dense_heads(tensor: &Tensor) -> Result<Tensor> {
    match tensor.stride() {
        [_, _, 1] => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    }
}

/// Whether four elements of such a tensor may be loaded at once, wherever a row begins.
pub fn heads_are_aligned(tensor: &Tensor) -> bool {
    let strides = &tensor.stride()[..2];
    let start = tensor.layout().start_offset();
    start.is_multiple_of(VECTOR) && strides.iter().all(|s| s.is_multiple_of(VECTOR))
}

pub fn narrow(number: usize) -> Result<u32> {
    match u32::try_from(number) {
        Ok(number) => Ok(number),
        Err(_) => bail!("{number} is more than a Metal kernel can count to"),
    }
}
