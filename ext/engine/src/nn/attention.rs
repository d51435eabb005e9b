//! Attention over packed sequences, in one call.

use candle_core::Tensor;

use super::joined::joined;
use crate::{CancelToken, Error, Result};
use kernels::attention::{self as kernel, AttentionShape, Inputs};

pub use kernels::attention::{
    Alignment, AttentionBias, AttentionKind, AttentionOptions, Disentangled,
};

/// Products between two looks at whether a call is over: a core takes less than a second for them.
const MOST_PRODUCTS: usize = 1 << 33;
/// Fewer queries waste the keys that are packed for them.
const LEAST_QUERIES: usize = 256;

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
    let inputs = Inputs {
        places: None,
        q,
        k,
        v,
        query_boundaries,
        key_boundaries,
        current_boundaries: None,
        shape: checked_shape(q, k, v)?,
    };
    check_boundaries("query", query_boundaries, inputs.shape.tokens)?;
    check_boundaries("key", key_boundaries, inputs.shape.key_tokens)?;
    if query_boundaries.len() != key_boundaries.len() {
        return Err(Error::InvalidInput(format!(
            "attention: {} query boundaries but {} key boundaries",
            query_boundaries.len(),
            key_boundaries.len()
        )));
    }
    kernel::attend(&inputs, options)
}

/// `attention` of one sequence whose tokens all see each other. A call that is over ends between parts of its queries.
pub fn attention_among(
    [q, k, v]: [&Tensor; 3],
    options: &AttentionOptions<'_>,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let (_, heads, width) = q.dims3()?;
    let each = k.dim(0)?.saturating_mul(heads).saturating_mul(width).max(1);
    in_parts([q, k, v], options, MOST_PRODUCTS / each, cancel)
}

/// The same with at most so many queries in a part, or with `LEAST_QUERIES`.
fn in_parts(
    [q, k, v]: [&Tensor; 3],
    options: &AttentionOptions<'_>,
    most: usize,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let (tokens, keys) = (q.dim(0)?, [0, k.dim(0)? as u32]);
    let most = most.max(LEAST_QUERIES);
    let mut parts = Vec::with_capacity(tokens.div_ceil(most));
    for first in (0..tokens).step_by(most) {
        cancel.check()?;
        let count = most.min(tokens - first);
        let (q, own) = (q.narrow(0, first, count)?, [0, count as u32]);
        parts.push(attention(&q, k, v, &own, &keys, options)?);
    }
    joined(parts, 0)
}

fn checked_shape(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionShape> {
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
    Ok(AttentionShape {
        tokens,
        heads,
        key_heads,
        key_tokens,
        width,
        value_width,
    })
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

#[cfg(test)]
mod tests {
    use super::super::joined::testing::{close, numbers};
    use super::*;

    #[test]
    fn parts_of_queries_give_what_all_give() {
        let (tokens, keys) = (2 * LEAST_QUERIES + 9, 300);
        let q = numbers(&[tokens, 2, 8], 1);
        let [k, v] = [2, 3].map(|seed| numbers(&[keys, 2, 8], seed));
        let options = AttentionOptions::new(AttentionKind::Bidirectional, 0.3);
        let cancel = CancelToken::new();
        let ends = [tokens, keys].map(|count| [0, count as u32]);
        let all = attention(&q, &k, &v, &ends[0], &ends[1], &options).unwrap();
        for most in [1, 300, usize::MAX] {
            let found = in_parts([&q, &k, &v], &options, most, &cancel).unwrap();
            close(&found, &all);
        }
        cancel.cancel();
        let over = attention_among([&q, &k, &v], &options, &cancel);
        assert!(matches!(over, Err(Error::Interrupted)));
    }
}
