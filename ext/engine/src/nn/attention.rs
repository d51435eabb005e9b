//! Attention over packed sequences, in one call.

mod bias;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod gpu;

use candle_core::Tensor;

use crate::{Error, Result};

/// Which keys a query sees. With `q` queries and `k` keys in a sequence, query i stands at position
/// i + (k − q): the last query is aligned with the last key, which is what a KV cache needs.
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
}

impl AttentionOptions<'_> {
    pub fn new(kind: AttentionKind, scale: f32) -> Self {
        Self {
            kind,
            scale,
            soft_cap: None,
            bias: AttentionBias::None,
        }
    }
}

/// softmax(scale · q kᵀ + bias) v per sequence and head.
///
/// `q` is [tokens, heads, width], `k` [key tokens, key heads, width], `v` [key tokens, key heads,
/// value width]; heads is a multiple of key heads. Sequence s is the queries from
/// `query_boundaries[s]` to `query_boundaries[s + 1]` and the keys likewise. The result is [tokens,
/// heads, value width]. A query that sees no key gives zeros.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    query_boundaries: &[u32],
    key_boundaries: &[u32],
    options: &AttentionOptions<'_>,
) -> Result<Tensor> {
    let shape = AttentionShape::check(q, k, v, query_boundaries, key_boundaries)?;
    let boundaries = (query_boundaries, key_boundaries);
    if q.device().is_cpu() {
        cpu::attention(q, k, v, boundaries, &shape, options)
    } else {
        gpu::attention(q, k, v, boundaries, &shape, options)
    }
}

impl AttentionKind {
    /// The keys, counted from the sequence's first, that a query at `position` sees.
    pub(crate) fn seen(self, position: isize, keys: usize) -> std::ops::Range<usize> {
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
        };
        range.start.min(range.end)..range.end
    }
}

struct AttentionShape {
    tokens: usize,
    heads: usize,
    key_heads: usize,
    key_tokens: usize,
    width: usize,
    value_width: usize,
}

impl AttentionShape {
    fn check(
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        query_boundaries: &[u32],
        key_boundaries: &[u32],
    ) -> Result<Self> {
        let (tokens, heads, width) = q.dims3()?;
        let (key_tokens, key_heads, key_width) = k.dims3()?;
        let (value_tokens, value_heads, value_width) = v.dims3()?;
        let fits = key_width == width
            && value_tokens == key_tokens
            && value_heads == key_heads
            && key_heads > 0
            && heads % key_heads == 0;
        if !fits {
            return Err(Error::InvalidInput(format!(
                "attention: queries {:?}, keys {:?} and values {:?} do not fit together",
                q.dims(),
                k.dims(),
                v.dims()
            )));
        }
        check_boundaries("query", query_boundaries, tokens)?;
        check_boundaries("key", key_boundaries, key_tokens)?;
        if query_boundaries.len() != key_boundaries.len() {
            return Err(Error::InvalidInput(format!(
                "attention: {} query boundaries but {} key boundaries",
                query_boundaries.len(),
                key_boundaries.len()
            )));
        }
        Ok(Self {
            tokens,
            heads,
            key_heads,
            key_tokens,
            width,
            value_width,
        })
    }
}

/// Boundaries rise from 0 to the number of tokens.
fn check_boundaries(name: &str, boundaries: &[u32], tokens: usize) -> Result<()> {
    let sound = boundaries.first() == Some(&0)
        && boundaries.last().map(|&last| last as usize) == Some(tokens)
        && boundaries.windows(2).all(|pair| pair[0] <= pair[1]);
    if sound {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "attention: {name} boundaries must rise from 0 to the {tokens} tokens"
    )))
}
