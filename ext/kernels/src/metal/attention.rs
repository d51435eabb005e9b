//! Launches attention: one dispatch for all sequences and heads, over tensors as they lie.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, MetalDevice, Storage, Tensor};
use candle_metal_kernels::metal::{Buffer, ComputeCommandEncoder};

use super::operands::{dispatch, gpu, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::attention::{self as layout, AttentionLaunch, HeadWidths};
use super::plan::{self, AttentionParameters, Source};
use crate::attention::{
    bias, Alignment, AttentionBias, AttentionKind, AttentionOptions, AttentionShape, Inputs,
};
use crate::Result;

/// What `setBytes` takes.
const MOST_BYTES: usize = 4096;
/// Farther than any sequence is long.
const UNLIMITED: usize = 1 << 29;

pub use layout::attends as takes;

/// `None` where the shapes ask for another way.
pub fn attend(inputs: &Inputs<'_>, options: &AttentionOptions<'_>) -> Result<Option<Tensor>> {
    let shape = &inputs.shape;
    let fits = takes(shape.width, shape.value_width);
    if !fits || shape.tokens * shape.heads * shape.key_tokens * shape.value_width == 0 {
        return Ok(None);
    }
    let [q, k, v] = [inputs.q, inputs.k, inputs.v].map(plan::dense_heads);
    let (q, k, v) = (q?, k?, v?);
    let dtype = q.dtype();
    let bias = Bias::new(options, shape, dtype)?;
    let held = (hold(&q), hold(&k), hold(&v));
    let (q_input, k_input, v_input) = (held.0.input()?, held.1.input()?, held.2.input()?);
    let device = q_input.storage.device();
    let held = [inputs.places, bias.table()].map(|tensor| tensor.map(hold));
    let places = held[0].as_ref().map_or(Ok(q_input), |held| held.input())?;
    let table = held[1].as_ref().map_or(Ok(q_input), |held| held.input())?;
    let held = bias
        .sides
        .each_ref()
        .map(|side| side.as_ref().map(|side| hold(&side.scores)));
    let from_query = held[0].as_ref().map_or(Ok(q_input), |held| held.input())?;
    let from_key = held[1].as_ref().map_or(Ok(q_input), |held| held.input())?;
    let boundaries = [inputs.query_boundaries, inputs.key_boundaries];
    let [queries, keys] = boundaries.map(|boundaries| Numbers::new(device, boundaries));
    let (queries, keys) = (queries?, keys?);
    let slopes = Numbers::new(device, bias.slopes)?;
    let [query_buckets, key_buckets] = bias
        .sides
        .each_ref()
        .map(|side| Numbers::new(device, side.as_ref().map_or(&[], |side| side.buckets)));
    let (query_buckets, key_buckets) = (query_buckets?, key_buckets?);

    let mut parameters = parameters(shape, options, boundaries[0].len() - 1)?;
    let aligned = [&q, &k, &v]
        .iter()
        .all(|tensor| plan::heads_are_aligned(tensor));
    parameters.flags |= plan::flag(aligned, plan::ALIGNED)
        | plan::flag(inputs.places.is_some(), layout::HAS_PLACES);
    [parameters.q_token, parameters.q_head] = strides(&q)?;
    [parameters.k_token, parameters.k_head] = strides(&k)?;
    [parameters.v_token, parameters.v_head] = strides(&v)?;
    bias.describe(&mut parameters)?;

    let window = (parameters.left + parameters.right + 1) as usize;
    let launch = AttentionLaunch::new((boundaries[0], boundaries[1]), window, gpu(device));
    let (splits, split_keys) = launch.splits(shape);
    parameters.splits = plan::narrow(splits)?;
    parameters.split_keys = plan::narrow(split_keys)? as i32;
    let out = Output::new(
        device,
        shape.tokens * shape.heads * shape.value_width,
        dtype,
    )?;
    let rows = shape.tokens * shape.heads;
    let parts = match splits {
        1 => None,
        _ => {
            let count = rows * splits * (shape.value_width + 2);
            Some(Output::new(device, count, DType::F32)?)
        }
    };
    let bind = |encoder: &ComputeCommandEncoder| {
        let tensors = [&q_input, &k_input, &v_input, &places];
        for (index, tensor) in tensors.into_iter().enumerate() {
            tensor.bind(encoder, index);
        }
        queries.bind(encoder, 4);
        keys.bind(encoder, 5);
        slopes.bind(encoder, 6);
        for (index, tensor) in [&table, &from_query, &from_key].into_iter().enumerate() {
            tensor.bind(encoder, 7 + index);
        }
        query_buckets.bind(encoder, 10);
        key_buckets.bind(encoder, 11);
        encoder.set_bytes(14, &parameters);
    };
    let widths = HeadWidths::of(shape.width, shape.value_width);
    let source = Source::Attention(widths);
    let kernel = |name: &str| pipeline(device, source, &widths.kernel(name), dtype);
    let attend = kernel(launch.kernel())?;
    let (groups, lanes) = launch.grid(shape, attend.max_total_threads_per_threadgroup());
    dispatch(device, &attend, Grid { groups, lanes }, |encoder| {
        bind(encoder);
        // What is not written is bound to something that is.
        parts.as_ref().unwrap_or(&out).bind(encoder, 13);
        out.bind(encoder, 12);
    })?;
    if let Some(parts) = &parts {
        let join = kernel("attention_join")?;
        let grid = Grid {
            groups: (shape.heads, shape.tokens),
            lanes: plan::row_lanes(shape.value_width, join.max_total_threads_per_threadgroup()),
        };
        dispatch(device, &join, grid, |encoder| {
            bind(encoder);
            parts.bind_for_reading(encoder, 13);
            out.bind(encoder, 12);
        })?;
    }
    let dims = (shape.tokens, shape.heads, shape.value_width);
    let storage = Storage::Metal(out.into_storage());
    Ok(Some(Tensor::from_storage(
        storage,
        dims,
        BackpropOp::none(),
        false,
    )))
}

fn strides(tensor: &Tensor) -> Result<[u32; 2]> {
    let strides = tensor.stride();
    Ok([plan::narrow(strides[0])?, plan::narrow(strides[1])?])
}

fn parameters(
    shape: &AttentionShape,
    options: &AttentionOptions<'_>,
    sequences: usize,
) -> Result<AttentionParameters> {
    let (left, right) = match options.kind {
        AttentionKind::Bidirectional => (UNLIMITED, UNLIMITED),
        AttentionKind::Causal => (UNLIMITED, 0),
        AttentionKind::Window { left, right } => (left.min(UNLIMITED), right.min(UNLIMITED)),
        AttentionKind::Chunk { .. } => {
            return Err(crate::Error::Internal(
                "attention in chunks has no Metal kernel".into(),
            ))
        }
    };
    let first = options.alignment == Alignment::First;
    Ok(AttentionParameters {
        width: plan::narrow(shape.width)?,
        value_width: plan::narrow(shape.value_width)?,
        heads: plan::narrow(shape.heads)?,
        group: plan::narrow(shape.heads / shape.key_heads)?,
        sequences: plan::narrow(sequences)?,
        left: left as i32,
        right: right as i32,
        scale: options.scale,
        soft_cap: options.soft_cap.unwrap_or(0.0),
        flags: plan::flag(options.soft_cap.is_some(), layout::IS_CAPPED)
            | plan::flag(first, layout::FIRST_ALIGNED),
        ..AttentionParameters::default()
    })
}

/// Numbers that a kernel reads beside tensors, in the command itself where they are few.
enum Numbers<'a, N> {
    Few(&'a [N]),
    Many(Arc<Buffer>),
    /// What a kernel declares and does not read.
    None,
}

impl<'a, N> Numbers<'a, N> {
    fn new(device: &MetalDevice, numbers: &'a [N]) -> Result<Self> {
        Ok(match std::mem::size_of_val(numbers) {
            0 => Self::None,
            bytes if bytes <= MOST_BYTES => Self::Few(numbers),
            _ => Self::Many(device.new_buffer_with_data(numbers)?),
        })
    }

    fn bind(&self, encoder: &ComputeCommandEncoder, index: usize) {
        match self {
            Self::Few(numbers) => encoder.set_bytes_directly(
                index,
                std::mem::size_of_val(*numbers),
                numbers.as_ptr().cast(),
            ),
            Self::Many(buffer) => encoder.set_input_buffer(index, Some(buffer), 0),
            Self::None => encoder.set_bytes(index, &0u32),
        }
    }
}

/// What is added to scores, as the kernel reads it.
#[derive(Default)]
struct Bias<'a> {
    kind: u32,
    zero: usize,
    slopes: &'a [f32],
    table: Option<Tensor>,
    /// From the query, and from the key.
    sides: [Option<Side<'a>>; 2],
}

struct Side<'a> {
    scores: Tensor,
    width: usize,
    buckets: &'a [u32],
}

impl<'a> Bias<'a> {
    fn new(options: &AttentionOptions<'a>, shape: &AttentionShape, dtype: DType) -> Result<Self> {
        bias::check_heads(&options.bias, shape.heads)?;
        let side = |given: Option<(&Tensor, &'a [u32])>, tokens: usize| -> Result<_> {
            let Some((scores, buckets)) = given else {
                return Ok(None);
            };
            Ok(Some(Side {
                width: bias::bucket_width(scores, buckets, tokens, shape.heads)?,
                scores: scores.to_dtype(dtype)?.contiguous()?,
                buckets,
            }))
        };
        Ok(match options.bias {
            AttentionBias::None => Self::default(),
            AttentionBias::Alibi(slopes) => Self {
                kind: layout::ALIBI,
                slopes,
                ..Self::default()
            },
            AttentionBias::Relative { table, zero } => Self {
                kind: layout::RELATIVE,
                zero,
                table: Some(table.to_dtype(DType::F32)?.contiguous()?),
                ..Self::default()
            },
            AttentionBias::Disentangled(sides) => Self {
                kind: layout::DISENTANGLED,
                zero: sides.zero,
                sides: [
                    side(sides.from_query, shape.tokens)?,
                    side(sides.from_key, shape.key_tokens)?,
                ],
                ..Self::default()
            },
        })
    }

    fn table(&self) -> Option<&Tensor> {
        self.table.as_ref()
    }

    fn describe(&self, parameters: &mut AttentionParameters) -> Result<()> {
        let count =
            |number: usize| -> Result<i32> { Ok(plan::narrow(number.min(UNLIMITED))? as i32) };
        parameters.bias = self.kind;
        parameters.zero = count(self.zero)?;
        if let Some(table) = &self.table {
            parameters.query_distances = count(table.dim(1)?)?;
        }
        if let [Some(side), _] = &self.sides {
            parameters.flags |= layout::HAS_QUERY_SCORES;
            parameters.query_distances = count(side.buckets.len())?;
            parameters.query_width = plan::narrow(side.width)?;
        }
        if let [_, Some(side)] = &self.sides {
            parameters.flags |= layout::HAS_KEY_SCORES;
            parameters.key_distances = count(side.buckets.len())?;
            parameters.key_width = plan::narrow(side.width)?;
        }
        Ok(())
    }
}
