//! How exact products by tiles are. Without tiles, matrices are not cut, and the same limits hold.

use crate::kernels::cpu::isa::Isa;
use crate::kernels::cpu::product::gemm::PackedMatrix;
use crate::kernels::cpu::product::{GemmEpilogue, WeightMatrix};
use crate::kernels::cpu::test_numbers::numbers;

/// Edges of tiles, blocks, steps and panels.
const SHAPES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (1, 384, 384),
    (7, 31, 33),
    (16, 32, 32),
    (17, 33, 31),
    (31, 65, 64),
    (32, 96, 97),
    (33, 384, 40),
    (49, 1536, 32),
    (300, 100, 70),
];

/// What parts leave out of a product of two numbers, at most.
const LEFT_OUT: f64 = 1.0 / 65536.0;

/// The sum of the products and that of their sizes, for every row and output.
fn reference(x: &[f32], weight: &[f32], inputs: usize) -> Vec<(f64, f64)> {
    let dot = |row: &[f32], output: &[f32]| {
        let products = row
            .iter()
            .zip(output)
            .map(|(&x, &w)| f64::from(x) * f64::from(w));
        products.fold((0.0, 0.0), |(sum, size), product| {
            (sum + product, size + product.abs())
        })
    };
    x.chunks(inputs)
        .flat_map(|row| weight.chunks(inputs).map(move |output| dot(row, output)))
        .collect()
}

fn multiply(matrix: &PackedMatrix, x: &[f32]) -> Vec<f32> {
    let isa = Isa::current().unwrap();
    matrix.multiply(isa, x, x.len() / matrix.inputs, &GemmEpilogue::default())
}

#[test]
fn sums_are_as_exact_as_their_parts() {
    for (rows, inputs, outputs) in SHAPES {
        let (x, weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
        let matrix = PackedMatrix::for_tiles(&weight, inputs, outputs).unwrap();
        let has_tiles = Isa::current().unwrap() == Isa::Amx;
        assert_eq!(matrix.has_parts(), has_tiles);
        let (mut errors, mut sizes) = (0.0, 0.0);
        let wanted = reference(&x, &weight, inputs);
        for (&got, (sum, size)) in multiply(&matrix, &x).iter().zip(wanted) {
            let error = (f64::from(got) - sum).abs();
            assert!(
                error <= LEFT_OUT * size,
                "{rows} {inputs} {outputs}: {error}"
            );
            errors += error * error;
            sizes += sum * sum;
        }
        let error = (errors / sizes).sqrt();
        assert!(error < 5e-6, "{rows} {inputs} {outputs}: {error}");
    }
}

#[test]
fn short_numbers_are_multiplied_exactly() {
    let whole = |count, seed| -> Vec<f32> {
        let numbers = numbers(count, seed).into_iter();
        numbers.map(|number| (number * 4096.0).round()).collect()
    };
    let (inputs, outputs) = (70, 40);
    let (x, weight) = (whole(50 * inputs, 1), whole(outputs * inputs, 2));
    let matrix = PackedMatrix::for_tiles(&weight, inputs, outputs).unwrap();
    let small: Vec<f32> = x.iter().map(|number| (number / 512.0).round()).collect();
    for (&got, (sum, _)) in multiply(&matrix, &small)
        .iter()
        .zip(reference(&small, &weight, inputs))
    {
        assert_eq!(f64::from(got), sum);
    }
}

#[test]
fn unusual_rows_come_out_as_in_f32_and_leave_the_others_alone() {
    let (rows, inputs, outputs) = (70, 45, 50);
    let weight = numbers(outputs * inputs, 2);
    let matrix = PackedMatrix::for_tiles(&weight, inputs, outputs).unwrap();
    let usual = numbers(rows * inputs, 1);
    let alone = multiply(&matrix, &usual);
    let unusual: [fn(f32) -> f32; 8] = [
        |_| f32::INFINITY,
        |_| f32::NEG_INFINITY,
        |_| f32::NAN,
        |_| f32::MAX,
        |x| x * 1e38,
        |x| x * 1e-36,
        |x| x * 1e-42,
        |_| -0.0,
    ];
    for (number, change) in unusual.iter().enumerate() {
        for whole_row in [false, true] {
            let mut x = usual.clone();
            let row = &mut x[33 * inputs..][..inputs];
            let count = if whole_row { inputs } else { 1 };
            for value in &mut row[..count] {
                *value = change(*value);
            }
            let wanted = reference(&x, &weight, inputs);
            for (at, &got) in multiply(&matrix, &x).iter().enumerate() {
                if at / outputs != 33 {
                    assert_eq!(got.to_bits(), alone[at].to_bits());
                    continue;
                }
                let (sum, size) = wanted[at];
                let is_finite = size < f64::from(f32::MAX);
                let error = (f64::from(got) - sum).abs();
                let limit = LEFT_OUT * size + f64::from(f32::MIN_POSITIVE);
                match is_finite {
                    true => assert!(error <= limit, "{number}: {got} instead of {sum}"),
                    false => assert!(!got.is_finite() || error <= limit, "{number}: {got}"),
                }
                let is_infinite = number < 2 && !whole_row;
                if is_infinite {
                    assert_eq!(f64::from(got), sum, "{number}");
                }
                assert!(number != 2 || got.is_nan());
            }
        }
    }
}

#[test]
fn unusual_matrices_are_multiplied_in_f32() {
    let (inputs, outputs) = (40, 70);
    let x = numbers(5 * inputs, 1);
    let unusual = [f32::INFINITY, f32::NAN, f32::MAX, 1e20];
    for (number, value) in unusual.into_iter().enumerate() {
        let mut weight = numbers(outputs * inputs, 2);
        weight[50 * inputs + 3] = value;
        let matrix = PackedMatrix::for_tiles(&weight, inputs, outputs).unwrap();
        assert!(!matrix.has_parts());
        let wanted = reference(&x, &weight, inputs);
        for (&got, (sum, size)) in multiply(&matrix, &x).iter().zip(wanted) {
            match sum.is_finite() && size < f64::from(f32::MAX) {
                true => assert!((f64::from(got) - sum).abs() <= 1e-5 * size, "{number}"),
                false => assert!(!got.is_finite() || sum.is_finite(), "{number}: {got}"),
            }
        }
    }
    for scale in [1e-30, 1e30] {
        let weight: Vec<f32> = numbers(outputs * inputs, 2)
            .iter()
            .map(|number| number * scale)
            .collect();
        let matrix = PackedMatrix::for_tiles(&weight, inputs, outputs).unwrap();
        assert!(!matrix.has_parts());
    }
    let zeros = PackedMatrix::for_tiles(&vec![0.0; outputs * inputs], inputs, outputs).unwrap();
    assert!(multiply(&zeros, &x).iter().all(|&sum| sum == 0.0));
}
