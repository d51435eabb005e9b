//! Every kernel in its plainest form, in f64: what the fast ones are compared with.
//!
//! Rows are flat and contiguous; nothing here is meant to be quick.

use super::{Activation, ClampedGlu, Pointwise, RopeKind};

pub fn layer_norm(x: &[f64], weight: &[f64], bias: Option<&[f64]>, epsilon: f64) -> Vec<f64> {
    let width = weight.len();
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks(width.max(1)) {
        let mean = row.iter().sum::<f64>() / width as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
        let inverse = 1.0 / (variance + epsilon).sqrt();
        for (i, v) in row.iter().enumerate() {
            out.push((v - mean) * inverse * weight[i] + bias.map_or(0.0, |b| b[i]));
        }
    }
    out
}

pub fn rms_norm(x: &[f64], weight: &[f64], epsilon: f64, weight_offset: f64) -> Vec<f64> {
    let width = weight.len();
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks(width.max(1)) {
        let square = row.iter().map(|v| v * v).sum::<f64>() / width as f64;
        let inverse = 1.0 / (square + epsilon).sqrt();
        out.extend(
            row.iter()
                .zip(weight)
                .map(|(v, w)| v * inverse * (w + weight_offset)),
        );
    }
    out
}

/// `bias(row, column)` is what is added to a scaled score, or `None` where the element is masked.
pub fn softmax(
    x: &[f64],
    width: usize,
    scale: f64,
    bias: impl Fn(usize, usize) -> Option<f64>,
) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for (row, values) in x.chunks(width.max(1)).enumerate() {
        let scores: Vec<Option<f64>> = values
            .iter()
            .enumerate()
            .map(|(column, v)| bias(row, column).map(|b| v * scale + b))
            .collect();
        let highest = scores
            .iter()
            .flatten()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().flatten().map(|s| (s - highest).exp()).sum();
        out.extend(
            scores
                .iter()
                .map(|score| score.map_or(0.0, |s| (s - highest).exp() / sum)),
        );
    }
    out
}

pub fn activation(x: f64, activation: Activation) -> f64 {
    let logistic = |v: f64| 1.0 / (1.0 + (-v).exp());
    match activation {
        // Of -infinity every one but relu makes 0 · infinity, NaN, as torch does.
        Activation::Gelu => {
            x * 0.5 * candle_core::cpu::erf::erfc_f64(-x * std::f64::consts::FRAC_1_SQRT_2)
        }
        Activation::GeluTanh => {
            x * logistic(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))
        }
        Activation::QuickGelu => x * logistic(1.702 * x),
        Activation::Silu => x * logistic(x),
        Activation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::ReluSquared => {
            let positive = if x < 0.0 { 0.0 } else { x };
            positive * positive
        }
        // NaN stays NaN.
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => logistic(x),
        Activation::Identity => x,
    }
}

pub fn pointwise(x: f64, function: Pointwise) -> f64 {
    match function {
        Pointwise::Clamp { least, most } => x.clamp(f64::from(least), f64::from(most)),
        Pointwise::Xielu(parameters) => {
            let linear = f64::from(parameters.linear) * x;
            if x > 0.0 {
                return f64::from(parameters.positive) * x * x + linear;
            }
            let most = f64::from(parameters.most);
            let exponent = if x > most { most } else { x };
            (exponent.exp_m1() - x) * f64::from(parameters.negative) + linear
        }
    }
}

pub fn clamped_glu(gate: f64, up: f64, glu: ClampedGlu) -> f64 {
    let (limit, alpha) = (f64::from(glu.limit), f64::from(glu.alpha));
    let gate = if gate > limit { limit } else { gate };
    (up.clamp(-limit, limit) + 1.0) * gate / (1.0 + (-alpha * gate).exp())
}

/// `x` is [tokens, heads, width]; the tables are [positions, rotary / 2]. A position beyond them gives
/// NaN, as the kernels of the GPUs do.
pub fn rope(
    x: &[f64],
    (heads, width): (usize, usize),
    (cosines, sines): (&[f64], &[f64]),
    positions: &[u32],
    kind: RopeKind,
    rotary: usize,
) -> Vec<f64> {
    let pairs = rotary / 2;
    let mut out = x.to_vec();
    for (token, &position) in positions.iter().enumerate() {
        for head in 0..heads {
            let start = (token * heads + head) * width;
            for pair in 0..pairs {
                let (first, second) = match kind {
                    RopeKind::Half => (pair, pair + pairs),
                    RopeKind::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let (a, b) = (x[start + first], x[start + second]);
                let at = position as usize * pairs + pair;
                let [cosine, sine] =
                    [cosines, sines].map(|t| t.get(at).copied().unwrap_or(f64::NAN));
                out[start + first] = a * cosine - b * sine;
                out[start + second] = b * cosine + a * sine;
            }
        }
    }
    out
}

/// The mean of the rows of each sequence; an empty sequence gives zeros.
pub fn mean_pool(x: &[f64], width: usize, boundaries: &[u32]) -> Vec<f64> {
    let mut out = Vec::new();
    for pair in boundaries.windows(2) {
        let (first, last) = (pair[0] as usize, pair[1] as usize);
        for column in 0..width {
            let sum: f64 = (first..last).map(|row| x[row * width + column]).sum();
            out.push(sum / (last - first).max(1) as f64);
        }
    }
    out
}

/// The norm is taken as at least `least`, so that a row of zeros stays one.
pub fn l2_normalize(x: &[f64], width: usize, least: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks(width.max(1)) {
        let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
        let divisor = if norm < least { least } else { norm };
        out.extend(row.iter().map(|v| v / divisor));
    }
    out
}
