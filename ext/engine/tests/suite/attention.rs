//! Attention and linear layers against their plainest form in f64.

use candle_core::{DType, Device, Tensor};
use engine::nn::{
    attention, AttentionBias, AttentionKind, AttentionOptions, Disentangled, Epilogue, Linear,
};
use kernels::{Activation, Isa};

fn tensor(seed: u64, shape: &[usize]) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let count = shape.iter().product();
    let values: Vec<f32> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
    .take(count)
    .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn read(t: &Tensor) -> Vec<f64> {
    let t = t.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
    t.to_vec1().unwrap()
}

struct Case {
    heads: usize,
    key_heads: usize,
    width: usize,
    value_width: usize,
    queries: Vec<u32>,
    keys: Vec<u32>,
}

impl Case {
    fn inputs(&self, dtype: DType) -> [Tensor; 3] {
        let tokens = *self.queries.last().unwrap() as usize;
        let keys = *self.keys.last().unwrap() as usize;
        [
            tensor(1, &[tokens, self.heads, self.width]),
            tensor(2, &[keys, self.key_heads, self.width]),
            tensor(3, &[keys, self.key_heads, self.value_width]),
        ]
        .map(|t| t.to_dtype(dtype).unwrap())
    }

    /// `score(raw, sequence, head, query, key, distance)` is the score, or nothing where masked.
    fn want(
        &self,
        [q, k, v]: &[Tensor; 3],
        score: impl Fn(f64, usize, usize, usize, isize) -> Option<f64>,
    ) -> Vec<f64> {
        let (q, k, v) = (read(q), read(k), read(v));
        let mut out = Vec::new();
        for s in 0..self.queries.len() - 1 {
            let (q0, q1) = (self.queries[s] as usize, self.queries[s + 1] as usize);
            let (k0, k1) = (self.keys[s] as usize, self.keys[s + 1] as usize);
            for i in q0..q1 {
                for h in 0..self.heads {
                    let kh = h * self.key_heads / self.heads;
                    let position = (i - q0) as isize + (k1 - k0) as isize - (q1 - q0) as isize;
                    let scores: Vec<Option<f64>> = (k0..k1)
                        .map(|j| {
                            let dot: f64 = (0..self.width)
                                .map(|d| {
                                    q[(i * self.heads + h) * self.width + d]
                                        * k[(j * self.key_heads + kh) * self.width + d]
                                })
                                .sum();
                            score(dot, h, i, j, (j - k0) as isize - position)
                        })
                        .collect();
                    let highest = scores
                        .iter()
                        .flatten()
                        .copied()
                        .fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = scores.iter().flatten().map(|s| (s - highest).exp()).sum();
                    for d in 0..self.value_width {
                        let total: f64 = (k0..k1)
                            .zip(&scores)
                            .filter_map(|(j, s)| {
                                let value = v[(j * self.key_heads + kh) * self.value_width + d];
                                s.map(|s| (s - highest).exp() / sum * value)
                            })
                            .sum();
                        out.push(total);
                    }
                }
            }
        }
        out
    }

    fn check(
        &self,
        options: &AttentionOptions<'_>,
        score: impl Fn(f64, usize, usize, usize, isize) -> Option<f64> + Copy,
    ) {
        for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
            let inputs = self.inputs(dtype);
            let want = self.want(&inputs, score);
            let [q, k, v] = &inputs;
            for &isa in Isa::available() {
                let got = isa
                    .force(|| attention(q, k, v, &self.queries, &self.keys, options))
                    .unwrap();
                assert_eq!(got.dims(), [q.dims()[0], self.heads, self.value_width]);
                assert_eq!(got.dtype(), dtype);
                for (got, want) in read(&got).iter().zip(&want) {
                    assert!(
                        (got - want).abs() < tolerance,
                        "{got} instead of {want}, {}",
                        isa.name()
                    );
                }
            }
        }
    }
}

fn cases() -> Vec<Case> {
    let case = |heads, key_heads, width, value_width, queries: &[u32], keys: &[u32]| Case {
        heads,
        key_heads,
        width,
        value_width,
        queries: queries.to_vec(),
        keys: keys.to_vec(),
    };
    vec![
        case(3, 3, 8, 8, &[0, 5, 5, 6, 40], &[0, 5, 5, 6, 40]),
        case(4, 2, 64, 64, &[0, 70, 133], &[0, 70, 133]),
        case(4, 1, 33, 17, &[0, 1, 3], &[0, 37, 90]),
        case(2, 2, 80, 80, &[0, 9], &[0, 41]),
        case(1, 1, 1, 1, &[0, 1], &[0, 1]),
        case(2, 1, 16, 16, &[0], &[0]),
    ]
}

#[test]
fn attention_sees_what_its_kind_allows() {
    for case in cases() {
        let scale = 0.3;
        let scaled = move |dot: f64| dot * f64::from(scale);
        case.check(
            &AttentionOptions::new(AttentionKind::Bidirectional, scale),
            |dot, _, _, _, _| Some(scaled(dot)),
        );
        case.check(
            &AttentionOptions::new(AttentionKind::Causal, scale),
            |dot, _, _, _, distance| (distance <= 0).then_some(scaled(dot)),
        );
        let window = AttentionKind::Window { left: 6, right: 2 };
        case.check(
            &AttentionOptions::new(window, scale),
            |dot, _, _, _, distance| (-6..=2).contains(&distance).then_some(scaled(dot)),
        );
    }
}

#[test]
fn a_query_that_sees_nothing_gives_zeros() {
    // Three queries but one key: the first two stand before it.
    let case = Case {
        heads: 1,
        key_heads: 1,
        width: 4,
        value_width: 4,
        queries: vec![0, 3, 5],
        keys: vec![0, 1, 1],
    };
    case.check(
        &AttentionOptions::new(AttentionKind::Causal, 1.0),
        |dot, _, _, _, distance| (distance <= 0).then_some(dot),
    );
    let [q, k, v] = case.inputs(DType::F32);
    let options = AttentionOptions::new(AttentionKind::Causal, 1.0);
    let got = read(&attention(&q, &k, &v, &case.queries, &case.keys, &options).unwrap());
    assert!(got[..8].iter().chain(&got[12..]).all(|&v| v == 0.0));
}

#[test]
fn scores_take_caps_and_biases() {
    for case in cases() {
        let slopes: Vec<f32> = (0..case.heads).map(|h| 0.5 / (h + 1) as f32).collect();
        let mut options = AttentionOptions::new(AttentionKind::Causal, 1.0);
        options.soft_cap = Some(1.5);
        options.bias = AttentionBias::Alibi(&slopes);
        case.check(&options, |dot, head, _, _, distance| {
            let capped = 1.5 * (dot / 1.5).tanh();
            (distance <= 0)
                .then(|| capped - f64::from(slopes[head]) * distance.unsigned_abs() as f64)
        });

        let table = tensor(9, &[case.heads, 9]);
        let values = read(&table);
        let mut options = AttentionOptions::new(AttentionKind::Bidirectional, 1.0);
        options.bias = AttentionBias::Relative {
            table: &table,
            zero: 4,
        };
        case.check(&options, |dot, head, _, _, distance| {
            Some(dot + values[head * 9 + (distance.clamp(-4, 4) + 4) as usize])
        });
    }
}

#[test]
fn disentangled_biases_come_from_query_and_key() {
    let buckets_of_query: Vec<u32> = vec![0, 1, 2, 3, 4];
    let buckets_of_key: Vec<u32> = vec![4, 3, 2, 1, 0];
    for case in cases() {
        let tokens = *case.queries.last().unwrap() as usize;
        let keys = *case.keys.last().unwrap() as usize;
        let (from_query, from_key) = (
            tensor(5, &[tokens, case.heads, 5]),
            tensor(6, &[keys, case.heads, 5]),
        );
        let (of_query, of_key) = (read(&from_query), read(&from_key));
        let mut options = AttentionOptions::new(AttentionKind::Bidirectional, 0.7);
        options.bias = AttentionBias::Disentangled(Disentangled {
            from_query: Some((&from_query, &buckets_of_query)),
            from_key: Some((&from_key, &buckets_of_key)),
            zero: 2,
        });
        case.check(&options, |dot, head, query, key, distance| {
            let column = (distance + 2).clamp(0, 4) as usize;
            let side = |values: &[f64], token: usize, buckets: &[u32]| {
                values[(token * case.heads + head) * 5 + buckets[column] as usize]
            };
            let bias =
                side(&of_query, query, &buckets_of_query) + side(&of_key, key, &buckets_of_key);
            Some(dot * f64::from(0.7f32) + bias)
        });
    }
}

#[test]
fn strided_queries_of_a_fused_projection_are_read_in_place() {
    let fused = tensor(4, &[12, 3, 2, 8]);
    let part = |i| fused.narrow(1, i, 1).unwrap().squeeze(1).unwrap();
    let options = AttentionOptions::new(AttentionKind::Causal, 0.5);
    let boundaries = [0, 7, 12];
    let strided = attention(
        &part(0),
        &part(1),
        &part(2),
        &boundaries,
        &boundaries,
        &options,
    )
    .unwrap();
    let copied = |i| part(i).contiguous().unwrap();
    let want = attention(
        &copied(0),
        &copied(1),
        &copied(2),
        &boundaries,
        &boundaries,
        &options,
    )
    .unwrap();
    assert_eq!(read(&strided), read(&want));
}

#[test]
fn a_linear_layer_applies_bias_activation_and_residual() {
    let shapes = [
        (1, 1, 1),
        (3, 5, 7),
        (4, 64, 96),
        (37, 384, 130),
        (65, 33, 17),
        (0, 4, 4),
        (1, 768, 300),
    ];
    for (rows, inputs, outputs) in shapes {
        for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 3e-2), (DType::BF16, 2e-1)] {
            let make = |seed, shape: &[usize]| tensor(seed, shape).to_dtype(dtype).unwrap();
            let (x, weight) = (make(1, &[rows, inputs]), make(2, &[outputs, inputs]));
            let (bias, residual) = (make(3, &[outputs]), make(4, &[rows, outputs]));
            let (xs, ws, bs, rs) = (read(&x), read(&weight), read(&bias), read(&residual));
            let layer = Linear::new(weight, Some(bias)).unwrap();
            assert_eq!((layer.inputs(), layer.outputs()), (inputs, outputs));
            for &isa in Isa::available() {
                let plain = isa.force(|| layer.forward(&x)).unwrap();
                let epilogue = Epilogue {
                    activation: Some(Activation::Relu),
                    residual: Some(&residual),
                };
                let full = isa.force(|| layer.forward_with(&x, &epilogue)).unwrap();
                assert_eq!(plain.dims(), [rows, outputs]);
                let (plain, full) = (read(&plain), read(&full));
                for r in 0..rows {
                    for o in 0..outputs {
                        let dot: f64 = (0..inputs)
                            .map(|i| xs[r * inputs + i] * ws[o * inputs + i])
                            .sum();
                        let (at, value) = (r * outputs + o, dot + bs[o]);
                        assert!(
                            (plain[at] - value).abs() < tolerance,
                            "{} {}",
                            plain[at],
                            value
                        );
                        assert!((full[at] - (value.max(0.0) + rs[at])).abs() < tolerance);
                    }
                }
            }
        }
    }
}

#[test]
fn linear_layers_refuse_what_does_not_fit() {
    let layer = Linear::new(tensor(1, &[3, 4]), None).unwrap();
    let message = layer.forward(&tensor(1, &[2, 5])).unwrap_err().to_string();
    assert!(message.contains("4 inputs") && message.contains("[2, 5]"));
    assert!(Linear::new(tensor(1, &[3, 4]), Some(tensor(1, &[4]))).is_err());
}
