//! What stands around scans: columns side by side, and gated norms.

use candle_core::{DType, Tensor};

use super::data::{self, Fill, Random};
use super::Bench;
use crate::{join_columns, Activation, GateOrder, GatedNorm, Result};

/// Columns of a wider tensor, and their values.
fn columns(
    random: &mut Random,
    (rows, width): (usize, usize),
    dtype: DType,
    bench: &Bench<'_>,
) -> Result<(Tensor, Vec<f64>)> {
    let values = data::values(random, rows * (width + 3), Fill::Plain, width + 3);
    let (whole, _) = data::tensor(values, &[rows, width + 3], dtype, bench.device)?;
    let part = whole.narrow(1, 1, width)?;
    let values = data::read(&part)?;
    Ok((part, values))
}

pub(super) fn joined_columns(bench: &mut Bench<'_>) -> Result<()> {
    let mut random = Random::new(43);
    let widths: [&[usize]; 4] = [
        &[5],
        &[1, 8],
        &[33, 1, 7],
        &[4, 1, 2, 9, 3, 17, 1, 1, 6, 40],
    ];
    for rows in [1, 3, 70] {
        for widths in widths {
            let types = [DType::F32, bench.dtype].into_iter().cycle();
            let parts = widths.iter().zip(types);
            let parts =
                parts.map(|(&width, dtype)| columns(&mut random, (rows, width), dtype, bench));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            let mut want = Vec::new();
            for row in 0..rows {
                for (&width, (_, values)) in widths.iter().zip(&parts) {
                    want.extend(&values[row * width..(row + 1) * width]);
                }
            }
            let parts: Vec<&Tensor> = parts.iter().map(|(part, _)| part).collect();
            let got = join_columns(&parts, bench.dtype)?;
            bench.check(format!("{rows} rows of {widths:?}"), &got, &want)?;
        }
    }
    Ok(())
}

struct Norm {
    part: usize,
    weights: Vec<f64>,
    epsilon: f64,
    activation: Activation,
    order: GateOrder,
}

impl Norm {
    fn reference(&self, x: &[f64], gate: &[f64]) -> Vec<f64> {
        let open = |gate: f64| {
            let logistic = 1.0 / (1.0 + (-gate).exp());
            match self.activation {
                Activation::Sigmoid => logistic,
                _ => gate * logistic,
            }
        };
        let width = self.weights.len();
        let parts = x.chunks(self.part).zip(gate.chunks(self.part));
        let normed = parts.flat_map(|(x, gate)| {
            let pairs = x.iter().zip(gate);
            let given = pairs.map(|(x, gate)| match self.order {
                GateOrder::NormFirst => *x,
                GateOrder::GateFirst => x * open(*gate),
            });
            let given: Vec<f64> = given.collect();
            let mean = given.iter().map(|x| x * x).sum::<f64>() / self.part as f64;
            let inverse = 1.0 / (mean + self.epsilon).sqrt();
            let gates = gate.iter().map(|gate| match self.order {
                GateOrder::NormFirst => open(*gate),
                GateOrder::GateFirst => 1.0,
            });
            let pairs = given.into_iter().zip(gates);
            pairs
                .map(move |(x, gate)| x * inverse * gate)
                .collect::<Vec<f64>>()
        });
        let weights = (0..).map(|at: usize| self.weights[at % width]);
        normed.zip(weights).map(|(x, weight)| x * weight).collect()
    }
}

pub(super) fn gated_norm(bench: &mut Bench<'_>) -> Result<()> {
    let mut random = Random::new(41);
    let orders = [GateOrder::NormFirst, GateOrder::GateFirst];
    let activations = [Activation::Silu, Activation::Sigmoid];
    for (tokens, parts, part) in [
        (1, 1, 8),
        (3, 1, 100),
        (5, 4, 16),
        (2, 3, 33),
        (4, 8, 128),
        (2, 2, 1025),
    ] {
        let width = parts * part;
        let values = data::values(&mut random, tokens * width, Fill::Plain, width);
        let (x, x_values) = data::tensor(values, &[tokens, width], DType::F32, bench.device)?;
        let (gate, gates) = columns(&mut random, (tokens, width), bench.dtype, bench)?;
        for count in [part, width] {
            let values = data::values(&mut random, count, Fill::Plain, count);
            let (weight, weights) = data::tensor(values, &[count], DType::F32, bench.device)?;
            for order in orders {
                for activation in activations {
                    let epsilon = 1e-5f32;
                    let norm = GatedNorm::new(&weight, part, epsilon, activation, order)?;
                    let got = norm.forward(&x, &gate, bench.dtype)?;
                    let reference = Norm {
                        part,
                        weights: weights.clone(),
                        epsilon: epsilon.into(),
                        activation,
                        order,
                    };
                    let case = format!("{tokens}x{parts}x{part} {count} {order:?} {activation:?}");
                    bench.check(case, &got, &reference.reference(&x_values, &gates))?;
                }
            }
        }
    }
    Ok(())
}
