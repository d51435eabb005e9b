//! Errors with outliers, in both factors and of every size, beside those of f32. Run with `--nocapture` it prints them.

use super::tests::{plain, Subject};
use crate::cpu::isa::Isa;
use crate::cpu::test_numbers::numbers;

const ROWS: usize = 16;
const OUTPUTS: usize = 40;

/// How many times the error of f32 is allowed.
const ALLOWED: f64 = 2.0;

/// Numbers of a bell curve.
fn bell(count: usize, seed: u32) -> Vec<f32> {
    let even = numbers(count * 6, seed);
    even.chunks(6).map(|six| six.iter().sum()).collect()
}

fn scale_input(rows: &mut [f32], inputs: usize, input: usize, scale: f32) {
    for row in rows.chunks_mut(inputs) {
        row[input] *= scale;
    }
}

/// Rows of x and of weights, with so many inputs each.
struct Factors {
    x: Vec<f32>,
    weight: Vec<f32>,
    inputs: usize,
}

/// Makes an input an outlier, this many times as large as the others.
type Change = fn(&mut Factors, usize, f32);

const CHANGES: [(&str, Change); 9] = [
    ("x, its weights 0", |f, input, scale| {
        scale_input(&mut f.x, f.inputs, input, scale);
        scale_input(&mut f.weight, f.inputs, input, 0.0);
    }),
    ("x, its weights small", |f, input, scale| {
        scale_input(&mut f.x, f.inputs, input, scale);
        scale_input(&mut f.weight, f.inputs, input, 1.0 / scale);
    }),
    ("x", |f, input, scale| {
        scale_input(&mut f.x, f.inputs, input, scale)
    }),
    ("x, every other weight 0", |f, input, scale| {
        scale_input(&mut f.x, f.inputs, input, scale);
        for row in f.weight.chunks_mut(f.inputs).step_by(2) {
            row[input] = 0.0;
        }
    }),
    ("weights, their x 0", |f, input, scale| {
        scale_input(&mut f.weight, f.inputs, input, scale);
        scale_input(&mut f.x, f.inputs, input, 0.0);
    }),
    ("weights, their x small", |f, input, scale| {
        scale_input(&mut f.weight, f.inputs, input, scale);
        scale_input(&mut f.x, f.inputs, input, 1.0 / scale);
    }),
    ("weights", |f, input, scale| {
        scale_input(&mut f.weight, f.inputs, input, scale)
    }),
    ("weights of one output", |f, input, scale| {
        f.weight[f.inputs + input] *= scale;
        scale_input(&mut f.x, f.inputs, input, 0.0);
    }),
    ("both, of different inputs", |f, input, scale| {
        scale_input(&mut f.x, f.inputs, input, scale);
        let other = (input + 3) % f.inputs;
        scale_input(&mut f.weight, f.inputs, other, scale);
    }),
];

/// The size of errors, of even and of odd outputs.
fn errors(products: &[f32], exact: &[f64]) -> [f64; 2] {
    let mut errors = [0.0; 2];
    for (at, (&product, exact)) in products.iter().zip(exact).enumerate() {
        errors[at % OUTPUTS % 2] += (f64::from(product) - exact).powi(2);
    }
    errors.map(f64::sqrt)
}

/// Who multiplied, and how many times the error of f32 that has.
fn compare(factors: &Factors) -> Vec<(&'static str, f64)> {
    let Factors { x, weight, inputs } = factors;
    let pairs = x
        .chunks(*inputs)
        .flat_map(|row| weight.chunks(*inputs).map(move |output| (row, output)));
    let dot = |(row, output): (&[f32], &[f32])| -> f64 {
        let pairs = row.iter().zip(output);
        pairs.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
    };
    let exact: Vec<f64> = pairs.clone().map(dot).collect();
    let in_f32: Vec<f32> = pairs
        .map(|(row, output)| plain(row, output.iter()))
        .collect();
    let in_f32 = errors(&in_f32, &exact);
    let ratio = |(name, products): (_, Vec<f32>)| {
        let [even, odd] = errors(&products, &exact);
        (name, (even / in_f32[0]).max(odd / in_f32[1]))
    };
    let subject = Subject::new(weight, *inputs, OUTPUTS);
    subject.products(x).into_iter().map(ratio).collect()
}

#[test]
fn errors_are_at_most_twice_those_of_f32_whatever_the_outliers() {
    for inputs in [128, 384, 1536] {
        for (name, change) in CHANGES {
            for count in [1, 4, (inputs / 16).min(15)] {
                let mut worst = Vec::new();
                for size in (0..=12).map(|half| 10f32.powf(half as f32 / 2.0)) {
                    let mut factors = Factors {
                        x: bell(ROWS * inputs, 1),
                        weight: bell(OUTPUTS * inputs, 2),
                        inputs,
                    };
                    for number in 0..count {
                        change(&mut factors, (11 + 37 * number) % inputs, size);
                    }
                    for (by, ratio) in compare(&factors) {
                        let at =
                            format!("{by}, {inputs} inputs, {count} outliers: {name} × {size:.0}");
                        assert!(ratio <= ALLOWED, "{at}: {ratio:.2} times the error of f32");
                        worst.push((by, ratio));
                    }
                }
                report(
                    &format!("{inputs} inputs, {count} outliers: {name}"),
                    &worst,
                );
            }
        }
    }
}

/// Prints the worst of each.
fn report(title: &str, ratios: &[(&str, f64)]) {
    let mut names: Vec<_> = ratios.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    let worst = |name: &str| {
        let own = ratios.iter().filter(|(other, _)| *other == name);
        let worst = own.map(|(_, ratio)| *ratio).fold(0.0, f64::max);
        format!("{name} {worst:.2}")
    };
    let worst: Vec<_> = names.into_iter().map(worst).collect();
    println!("{title}: times the error of f32: {}", worst.join(", "));
}

#[test]
fn a_row_with_outliers_does_not_depend_on_the_others() {
    let (rows, inputs) = (50, 384);
    let (mut x, weight) = (bell(rows * inputs, 1), bell(OUTPUTS * inputs, 2));
    for (number, row) in x.chunks_mut(inputs).enumerate().step_by(3) {
        row[number] *= 1e4;
        row[7] *= 300.0;
    }
    let subject = Subject::new(&weight, inputs, OUTPUTS);
    for (number, row) in x.chunks(inputs).enumerate() {
        let alone = subject.products(row);
        for ((name, all), (_, alone)) in subject.products(&x).iter().zip(&alone) {
            let own = &all[number * OUTPUTS..][..OUTPUTS];
            let same = own
                .iter()
                .zip(alone)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{name}, row {number}");
        }
    }
}

#[test]
fn weights_come_back_from_their_bytes() {
    let (inputs, outputs) = (384, 70);
    let mut weight = bell(outputs * inputs, 2);
    scale_input(&mut weight, inputs, 5, 1e-6);
    weight[3 * inputs + 9] = 1e4;
    let Some(matrix) = super::Matrix::new(&weight, inputs, outputs).unwrap() else {
        return assert!(!Isa::available().contains(&Isa::Avx512));
    };
    for panel in 0..outputs.div_ceil(32) {
        let numbers = matrix.numbers(panel);
        for (at, &number) in numbers.iter().enumerate() {
            let (input, output) = (at / 32, panel * 32 + at % 32);
            let wanted = weight
                .get(output * inputs + input)
                .filter(|_| output < outputs);
            let wanted = wanted.copied().unwrap_or(0.0);
            // Four bytes of the largest, which is about 4, and a rounding; what is split off or small is exact.
            let is_exact = [5, 9].contains(&input);
            let limit = if is_exact {
                0.0
            } else {
                8e-9 + f32::EPSILON * wanted.abs()
            };
            assert!(
                (number - wanted).abs() <= limit,
                "{input} {output}: {number}, {wanted}"
            );
        }
    }
}
