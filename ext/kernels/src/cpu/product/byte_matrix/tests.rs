use super::*;
use crate::cpu::product::GemmEpilogue;
use crate::cpu::test_numbers::numbers;
use crate::Activation;

/// The product of what the definition says both factors are rounded to, in f64.
fn expected(x: &[f32], weight: &[f32], inputs: usize, rows: usize, outputs: usize) -> Vec<f64> {
    let rounded = |values: &[f32]| -> (Vec<i64>, f64) {
        let highest = values.iter().fold(0f32, |most, v| most.max(v.abs()));
        let (inverse, scale) = scales_of(highest);
        let bytes = values
            .iter()
            .map(|v| (v * inverse).round_ties_even() as i64);
        (bytes.collect(), f64::from(scale))
    };
    let x: Vec<_> = x.chunks(inputs).map(rounded).collect();
    let weight: Vec<_> = weight.chunks(inputs).map(rounded).collect();
    (0..rows * outputs)
        .map(|at| {
            let ((a, a_scale), (b, b_scale)) = (&x[at / outputs], &weight[at % outputs]);
            let sum: i64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            sum as f64 * a_scale * b_scale
        })
        .collect()
}

#[test]
fn every_instruction_set_gives_the_same_exact_sums() {
    for (rows, inputs, outputs) in [
        (1, 1, 1),
        (7, 5, 31),
        (6, 70, 40),
        (11, 130, 36),
        (16, 64, 32),
        (17, 65, 33),
        (33, 200, 129),
        (65, 40, 161),
        (70, 64, 3),
    ] {
        let (x, weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
        let packed = ByteMatrix::new(&weight, inputs, outputs).unwrap();
        let want = expected(&x, &weight, inputs, rows, outputs);
        let first = packed.multiply(Isa::Scalar, &x, rows, &GemmEpilogue::default());
        for (got, want) in first.iter().zip(&want) {
            let apart = (f64::from(*got) - want).abs();
            assert!(apart <= 1e-6 * (1.0 + want.abs()), "{got} {want}");
        }
        for &isa in Isa::available() {
            let got = packed.multiply(isa, &x, rows, &GemmEpilogue::default());
            assert_eq!(got, first, "{} {rows} {inputs} {outputs}", isa.name());
        }
    }
}

#[test]
fn the_largest_bytes_do_not_overflow() {
    let (inputs, outputs) = (512, 32);
    let x: Vec<f32> = (0..inputs)
        .map(|i| if i % 3 == 0 { -1.0 } else { 1.0 })
        .collect();
    let weight: Vec<f32> = (0..outputs).flat_map(|_| x.clone()).collect();
    let packed = ByteMatrix::new(&weight, inputs, outputs).unwrap();
    for &isa in Isa::available() {
        let got = packed.multiply(isa, &x, 1, &GemmEpilogue::default());
        assert!(
            got.iter().all(|v| (v - 512.0).abs() < 1e-3),
            "{} {got:?}",
            isa.name()
        );
    }
}

#[test]
fn the_epilogue_follows() {
    let (rows, inputs, outputs) = (40, 70, 50);
    let (x, weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
    let (bias, residual) = (numbers(outputs, 3), numbers(rows * outputs, 4));
    let packed = ByteMatrix::new(&weight, inputs, outputs).unwrap();
    for &isa in Isa::available() {
        let plain = packed.multiply(isa, &x, rows, &GemmEpilogue::default());
        let epilogue = GemmEpilogue {
            bias: Some(&bias),
            activation: Some(Activation::Relu),
            residual: Some(&residual),
        };
        let full = packed.multiply(isa, &x, rows, &epilogue);
        for at in 0..rows * outputs {
            let want = (plain[at] + bias[at % outputs]).max(0.0) + residual[at];
            assert!((full[at] - want).abs() < 1e-6, "{}", isa.name());
        }
    }
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    let inputs = 20;
    let mut x = vec![1.0; 3 * inputs];
    x[inputs + 3] = f32::NAN;
    x[2 * inputs + 4] = f32::INFINITY;
    let packed = ByteMatrix::new(&vec![0.5; 40 * inputs], inputs, 40).unwrap();
    for &isa in Isa::available() {
        let out = packed.multiply(isa, &x, 3, &GemmEpilogue::default());
        assert!(
            out[..40].iter().all(|v| (v - 10.0).abs() < 1e-4),
            "{}",
            isa.name()
        );
        assert!(out[40..].iter().all(|v| v.is_nan()), "{}", isa.name());
    }
}
