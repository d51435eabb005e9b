use candle_core::{DType, Device, Tensor};

use super::{read, Bench};
use crate::nn::{
    attention, Alignment, AttentionBias, AttentionKind, AttentionOptions, Disentangled,
};
use crate::Result;
use base::runtime::device::placed;
use kernels::paged::{KvShape, KvType, PagedBatch, PagedLayer, PagedPiece};

/// Heads and lengths of packed sequences.
#[derive(Clone, Debug)]
struct Sizes {
    heads: usize,
    key_heads: usize,
    width: usize,
    value_width: usize,
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
        (6, 2, 2),
        (8, 2, 2),
        (16, 2, 2),
        (20, 10, 2),
        (24, 3, 1),
        (32, 3, 3),
        (40, 2, 1),
        (64, 4, 2),
        (80, 2, 2),
        (96, 2, 1),
        (112, 2, 1),
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
    heads: &[(6, 2, 2), (12, 10, 2), (256, 2, 1)],
    mixed: &[0, 1, 24, 24, 35],
    decoding: &[(1, 1), (1, 70), (3, 40), (1, 300)],
    biased: &[
        (&[0, 1, 2, 4], &[0, 5, 45, 60]),
        (&[0, 11, 16], &[0, 11, 36]),
    ],
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
            value_width: width,
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
            value_width: 64,
            queries: queries.to_vec(),
            keys: keys.to_vec(),
        };
        plain_case(bench, &sizes, AttentionKind::Causal, Some(0.5))?;
        plain_case(bench, &sizes, AttentionKind::Bidirectional, None)?;
        biased_cases(bench, &sizes)?;
    }
    unequal_cases(bench)?;
    exceptional_cases(bench)?;
    paged_cases(bench)
}

/// Values of another width than keys, and sequences with more queries than keys, or none, from either end.
fn unequal_cases(bench: &mut Bench<'_>) -> Result<()> {
    let lengths: [(&[u32], &[u32]); 2] =
        [(&[0, 9, 12, 17], &[0, 5, 8, 8]), (&[0, 3, 5], &[0, 1, 1])];
    for (queries, keys) in lengths {
        let sizes = Sizes {
            heads: 2,
            key_heads: 1,
            width: 12,
            value_width: 6,
            queries: queries.to_vec(),
            keys: keys.to_vec(),
        };
        let given = inputs(bench, &sizes)?;
        let window = AttentionKind::Window { left: 2, right: 1 };
        for kind in [AttentionKind::Bidirectional, AttentionKind::Causal, window] {
            for alignment in [Alignment::Last, Alignment::First] {
                let options = AttentionOptions {
                    alignment,
                    bias: AttentionBias::Alibi(&[0.5, 0.25]),
                    ..AttentionOptions::new(kind, 0.3)
                };
                case(bench, &sizes, &given, &options, &|head, _, _, distance| {
                    -0.5f64.powi(head as i32 + 1) * distance.unsigned_abs() as f64
                })?;
            }
        }
    }
    Ok(())
}

/// NaN and infinity stay with the queries that see them.
fn exceptional_cases(bench: &mut Bench<'_>) -> Result<()> {
    let lengths: [(&[u32], &[u32]); 2] = [(&[0, 9, 16], &[0, 9, 16]), (&[0, 2, 3], &[0, 9, 16])];
    for (queries, keys) in lengths {
        let sizes = Sizes {
            heads: 2,
            key_heads: 2,
            width: 6,
            value_width: 6,
            queries: queries.to_vec(),
            keys: keys.to_vec(),
        };
        let row = |token: usize, head: usize| (token * sizes.heads + head) * sizes.width;
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            // Of queries, keys and values: which, where, and who sees it.
            let places = [
                (0, row(1, 0) + 2, AttentionKind::Bidirectional),
                (1, row(12, 1) + 5, AttentionKind::Bidirectional),
                (1, row(15, 0), AttentionKind::Causal),
                (2, row(4, 1) + 3, AttentionKind::Bidirectional),
            ];
            for (which, at, kind) in places {
                let mut given = inputs(bench, &sizes)?;
                let (tensor, values) = &mut given[which];
                values[at] = number;
                let changed = Tensor::from_vec(values.clone(), tensor.dims(), &Device::Cpu)?;
                *tensor = placed(&changed.to_dtype(tensor.dtype())?, bench.device)?;
                let options = AttentionOptions::new(kind, 0.4);
                case(bench, &sizes, &given, &options, &|_, _, _, _| 0.0)?;
            }
        }
    }
    Ok(())
}

/// Keys and values in pages that lie apart: prompts of three sequences, a token of each, and both beside each other.
fn paged_cases(bench: &mut Bench<'_>) -> Result<()> {
    const STEPS: [(&str, [usize; 3]); 5] = [
        ("prompts", [70, 9, 5]),
        ("tokens", [1, 1, 1]),
        ("a prompt after tokens", [1, 1, 33]),
        ("tokens around a prompt", [1, 20, 2]),
        ("prompts around tokens", [17, 1, 20]),
    ];
    for (heads, key_heads, width) in [(4, 2, 12), (8, 2, 64), (4, 1, 128)] {
        let shape = KvShape {
            heads: key_heads,
            width,
        };
        let mut layer = PagedLayer::new(shape, KvType::of(bench.dtype), bench.device)?;
        layer.reserve(4)?;
        let pages = [vec![3, 1], vec![0], vec![2]];
        let options = AttentionOptions::new(AttentionKind::Causal, 0.3);
        // Of each sequence, keys and values.
        let mut past: [[Vec<f64>; 3]; 2] = Default::default();
        for (name, counts) in STEPS {
            let mut sizes = Sizes {
                heads,
                key_heads,
                width,
                value_width: width,
                queries: boundaries(&counts),
                keys: boundaries(&counts),
            };
            let mut given = inputs(bench, &sizes)?;
            let row = key_heads * width;
            let rows = sizes.queries.windows(2).enumerate();
            let rows = rows.map(|(at, pair)| (at, pair[0] as usize..pair[1] as usize));
            let mut pieces = Vec::new();
            for (at, rows) in rows {
                for (side, past) in past.iter_mut().enumerate() {
                    past[at].extend(&given[1 + side].1[rows.start * row..rows.end * row]);
                }
                pieces.push(PagedPiece {
                    rows,
                    pages: pages[at].clone(),
                    keys: past[0][at].len() / row,
                });
            }
            sizes.keys = boundaries(&pieces.iter().map(|piece| piece.keys).collect::<Vec<_>>());
            let batch = PagedBatch::new(pieces, bench.device)?;
            let query = layer.store(&batch, (&given[0].0, &given[1].0, &given[2].0), None)?;
            let found = layer.read(&batch, &query, &options)?;
            for (side, past) in past.iter().enumerate() {
                given[1 + side].1 = past.concat();
            }
            let want = expected(&sizes, &given, &options, &|_, _, _, _| 0.0);
            let label = format!("paged {name}, {heads} heads of {width}");
            bench.check("attention", label, &found, &want)?;
        }
    }
    Ok(())
}

/// Where sequences of these lengths begin, and the last one ends.
fn boundaries(lengths: &[usize]) -> Vec<u32> {
    let mut end = 0;
    let ends = lengths.iter().map(|&length| {
        end += length as u32;
        end
    });
    std::iter::once(0).chain(ends).collect()
}

/// Queries, keys and values side by side, as a fused projection leaves them.
fn inputs(bench: &mut Bench<'_>, sizes: &Sizes) -> Result<[(Tensor, Vec<f64>); 3]> {
    let (heads, key_heads, width) = (sizes.heads, sizes.key_heads, sizes.width);
    let value_width = sizes.value_width;
    let last = |boundaries: &[u32]| boundaries.last().map_or(0, |&last| last as usize);
    let mut make = |tokens: usize, heads: usize, width: usize| -> Result<(Tensor, Vec<f64>)> {
        let (fused, _) = bench.tensor(&[tokens, heads + 3, width])?;
        let part = fused.narrow(1, 2, heads)?;
        let values = read(&part)?;
        Ok((part, values))
    };
    Ok([
        make(last(&sizes.queries), heads, width)?,
        make(last(&sizes.keys), key_heads, width)?,
        make(last(&sizes.keys), key_heads, value_width)?,
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

    let (distances, zero) = (31, 25);
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
        "{sizes:?} {:?} {:?} cap {:?} bias {bias}",
        options.kind, options.alignment, options.soft_cap
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
    let value_width = sizes.value_width;
    let range = |boundaries: &[u32], s: usize| boundaries[s] as usize..boundaries[s + 1] as usize;
    let mut out = vec![0f64; q.len() / width * value_width];
    for s in 0..sizes.queries.len() - 1 {
        let (queries, keys) = (range(&sizes.queries, s), range(&sizes.keys, s));
        for query in queries.clone() {
            let number = query - queries.start;
            let position = options
                .alignment
                .position(number, queries.len(), keys.len());
            let seen = options.kind.seen(position, keys.len());
            for head in 0..heads {
                let at = |token: usize| token * key_heads + head * key_heads / heads;
                let row = query * heads + head;
                let scores: Vec<f64> = seen
                    .clone()
                    .map(|i| {
                        let key = at(keys.start + i) * width;
                        let dot: f64 = (0..width).map(|d| q[row * width + d] * k[key + d]).sum();
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
                let out = &mut out[row * value_width..][..value_width];
                for (i, score) in seen.clone().zip(&scores) {
                    let probability = (score - top).exp() / total;
                    let value = &v[at(keys.start + i) * value_width..];
                    for (sum, v) in out.iter_mut().zip(value) {
                        *sum += probability * v;
                    }
                }
            }
        }
    }
    out
}
