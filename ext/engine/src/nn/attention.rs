//! Attention over packed sequences, in one call.

use candle_core::{DType, Tensor};

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
    let values =
        |t: &Tensor| -> Result<Vec<f32>> { Ok(t.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?) };
    let biases = Biases::read(options, &shape)?;
    let (queries, keys, contents) = (values(q)?, values(k)?, values(v)?);
    let mut out = vec![0f32; shape.tokens * shape.heads * shape.value_width];
    for sequence in 0..query_boundaries.len() - 1 {
        let queries_at =
            query_boundaries[sequence] as usize..query_boundaries[sequence + 1] as usize;
        let keys_at = key_boundaries[sequence] as usize..key_boundaries[sequence + 1] as usize;
        let shift = keys_at.len() as isize - queries_at.len() as isize;
        for (i, query) in queries_at.clone().enumerate() {
            let position = i as isize + shift;
            let seen = options.kind.seen(position, keys_at.len());
            for head in 0..shape.heads {
                let from = &queries[(query * shape.heads + head) * shape.width..][..shape.width];
                let key_head = head / (shape.heads / shape.key_heads);
                let mut scores: Vec<f32> = seen
                    .clone()
                    .map(|j| {
                        let key = keys_at.start + j;
                        let to = &keys[(key * shape.key_heads + key_head) * shape.width..]
                            [..shape.width];
                        let dot: f32 = from.iter().zip(to).map(|(a, b)| a * b).sum();
                        let mut score = dot * options.scale;
                        if let Some(cap) = options.soft_cap {
                            score = cap * (score / cap).tanh();
                        }
                        score + biases.at(head, query, key, j as isize - position)
                    })
                    .collect();
                let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut sum = 0.0;
                for score in &mut scores {
                    *score = (*score - highest).exp();
                    sum += *score;
                }
                let to = &mut out[(query * shape.heads + head) * shape.value_width..]
                    [..shape.value_width];
                for (j, weight) in seen.clone().zip(&scores) {
                    let key = keys_at.start + j;
                    let content = &contents
                        [(key * shape.key_heads + key_head) * shape.value_width..]
                        [..shape.value_width];
                    for (o, c) in to.iter_mut().zip(content) {
                        *o += weight / sum * c;
                    }
                }
            }
        }
    }
    let out = Tensor::from_vec(
        out,
        (shape.tokens, shape.heads, shape.value_width),
        q.device(),
    )?;
    Ok(out.to_dtype(q.dtype())?)
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

/// The bias of one score, with the tensors read out.
enum Biases<'a> {
    None,
    Alibi(&'a [f32]),
    Relative {
        table: Vec<f32>,
        distances: usize,
        zero: usize,
    },
    Disentangled {
        from_query: Option<BucketScores<'a>>,
        from_key: Option<BucketScores<'a>>,
        zero: usize,
        heads: usize,
    },
}

struct BucketScores<'a> {
    scores: Vec<f32>,
    width: usize,
    buckets: &'a [u32],
}

impl<'a> BucketScores<'a> {
    fn read(
        side: Option<(&Tensor, &'a [u32])>,
        tokens: usize,
        heads: usize,
    ) -> Result<Option<Self>> {
        let Some((tensor, buckets)) = side else {
            return Ok(None);
        };
        let (rows, columns, width) = tensor.dims3()?;
        let inside = !buckets.is_empty() && buckets.iter().all(|&b| (b as usize) < width);
        if rows != tokens || columns != heads || !inside {
            return Err(Error::InvalidInput(format!(
                "attention: disentangled scores of shape {:?} do not fit {tokens} tokens, {heads} heads \
                 and their buckets",
                tensor.dims()
            )));
        }
        let scores = tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
        Ok(Some(Self {
            scores,
            width,
            buckets,
        }))
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.scores[row * self.width + self.buckets[column.min(self.buckets.len() - 1)] as usize]
    }
}

impl<'a> Biases<'a> {
    fn read(options: &AttentionOptions<'a>, shape: &AttentionShape) -> Result<Self> {
        match options.bias {
            AttentionBias::None => Ok(Self::None),
            AttentionBias::Alibi(slopes) if slopes.len() == shape.heads => Ok(Self::Alibi(slopes)),
            AttentionBias::Alibi(slopes) => Err(Error::InvalidInput(format!(
                "attention: {} ALiBi slopes for {} heads",
                slopes.len(),
                shape.heads
            ))),
            AttentionBias::Relative { table, zero } => {
                let (heads, distances) = table.dims2()?;
                if heads != shape.heads || distances == 0 {
                    return Err(Error::InvalidInput(format!(
                        "attention: a relative bias of shape {:?} does not fit {} heads",
                        table.dims(),
                        shape.heads
                    )));
                }
                let table = table.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
                Ok(Self::Relative {
                    table,
                    distances,
                    zero,
                })
            }
            AttentionBias::Disentangled(sides) => Ok(Self::Disentangled {
                from_query: BucketScores::read(sides.from_query, shape.tokens, shape.heads)?,
                from_key: BucketScores::read(sides.from_key, shape.key_tokens, shape.heads)?,
                zero: sides.zero,
                heads: shape.heads,
            }),
        }
    }

    fn at(&self, head: usize, query: usize, key: usize, distance: isize) -> f32 {
        let column = |zero: usize| (distance + zero as isize).max(0) as usize;
        match self {
            Self::None => 0.0,
            Self::Alibi(slopes) => -slopes[head] * distance.unsigned_abs() as f32,
            Self::Relative {
                table,
                distances,
                zero,
            } => table[head * distances + column(*zero).min(distances - 1)],
            Self::Disentangled {
                from_query,
                from_key,
                zero,
                heads,
            } => {
                let side = |scores: &Option<BucketScores<'_>>, token: usize| {
                    scores
                        .as_ref()
                        .map_or(0.0, |s| s.at(token * heads + head, column(*zero)))
                };
                side(from_query, query) + side(from_key, key)
            }
        }
    }
}
