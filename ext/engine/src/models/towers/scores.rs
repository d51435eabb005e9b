//! Attention whose scores are biased by more than kernels know of: computed as it is written down.

use candle_core::{DType, Tensor};

use crate::nn::elementwise;
use crate::{CancelToken, Result};
use kernels::tensor;

/// How queries and keys become scores.
#[derive(Clone, Copy)]
pub enum Scores<'a> {
    /// Products, divided by the root of their width.
    Product,
    /// Cosines, multiplied by a tensor that fits the scores.
    Cosine(&'a Tensor),
}

/// What queries find of values: `q`, `k` and `v` are [groups, heads, rows, width], all of `added` fits [groups, heads,
/// queries, keys], and the result is [groups · queries, heads · width].
pub fn mixed([q, k, v]: [&Tensor; 3], scores: Scores<'_>, added: &[&Tensor]) -> Result<Tensor> {
    let dtype = q.dtype();
    let wide = |x: &Tensor| -> Result<Tensor> { Ok(x.to_dtype(DType::F32)?.contiguous()?) };
    let product = |a: &Tensor, b: &Tensor| tensor::matmul::matmul(a, b, &CancelToken::new());
    let (q, k, v) = (wide(q)?, wide(k)?, wide(v)?);
    let (groups, heads, queries, width) = q.dims4()?;
    let mut sums = match scores {
        Scores::Product => {
            let q = elementwise::scale(&q, 1.0 / (width as f32).sqrt())?;
            product(&q, &k.transpose(2, 3)?)?
        }
        Scores::Cosine(scale) => {
            let (q, k) = (kernels::l2_normalize(&q)?, kernels::l2_normalize(&k)?);
            elementwise::multiply(&product(&q, &k.transpose(2, 3)?)?, scale)?
        }
    };
    for bias in added {
        sums = elementwise::add(&sums, bias)?;
    }
    let found = product(&kernels::softmax(&sums.contiguous()?)?, &v)?;
    let found = found.transpose(1, 2)?.contiguous()?;
    let found = found.reshape((groups * queries, heads * v.dim(3)?))?;
    Ok(found.to_dtype(dtype)?)
}
