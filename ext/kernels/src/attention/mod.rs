//! Attention over packed sequences: what a caller may ask for, and which backend computes it.

pub(crate) mod bias;
mod chain;
pub mod windows;

use candle_core::{Device, Tensor};

use super::cpu;
pub use super::cpu::attention::halves::halves_by_head;
#[cfg(feature = "cuda")]
use super::cuda;
#[cfg(feature = "metal")]
use super::metal;
use crate::{Error, Result};

/// Which keys a query sees, by the query's position among them; see [`Alignment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
    Bidirectional,
    /// Keys up to the query's own position.
    Causal,
    /// Keys from `left` before to `right` after the query's position, both included. A causal
    /// sliding window of n tokens is `{ left: n - 1, right: 0 }`.
    Window {
        left: usize,
        right: usize,
    },
    /// Keys up to the query's own position, of the same chunk of `size` positions (Llama 4).
    Chunk {
        size: usize,
    },
}

/// Where the queries of a sequence stand among its keys, when there are more or fewer of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    /// The last query stands at the last key, which is what a KV cache needs.
    #[default]
    Last,
    /// The first query stands at the first key: the sequence goes on after its last key.
    First,
}

impl Alignment {
    /// The position of query `i` of `queries` among `keys`.
    pub fn position(self, i: usize, queries: usize, keys: usize) -> isize {
        match self {
            Self::Last => i as isize + keys as isize - queries as isize,
            Self::First => i as isize,
        }
    }
}

/// What is added to a scaled score. Distances are key position − query position.
#[derive(Clone, Copy, Debug, Default)]
pub enum AttentionBias<'a> {
    #[default]
    None,
    /// −slope · |distance|, one slope per head.
    Alibi(&'a [f32]),
    /// f32 [heads, distances] on any device: the bias of a distance is column `distance + zero`, and
    /// distances beyond the table take its nearest column (T5's and MPNet's buckets, laid out).
    Relative { table: &'a Tensor, zero: usize },
    /// DeBERTa's: each distance has a bucket, and a score gains what its query says of the bucket and
    /// what its key says of it.
    Disentangled(Disentangled<'a>),
}

/// The tensors are [tokens, heads, buckets], already scaled, and the bucket of a distance is
/// `buckets[distance + zero]`, clamped to the ends.
#[derive(Clone, Copy, Debug)]
pub struct Disentangled<'a> {
    pub from_query: Option<(&'a Tensor, &'a [u32])>,
    pub from_key: Option<(&'a Tensor, &'a [u32])>,
    pub zero: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct AttentionOptions<'a> {
    pub kind: AttentionKind,
    /// Multiplies query · key; usually 1 / √width.
    pub scale: f32,
    /// cap · tanh(score / cap) before bias and softmax (Gemma 2).
    pub soft_cap: Option<f32>,
    pub bias: AttentionBias<'a>,
    pub alignment: Alignment,
    /// One score per head that takes part in every softmax and has no value (gpt-oss).
    pub sinks: Option<&'a [f32]>,
    /// For each query the keys that it sees of its sequence, in rising order, where those are not all that `kind`
    /// lets it see; only over pages, in causal attention.
    pub chosen: Option<&'a [Option<Vec<u32>>]>,
}

impl AttentionOptions<'_> {
    pub fn new(kind: AttentionKind, scale: f32) -> Self {
        Self {
            kind,
            scale,
            soft_cap: None,
            bias: AttentionBias::None,
            alignment: Alignment::Last,
            sinks: None,
            chosen: None,
        }
    }

    /// Whether the kernels of GPUs know all that is asked for.
    fn is_plain(&self) -> bool {
        self.sinks.is_none()
            && self.chosen.is_none()
            && !matches!(self.kind, AttentionKind::Chunk { .. })
    }

    /// Whether a query's position makes a difference to it.
    #[cfg(feature = "cuda")]
    pub(super) fn knows_positions(&self) -> bool {
        self.kind != AttentionKind::Bidirectional || !matches!(self.bias, AttentionBias::None)
    }
}

impl AttentionKind {
    /// Which sees all that follows too.
    pub fn forwards(self) -> Self {
        match self {
            Self::Bidirectional | Self::Causal => Self::Bidirectional,
            Self::Window { left, .. } => Self::Window {
                left,
                right: usize::MAX,
            },
            Self::Chunk { .. } => self,
        }
    }

    /// The keys, counted from the sequence's first, that a query at `position` sees.
    pub fn seen(self, position: isize, keys: usize) -> std::ops::Range<usize> {
        let clamp = |v: isize| v.clamp(0, keys as isize) as usize;
        let range = match self {
            Self::Bidirectional => 0..keys,
            Self::Causal => 0..clamp(position.saturating_add(1)),
            Self::Window { left, right } => {
                let left = isize::try_from(left).unwrap_or(isize::MAX / 2);
                let right = isize::try_from(right).unwrap_or(isize::MAX / 2);
                clamp(position.saturating_sub(left))
                    ..clamp(position.saturating_add(right).saturating_add(1))
            }
            Self::Chunk { size } => {
                let size = isize::try_from(size.max(1)).unwrap_or(isize::MAX);
                clamp(position.div_euclid(size).saturating_mul(size))
                    ..clamp(position.saturating_add(1))
            }
        };
        range.start.min(range.end)..range.end
    }
}

/// Queries, keys and values that fit together, with boundaries that fit them.
pub struct Inputs<'a> {
    /// [tokens, heads, width]
    pub q: &'a Tensor,
    /// [key tokens, key heads, width]
    pub k: &'a Tensor,
    /// [key tokens, key heads, value width]
    pub v: &'a Tensor,
    /// u32 [key tokens]: the rows of `k` and `v`, which may have more, that the keys lie in; `None` where
    /// they are the keys.
    pub places: Option<&'a Tensor>,
    pub query_boundaries: &'a [u32],
    pub key_boundaries: &'a [u32],
    /// u32 each, on the device: the boundaries at the time of computing, which may end sooner than those
    /// above.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only CUDA records"))]
    pub current_boundaries: Option<(&'a Tensor, &'a Tensor)>,
    pub shape: AttentionShape,
}

#[derive(Clone, Copy)]
pub struct AttentionShape {
    pub tokens: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub key_tokens: usize,
    pub width: usize,
    pub value_width: usize,
}

/// Whether a GPU has a kernel of its own for heads of this width.
pub(super) fn has_kernel(device: &Device, width: usize) -> bool {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return cuda::attention::takes(width, width);
    }
    #[cfg(feature = "metal")]
    if device.is_metal() {
        return metal::attention::takes(width, width);
    }
    let _ = (device, width);
    false
}

/// By the device's own kernels where it has them for the shape, else from matrix products and the
/// softmax kernel.
pub fn attend(inputs: &Inputs<'_>, options: &AttentionOptions<'_>) -> Result<Tensor> {
    if inputs.q.device().is_cpu() {
        return cpu::attention::sequences::attend(inputs, options);
    }
    if let Some(out) = attend_by_kernel(inputs, options)? {
        return Ok(out);
    }
    if inputs.current_boundaries.is_some() {
        return Err(Error::Internal(
            "attention without a kernel does not know where sequences have grown to".into(),
        ));
    }
    let dtype = inputs.q.dtype();
    let in_order = |rows: &Tensor| -> Result<Tensor> {
        let rows = match inputs.places {
            Some(places) => rows.index_select(places, 0)?,
            None => rows.clone(),
        };
        Ok(rows.to_dtype(dtype)?)
    };
    let (k, v) = (in_order(inputs.k)?, in_order(inputs.v)?);
    let inputs = Inputs {
        k: &k,
        v: &v,
        places: None,
        ..*inputs
    };
    match attend_by_kernel(&inputs, options)? {
        Some(out) => Ok(out),
        None => chain::attend(&inputs, options),
    }
}

/// `None` where the device has no kernel for the shape, or keys and values are of another type than queries.
fn attend_by_kernel(inputs: &Inputs<'_>, options: &AttentionOptions<'_>) -> Result<Option<Tensor>> {
    let device = inputs.q.device();
    if inputs.k.dtype() != inputs.q.dtype() || !options.is_plain() {
        return Ok(None);
    }
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return cuda::attention::attend(inputs, options);
    }
    #[cfg(feature = "metal")]
    if device.is_metal() {
        return metal::attention::attend(inputs, options);
    }
    let _ = (device, options);
    Ok(None)
}
