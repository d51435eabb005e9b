//! Attention over packed sequences, in one call.

use candle_core::Tensor;

use crate::{Error, Result};
use kernels::attention::{self as kernel, AttentionShape, Inputs};

pub use kernels::attention::{
    Alignment, AttentionBias, AttentionKind, AttentionOptions, Disentangled,
};

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
