//! Attention and linear layers on a device, compared with their plainest form in f64.

use candle_core::{DType, Device, Tensor};

use super::{
    attention, AttentionBias, AttentionKind, AttentionOptions, Disentangled, Epilogue, Linear,
    Projection,
};
use crate::kernels::selftest::Outcome;
use crate::kernels::{reference, Activation};
use crate::runtime::device::placed;
use crate::Result;

/// Every case on the device, in every dtype.
pub fn run(device: &Device) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for dtype in crate::kernels::selftest::DTYPES {
        let mut bench = Bench {
            device,
            dtype,
            seed: 1,
            outcomes: &mut outcomes,
        };
        attention_cases(&mut bench)?;
        linear_cases(&mut bench)?;
    }
    Ok(outcomes)
}

struct Bench<'a> {
    device: &'a Device,
    dtype: DType,
    seed: u64,
    outcomes: &'a mut Vec<Outcome>,
}

impl Bench<'_> {
    /// Numbers from -1 to 1, and what the type makes of them.
    fn tensor(&mut self, shape: &[usize]) -> Result<(Tensor, Vec<f64>)> {
        self.typed(shape, self.dtype)
    }

    fn typed(&mut self, shape: &[usize], dtype: DType) -> Result<(Tensor, Vec<f64>)> {
        let mut state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        self.seed += 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let count = shape.iter().product();
        let values: Vec<f32> = std::iter::repeat_with(next).take(count).collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?;
        let kept = read(&tensor)?;
        Ok((placed(&tensor, self.device)?, kept))
    }

    /// The error counts against the largest number of the result.
    fn check(
        &mut self,
        kernel: &'static str,
        case: String,
        got: &Tensor,
        want: &[f64],
    ) -> Result<()> {
        let got = read(got)?;
        let allowed = match self.dtype {
            DType::F16 => 2e-3,
            DType::BF16 => 1.5e-2,
            _ => 2e-5,
        };
        let largest = want.iter().fold(1e-3f64, |most, w| most.max(w.abs()));
        let errors = got.iter().zip(want).map(|(g, w)| {
            let error = (g - w).abs() / (allowed * largest);
            if error.is_nan() {
                f64::INFINITY
            } else {
                error
            }
        });
        let deviation = match got.len() == want.len() {
            true => errors.fold(0.0, f64::max),
            false => f64::INFINITY,
        };
        self.outcomes.push(Outcome {
            kernel,
            dtype: self.dtype,
            case,
            deviation,
        });
        Ok(())
    }
}

fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    if tensor.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let values = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    Ok(values.to_dtype(DType::F64)?.to_vec1()?)
}

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

fn attention_cases(bench: &mut Bench<'_>) -> Result<()> {
    let kinds = [
        AttentionKind::Bidirectional,
        AttentionKind::Causal,
        AttentionKind::Window { left: 20, right: 7 },
        AttentionKind::Window { left: 3, right: 0 },
    ];
    let mixed = vec![0u32, 1, 70, 70, 134, 284];
    for (width, heads, key_heads) in [
        (8, 2, 2),
        (16, 2, 2),
        (32, 3, 3),
        (40, 2, 1),
        (64, 4, 2),
        (80, 2, 2),
        (96, 2, 1),
        (128, 2, 1),
        (256, 2, 1),
    ] {
        for kind in kinds {
            let sizes = Sizes {
                heads,
                key_heads,
                width,
                queries: mixed.clone(),
                keys: mixed.clone(),
            };
            plain_case(bench, &sizes, kind, None)?;
        }
        // Decoding: one or a few queries after many keys.
        for (queries, keys) in [(1, 1), (1, 300), (1, 1500), (3, 700), (70, 200)] {
            for kind in [kinds[1], AttentionKind::Window { left: 99, right: 0 }] {
                let sizes = Sizes {
                    heads,
                    key_heads,
                    width,
                    queries: vec![0, queries],
                    keys: vec![0, keys],
                };
                plain_case(bench, &sizes, kind, None)?;
            }
        }
    }
    for (queries, keys) in [
        (vec![0u32, 1, 2, 4], vec![0u32, 5, 405, 1000]),
        (vec![0, 90, 100], vec![0, 90, 400]),
    ] {
        let sizes = Sizes {
            heads: 4,
            key_heads: 2,
            width: 64,
            queries,
            keys,
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

/// A layer with its numbers.
struct Layer {
    linear: Linear,
    weight: Vec<f64>,
    bias: Option<Vec<f64>>,
}

impl Layer {
    fn new(bench: &mut Bench<'_>, inputs: usize, outputs: usize, biased: bool) -> Result<Self> {
        let (weight, w) = bench.tensor(&[outputs, inputs])?;
        let bias = biased.then(|| bench.tensor(&[outputs])).transpose()?;
        let (bias, b) = bias.unzip();
        Ok(Self {
            linear: Linear::new(weight, bias)?,
            weight: w,
            bias: b,
        })
    }

    fn expected(&self, x: &[f64]) -> Vec<f64> {
        let inputs = self.linear.inputs();
        let row = |x: &[f64]| -> Vec<f64> {
            let products = self.weight.chunks(inputs);
            products
                .enumerate()
                .map(|(o, w)| {
                    let sum: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
                    sum + self.bias.as_ref().map_or(0.0, |bias| bias[o])
                })
                .collect()
        };
        x.chunks(inputs).flat_map(row).collect()
    }
}

fn linear_cases(bench: &mut Bench<'_>) -> Result<()> {
    let sizes = [
        (8, 8),
        (64, 40),
        (100, 30),
        (72, 25),
        (768, 384),
        (1032, 64),
    ];
    for (inputs, outputs) in sizes {
        for rows in [1, 2, 3, 5, 8, 9, 33] {
            for biased in [true, false] {
                linear_case(bench, (rows, inputs, outputs), biased)?;
            }
        }
    }
    Ok(())
}

fn linear_case(
    bench: &mut Bench<'_>,
    (rows, inputs, outputs): (usize, usize, usize),
    biased: bool,
) -> Result<()> {
    let (x, values) = bench.tensor(&[rows, inputs])?;
    let (residual, r) = bench.tensor(&[rows, outputs])?;
    let layer = Layer::new(bench, inputs, outputs, biased)?;
    let plain = layer.expected(&values);
    let label = format!("{rows}x{inputs}x{outputs} bias {biased}");
    bench.check("linear", label.clone(), &layer.linear.forward(&x)?, &plain)?;
    for activation in [None, Some(Activation::Gelu), Some(Activation::Silu)] {
        for residual in [None, Some((&residual, &r))] {
            let epilogue = Epilogue {
                activation,
                residual: residual.map(|(tensor, _)| tensor),
            };
            let got = layer.linear.forward_with(&x, &epilogue)?;
            let want: Vec<f64> = plain
                .iter()
                .enumerate()
                .map(|(i, &y)| {
                    let y = activation.map_or(y, |a| reference::activation(y, a));
                    y + residual.map_or(0.0, |(_, r)| r[i])
                })
                .collect();
            let case = format!("{label} {activation:?} residual {}", residual.is_some());
            bench.check("linear", case, &got, &want)?;
        }
    }
    let second = Layer::new(bench, inputs, outputs, biased)?;
    let third = Layer::new(bench, inputs, outputs / 2, !biased)?;
    let layers = [&layer, &second, &third];
    let linears = layers.map(|layer| layer.linear.clone());
    let split = Projection::split(Vec::from(linears))?;
    for (part, layer) in split.heads(&x, 1, &[])?.iter().zip(&layers) {
        let want = layer.expected(&values);
        bench.check("linear_joined", label.clone(), part, &want)?;
    }
    let want: Vec<f64> = plain
        .iter()
        .zip(second.expected(&values))
        .map(|(&gate, up)| reference::activation(gate, Activation::Silu) * up)
        .collect();
    let both = Projection::split(vec![layer.linear.clone(), second.linear.clone()])?;
    let got = both.activated(&x, Activation::Silu, &[])?;
    bench.check("linear_gated", label.clone(), &got, &want)?;
    if outputs % 2 == 0 {
        let half = outputs / 2;
        let want: Vec<f64> = plain
            .chunks(outputs)
            .flat_map(|row| {
                let gate = |i: usize| reference::activation(row[i], Activation::GeluTanh);
                (0..half)
                    .map(|i| gate(i) * row[half + i])
                    .collect::<Vec<_>>()
            })
            .collect();
        let fused = Projection::fused_halves(layer.linear.clone())?;
        let got = fused.activated(&x, Activation::GeluTanh, &[])?;
        bench.check("linear_gated", format!("{label} fused"), &got, &want)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_and_linear_layers_equal_the_reference_on_the_cpu() {
        let outcomes = crate::runtime::threads::install(|| run(&Device::Cpu))
            .unwrap()
            .unwrap();
        assert!(outcomes.len() > 1000);
        let failed: Vec<_> = outcomes.iter().filter(|o| !o.passed()).collect();
        assert!(
            failed.is_empty(),
            "{} failed: {:?}",
            failed.len(),
            failed.first()
        );
    }
}
