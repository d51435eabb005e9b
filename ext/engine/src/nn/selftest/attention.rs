use candle_core::{DType, Tensor};

use super::{read, Bench};
use crate::nn::{attention, AttentionBias, AttentionKind, AttentionOptions, Disentangled};
use crate::Result;

/// Heads and lengths of packed sequences.
#[derive(Clone, Debug)]
struct Sizes {
    heads: usize,
    key_heads: usize,
    width: usize,
    queries: Vec<u32>,
    keys: Vec<u32>,
}

/// The bias of a score by (head, query, key, distance); queries and keys count over all sequences.
type Bias<'a> = &'a dyn Fn(usize, usize, usize, isize) -> f64;

/// What the cases of an extent are made of.
struct Shapes {
    /// Width, heads, key heads.
    heads: &'static [(usize, usize, usize)],
    /// Boundaries of packed sequences.
    mixed: &'static [u32],
    /// Queries and keys of decoding: one or a few queries after many keys.
    decoding: &'static [(u32, u32)],
    /// Boundaries of queries and keys where masks and biases meet.
    biased: &'static [(&'static [u32], &'static [u32])],
}

const WHOLE: Shapes = Shapes {
    heads: &[
        (8, 2, 2),
        (16, 2, 2),
        (32, 3, 3),
        (40, 2, 1),
        (64, 4, 2),
        (80, 2, 2),
        (96, 2, 1),
        (128, 2, 1),
        (256, 2, 1),
    ],
    mixed: &[0, 1, 70, 70, 134, 284],
    decoding: &[(1, 1), (1, 300), (1, 1500), (3, 700), (70, 200)],
    biased: &[
        (&[0, 1, 2, 4], &[0, 5, 405, 1000]),
        (&[0, 90, 100], &[0, 90, 400]),
    ],
};

const FEW: Shapes = Shapes {
    heads: &[(8, 2, 2), (40, 2, 1), (256, 2, 1)],
    mixed: &[0, 1, 24, 24, 35],
    decoding: &[(1, 1), (1, 70), (3, 40)],
    biased: &[(&[0, 1, 2, 4], &[0, 5, 45, 60])],
};

pub(super) fn cases(bench: &mut Bench<'_>) -> Result<()> {
    let kinds = [
        AttentionKind::Bidirectional,
        AttentionKind::Causal,
        AttentionKind::Window { left: 20, right: 7 },
        AttentionKind::Window { left: 3, right: 0 },
    ];
    let shapes = if bench.extent.few { FEW } else { WHOLE };
    for &(width, heads, key_heads) in shapes.heads {
        let sizes = |queries: &[u32], keys: &[u32]| Sizes {
            heads,
            key_heads,
            width,
            queries: queries.to_vec(),
            keys: keys.to_vec(),
        };
        for kind in kinds {
            plain_case(bench, &sizes(shapes.mixed, shapes.mixed), kind, None)?;
        }
        for &(queries, keys) in shapes.decoding {
            for kind in [kinds[1], AttentionKind::Window { left: 99, right: 0 }] {
                plain_case(bench, &sizes(&[0, queries], &[0, keys]), kind, None)?;
            }
        }
    }
    for (queries, keys) in shapes.biased {
        let sizes = Sizes {
            heads: 4,
            key_heads: 2,
            width: 64,
            queries: queries.to_vec(),
            keys: keys.to_vec(),
        };
        plain_case(bench, &sizes, AttentionKind::Causal, Some(0.5))?;
        plain_case(bench, &sizes, AttentionKind::Bidirectional, None)?;
        biased_cases(bench, &sizes)?;
    }
    Ok(())
}

/// Queries, keys and values side by side, as a fused projection leaves them.
fn inputs(bench: &mut Bench<'_>, sizes: &Sizes) -> Result<[(Tensor, Vec<f64>); 3]> {
    let (heads, key_heads, width) = (sizes.heads, sizes.key_heads, sizes.width);
    let last = |boundaries: &[u32]| boundaries.last().map_or(0, |&last| last as usize);
    let mut make = |tokens: usize, heads: usize| -> Result<(Tensor, Vec<f64>)> {
        let (fused, _) = bench.tensor(&[tokens, heads + 3, width])?;
        let part = fused.narrow(1, 2, heads)?;
        let values = read(&part)?;
        Ok((part, values))
    };
    Ok([
        make(last(&sizes.queries), heads)?,
        make(last(&sizes.keys), key_heads)?,
        make(last(&sizes.keys), key_heads)?,
    ])
}

fn plain_case(
    bench: &mut Bench<'_>,
    sizes: &Sizes,
    kind: AttentionKind,
    soft_cap: Option<f32>,
) -> Result<()> {
    let mut options = AttentionOptions::new(kind, 1.3 / (sizes.width as f32).sqrt());
    options.soft_cap = soft_cap;
    let given = inputs(bench, sizes)?;
    case(bench, sizes, &given, &options, &|_, _, _, _| 0.0)
}

fn biased_cases(bench: &mut Bench<'_>, sizes: &Sizes) -> Result<()> {
    let plain = AttentionOptions::new(AttentionKind::Bidirectional, 0.125);
    let slopes: Vec<f32> = (1..=sizes.heads)
        .map(|head| 0.5f32.powi(head as i32))
        .collect();
    let given = inputs(bench, sizes)?;
    let options = AttentionOptions {
        bias: AttentionBias::Alibi(&slopes),
        ..plain
    };
    case(bench, sizes, &given, &options, &|head, _, _, distance| {
        -f64::from(slopes[head]) * distance.unsigned_abs() as f64
    })?;

    let (distances, zero) = (101, 50);
    let (table, t) = bench.typed(&[sizes.heads, distances], DType::F32)?;
    let column = |distance: isize, zero: usize, count: usize| {
        (distance + zero as isize).clamp(0, count as isize - 1) as usize
    };
    let options = AttentionOptions {
        bias: AttentionBias::Relative {
            table: &table,
            zero,
        },
        ..plain
    };
    case(bench, sizes, &given, &options, &|head, _, _, distance| {
        t[head * distances + column(distance, zero, distances)]
    })?;

    let (width, reach) = (9, 30);
    let buckets: Vec<u32> = (0..2 * reach + 1).map(|i| (i * 5 % width) as u32).collect();
    let tokens = [given[0].0.dim(0)?, given[1].0.dim(0)?];
    let (from_query, q) = bench.tensor(&[tokens[0], sizes.heads, width])?;
    let (from_key, k) = bench.tensor(&[tokens[1], sizes.heads, width])?;
    for sides in [(true, true), (true, false), (false, true)] {
        let options = AttentionOptions {
            bias: AttentionBias::Disentangled(Disentangled {
                from_query: sides.0.then_some((&from_query, buckets.as_slice())),
                from_key: sides.1.then_some((&from_key, buckets.as_slice())),
                zero: reach,
            }),
            ..plain
        };
        case(
            bench,
            sizes,
            &given,
            &options,
            &|head, query, key, distance| {
                let bucket = buckets[column(distance, reach, buckets.len())] as usize;
                let at = |token: usize| (token * sizes.heads + head) * width + bucket;
                let query = if sides.0 { q[at(query)] } else { 0.0 };
                query + if sides.1 { k[at(key)] } else { 0.0 }
            },
        )?;
    }
    Ok(())
}

fn case(
    bench: &mut Bench<'_>,
    sizes: &Sizes,
    given: &[(Tensor, Vec<f64>); 3],
    options: &AttentionOptions<'_>,
    bias: Bias<'_>,
) -> Result<()> {
    let [(q, _), (k, _), (v, _)] = given;
    let got = attention(q, k, v, &sizes.queries, &sizes.keys, options)?;
    let want = expected(sizes, given, options, bias);
    let bias = match options.bias {
        AttentionBias::None => "none",
        AttentionBias::Alibi(_) => "alibi",
        AttentionBias::Relative { .. } => "relative",
        AttentionBias::Disentangled(_) => "disentangled",
    };
    let case = format!(
        "{sizes:?} {:?} cap {:?} bias {bias}",
        options.kind, options.soft_cap
    );
    bench.check("attention", case, &got, &want)
}

fn expected(
    sizes: &Sizes,
    [(_, q), (_, k), (_, v)]: &[(Tensor, Vec<f64>); 3],
    options: &AttentionOptions<'_>,
    bias: Bias<'_>,
) -> Vec<f64> {
    let (heads, key_heads, width) = (sizes.heads, sizes.key_heads, sizes.width);
    let range = |boundaries: &[u32], s: usize| boundaries[s] as usize..boundaries[s + 1] as usize;
    let mut out = vec![0f64; q.len()];
    for s in 0..sizes.queries.len() - 1 {
        let (queries, keys) = (range(&sizes.queries, s), range(&sizes.keys, s));
        for query in queries.clone() {
            let position =
                (query - queries.start) as isize + keys.len() as isize - queries.len() as isize;
            let seen = options.kind.seen(position, keys.len());
            for head in 0..heads {
                let at = |token: usize| (token * key_heads + head * key_heads / heads) * width;
                let row = (query * heads + head) * width;
                let scores: Vec<f64> = seen
                    .clone()
                    .map(|i| {
                        let key = at(keys.start + i);
                        let dot: f64 = (0..width).map(|d| q[row + d] * k[key + d]).sum();
                        let score = dot * f64::from(options.scale);
                        let capped = options
                            .soft_cap
                            .map(f64::from)
                            .map_or(score, |cap| cap * (score / cap).tanh());
                        capped + bias(head, query, keys.start + i, i as isize - position)
                    })
                    .collect();
                let top = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                let total: f64 = scores.iter().map(|score| (score - top).exp()).sum();
                for (i, score) in seen.clone().zip(&scores) {
                    let probability = (score - top).exp() / total;
                    let value = at(keys.start + i);
                    (0..width).for_each(|d| out[row + d] += probability * v[value + d]);
                }
            }
        }
    }
    out
}
