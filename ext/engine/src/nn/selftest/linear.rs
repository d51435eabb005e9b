use super::Bench;
use crate::nn::{Epilogue, Linear, Projection};
use crate::Result;
use kernels::selftest::ROW_NUMBERS;
use kernels::{reference, Activation};

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

/// Inputs and outputs.
const SIZES: [(usize, usize); 6] = [
    (8, 8),
    (64, 40),
    (100, 30),
    (72, 25),
    (768, 384),
    (1032, 64),
];

pub(super) fn cases(bench: &mut Bench<'_>) -> Result<()> {
    let (sizes, rows): (&[_], &[_]) = if bench.extent.few {
        (&[(8, 8), (100, 30), (72, 25)], &[1, 3, 9])
    } else {
        (&SIZES, &[1, 2, 3, 5, 8, 9, 33])
    };
    for &(inputs, outputs) in sizes {
        for &rows in rows {
            for biased in [true, false] {
                linear_case(bench, (rows, inputs, outputs), biased)?;
            }
        }
    }
    // A kernel of its own takes many rows there, by tiles that none of these numbers fills.
    if bench.device.is_cuda() {
        linear_case(bench, (1_031, 104, 136), true)?;
        linear_case(bench, (1_290, 456, 264), false)?;
    }
    Ok(())
}

/// Shapes that kernels of ours take on every device. Beyond a few rows a layer without a bias is left to candle's on
/// some.
pub(super) fn own_products(bench: &mut Bench<'_>) -> Result<()> {
    let (sizes, rows): (&[_], &[_]) = match (bench.extent.few, bench.extent.rows) {
        (_, true) => (&[(32, 6)], &ROW_NUMBERS),
        (true, _) => (&[(32, 6), (96, 70)], &[1, 6, 9, 33]),
        (false, _) => (
            &[(32, 1), (64, 70), (1056, 130), (4096, 9)],
            &[1, 2, 4, 5, 8, 9, 32, 65],
        ),
    };
    for &(inputs, outputs) in sizes {
        for &rows in rows {
            linear_case(bench, (rows, inputs, outputs), true)?;
        }
    }
    linear_case(bench, (1, 16, 5), false)
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
