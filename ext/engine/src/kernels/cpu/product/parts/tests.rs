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

/// What the integers leave out of a number, at most, over the largest.
const LEFT_OUT: f64 = 1.0 / (1 << 22) as f64;

/// What is wanted of a row and an output.
struct Wanted {
    sum: f64,
    /// Of the products' sizes.
    size: f64,
    /// How far off the sum may be: every number of both by what was left out of it.
    room: f64,
}

fn largest(numbers: &[f32]) -> f64 {
    let sizes = numbers.iter().map(|&number| f64::from(number).abs());
    sizes.fold(0.0, f64::max)
}

fn reference(x: &[f32], weight: &[f32], inputs: usize) -> Vec<Wanted> {
    let dot = |row: &[f32], output: &[f32]| {
        let (most, most_of_output) = (largest(row), largest(output));
        let (mut sum, mut size, mut room) = (0.0, 0.0, 0.0);
        for (&x, &w) in row.iter().zip(output) {
            let (x, w) = (f64::from(x), f64::from(w));
            sum += x * w;
            size += (x * w).abs();
            room += LEFT_OUT * (most * w.abs() + most_of_output * x.abs());
        }
        Wanted { sum, size, room }
    };
    x.chunks(inputs)
        .flat_map(|row| weight.chunks(inputs).map(move |output| dot(row, output)))
        .collect()
}

fn multiply(matrix: &PackedMatrix, x: &[f32]) -> Vec<f32> {
    let isa = Isa::current().unwrap();
    matrix.multiply(isa, x, x.len() / matrix.inputs, &GemmEpilogue::default())
}

/// The error of a product over the size of its results; every one is within its room.
fn error(matrix: &PackedMatrix, x: &[f32], weight: &[f32]) -> f64 {
    let (mut errors, mut sizes) = (0.0, 0.0);
    let wanted = reference(x, weight, matrix.inputs);
    for (&got, Wanted { sum, room, .. }) in multiply(matrix, x).iter().zip(wanted) {
        let error = (f64::from(got) - sum).abs();
        assert!(error <= room, "{matrix:?}: {got} instead of {sum}");
        errors += error * error;
        sizes += sum * sum;
    }
    (errors / sizes).sqrt()
}

#[test]
fn sums_are_as_exact_as_those_of_f32() {
    for (rows, inputs, outputs) in SHAPES {
        let (x, weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
        let matrix = PackedMatrix::for_tiles(&weight, inputs, outputs).unwrap();
        let has_tiles = Isa::current().unwrap() == Isa::Amx;
        assert_eq!(matrix.has_parts(), has_tiles);
        let error = error(&matrix, &x, &weight);
        assert!(error < 3e-7, "{rows} {inputs} {outputs}: {error}");
    }
}

/// Where the largest number has the most of all that have its power of two, and the least of the next.
#[test]
fn the_largest_number_is_never_too_large() {
    let (inputs, outputs) = (3, 1);
    let edge = 1.991_987_f32.to_bits();
    for bits in edge - 2000..edge + 2000 {
        let most = f32::from_bits(bits);
        let weight = [most, -most, most * 0.37];
        let matrix = PackedMatrix::for_tiles(&weight, inputs, outputs).unwrap();
        let x = [most, 0.0, 0.0, 0.0, most, 0.0, -most, most, most];
        error(&matrix, &x, &weight);
    }
}

#[test]
fn large_numbers_leave_the_small_ones_their_room() {
    let (rows, inputs, outputs) = (20, 384, 64);
    let (mut x, mut weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
    for row in x.chunks_mut(inputs) {
        row[7] = 1000.0;
    }
    for output in weight.chunks_mut(inputs) {
        output[9] *= 50.0;
    }
    let matrix = PackedMatrix::for_tiles(&weight, inputs, outputs).unwrap();
    let error = error(&matrix, &x, &weight);
    // f32 itself is closer here: what is summed is small beside the largest of both.
    assert!(error < 5e-6, "{error}");
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
    let wanted = reference(&small, &weight, inputs);
    for (&got, wanted) in multiply(&matrix, &small).iter().zip(wanted) {
        assert_eq!(f64::from(got), wanted.sum);
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
                let Wanted { sum, size, room } = wanted[at];
                let is_finite = size < f64::from(f32::MAX);
                let error = (f64::from(got) - sum).abs();
                let limit = room + f64::from(f32::MIN_POSITIVE);
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
        for (&got, Wanted { sum, size, .. }) in multiply(&matrix, &x).iter().zip(wanted) {
            match sum.is_finite() && size < f64::from(f32::MAX) {
                true => assert!((f64::from(got) - sum).abs() <= 1e-5 * size, "{number}"),
                false => assert!(!got.is_finite() || sum.is_finite(), "{number}: {got}"),
            }
        }
    }
    for scale in [1e-35, 1e30] {
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
