//! What holds for the products of every type of weights, at every level that the machine has.

use std::ops::Range;

use half::{bf16, f16};

use super::blocks::tests::KINDS;
use super::blocks::BlockMatrix;
use super::byte_matrix::ByteMatrix;
use super::driver::multiply_each;
use super::gemm::PackedMatrix;
use super::half_matrix::HalfMatrix;
use super::row_matrix::RowMatrix;
use super::{GemmEpilogue, WeightMatrix};
use crate::cpu::isa::Isa;
use crate::cpu::test_numbers::numbers;
use crate::cpu::Element;
use crate::Activation;
use base::quant::noise::random_matrix;
use base::runtime::threads;

/// One row, few of them, whole tiles and tasks, and some more than those.
const ROWS: [usize; 9] = [1, 2, 3, 7, 16, 33, 64, 65, 200];
const MOST_ROWS: usize = 200;

/// Whole blocks of every quantized type.
const INPUTS: usize = 256;

/// More than a task's columns, and an edge within a panel and within a vector.
const OUTPUTS: usize = 128 + 21;

fn rounded<T: Element>(count: usize, seed: u32) -> Vec<T> {
    let numbers = numbers(count, seed);
    numbers
        .into_iter()
        .map(|number| T::from_f64(number.into()))
        .collect()
}

/// Runs `check` for a matrix of every type.
macro_rules! for_each_matrix {
    ($check:ident) => {
        let weight = |seed| numbers(OUTPUTS * INPUTS, seed);
        $check::<f32, _>(
            "f32",
            &PackedMatrix::for_vectors(&weight(2), INPUTS, OUTPUTS).unwrap(),
        );
        #[cfg(target_arch = "x86_64")]
        $check::<f32, _>(
            "f32 for tiles",
            &PackedMatrix::for_tiles(&weight(2), INPUTS, OUTPUTS).unwrap(),
        );
        let halves: Vec<bf16> = rounded(OUTPUTS * INPUTS, 2);
        $check::<bf16, _>("bf16", &HalfMatrix::new(&halves, INPUTS, OUTPUTS).unwrap());
        let halves: Vec<f16> = rounded(OUTPUTS * INPUTS, 2);
        $check::<f16, _>("f16", &HalfMatrix::new(&halves, INPUTS, OUTPUTS).unwrap());
        let halves: Vec<bf16> = rounded(OUTPUTS * INPUTS, 2);
        $check::<f32, _>(
            "f32 with bf16",
            &HalfMatrix::new(&halves, INPUTS, OUTPUTS).unwrap(),
        );
        $check::<f32, _>(
            "int8",
            &ByteMatrix::new(&weight(2), INPUTS, OUTPUTS).unwrap(),
        );
        let weight = weight(2);
        $check::<f32, _>("rows of f32", &RowMatrix::new(&weight, INPUTS, OUTPUTS));
        let halves: Vec<bf16> = rounded(OUTPUTS * INPUTS, 2);
        $check::<bf16, _>("rows of bf16", &RowMatrix::new(&halves, INPUTS, OUTPUTS));
        let halves: Vec<f16> = rounded(OUTPUTS * INPUTS, 2);
        $check::<f16, _>("rows of f16", &RowMatrix::new(&halves, INPUTS, OUTPUTS));
        for kind in KINDS {
            let blocks = random_matrix(kind, OUTPUTS, INPUTS);
            let matrix = BlockMatrix::new(Isa::current().unwrap(), &blocks).unwrap();
            $check::<f32, _>(kind.name(), &matrix);
        }
    };
}

/// The levels that multiply a type of weights in ways of their own: an emulator takes its time for each.
fn levels(weights: &str) -> Vec<Isa> {
    let way = |isa: Isa| match weights {
        "bf16" => (isa.for_bf16(), isa.has_tiles()),
        name if name.starts_with('f') || name.starts_with("rows") => {
            (isa.for_numbers(), isa.has_tiles())
        }
        _ => (isa.for_bytes(), isa.has_tiles()),
    };
    let mut levels: Vec<Isa> = Vec::new();
    for &isa in Isa::available() {
        if levels.iter().all(|&other| way(other) != way(isa)) {
            levels.push(isa);
        }
    }
    levels
}

struct Operands<T> {
    x: Vec<T>,
    bias: Vec<f32>,
    residual: Vec<T>,
}

impl<T: Element> Operands<T> {
    fn new() -> Self {
        Self {
            x: rounded(MOST_ROWS * INPUTS, 1),
            bias: numbers(OUTPUTS, 3),
            residual: rounded(MOST_ROWS * OUTPUTS, 4),
        }
    }

    /// The bits of the product of some rows, with bias, activation and residual.
    fn product<M: WeightMatrix<T>>(&self, matrix: &M, isa: Isa, rows: Range<usize>) -> Vec<u64> {
        let epilogue = GemmEpilogue {
            bias: Some(&self.bias),
            activation: Some(Activation::Gelu),
            residual: Some(&self.residual[rows.start * OUTPUTS..rows.end * OUTPUTS]),
        };
        let x = &self.x[rows.start * INPUTS..rows.end * INPUTS];
        let product = matrix.multiply(isa, x, rows.len(), &epilogue);
        product.iter().map(|n| n.to_f64().to_bits()).collect()
    }
}

fn rows_do_not_depend_on_each_other<T: Element, M: WeightMatrix<T>>(name: &str, matrix: &M) {
    let operands = Operands::<T>::new();
    for isa in levels(name) {
        let product = |rows| operands.product(matrix, isa, rows);
        let alone: Vec<u64> = (0..MOST_ROWS)
            .flat_map(|row| product(row..row + 1))
            .collect();
        for count in ROWS {
            for first in [0, MOST_ROWS - count] {
                let together = product(first..first + count);
                let is_equal = together == alone[first * OUTPUTS..][..count * OUTPUTS];
                assert!(
                    is_equal,
                    "{name} on {}, {count} rows from {first} on",
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_others_of_the_call() {
    for_each_matrix!(rows_do_not_depend_on_each_other);
}

fn threads_change_nothing<T: Element, M: WeightMatrix<T>>(name: &str, matrix: &M) {
    let operands = Operands::<T>::new();
    for isa in levels(name) {
        for rows in [1, 65] {
            let product = || operands.product(matrix, isa, 0..rows);
            assert!(
                product() == threads::alone(product),
                "{name} on {}",
                isa.name()
            );
        }
    }
}

#[test]
fn how_a_product_is_spread_over_threads_changes_nothing() {
    for_each_matrix!(threads_change_nothing);
}

fn parts_of_the_epilogue_follow<T: Element, M: WeightMatrix<T>>(name: &str, matrix: &M) {
    let rows = 35;
    let (x, residual): (Vec<T>, Vec<T>) = (rounded(rows * INPUTS, 1), rounded(rows * OUTPUTS, 4));
    let bias = numbers(OUTPUTS, 3);
    // What the type of the product rounds a result of some size to.
    let unit = [1e-6, 1.0 / 2048.0, 1.0 / 256.0][T::STORED as usize];
    for isa in levels(name) {
        let multiply = |epilogue: &GemmEpilogue<'_, T>| matrix.multiply(isa, &x, rows, epilogue);
        let plain = multiply(&GemmEpilogue::default());
        for parts in 1..8 {
            let [has_bias, has_activation, has_residual] = [1, 2, 4].map(|bit| parts & bit != 0);
            let got = multiply(&GemmEpilogue {
                bias: has_bias.then_some(&bias[..]),
                activation: has_activation.then_some(Activation::Relu),
                residual: has_residual.then_some(&residual[..]),
            });
            for at in 0..rows * OUTPUTS {
                let mut want = plain[at].to_f64();
                let mut size = want.abs();
                if has_bias {
                    want += f64::from(bias[at % OUTPUTS]);
                    size += f64::from(bias[at % OUTPUTS]).abs();
                }
                if has_activation {
                    want = want.max(0.0);
                }
                if has_residual {
                    want += residual[at].to_f64();
                    size += residual[at].to_f64().abs();
                }
                let apart = (got[at].to_f64() - want).abs();
                assert!(
                    apart <= 2.0 * unit * size,
                    "{name} on {}, {parts}: {apart}",
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn bias_activation_and_residual_follow_in_any_combination() {
    for_each_matrix!(parts_of_the_epilogue_follow);
}

fn rows_multiply_like_the_definition<T: Element>(unit: f64) {
    for (rows, inputs, outputs) in [(1, 1, 1), (7, 5, 31), (13, 35, 66), (3, 100, 5)] {
        let (x, weight): (Vec<T>, Vec<T>) =
            (rounded(rows * inputs, 1), rounded(outputs * inputs, 2));
        for &isa in Isa::available() {
            let matrix = RowMatrix::new(&weight, inputs, outputs);
            let product = matrix.multiply(isa, &x, rows, &GemmEpilogue::default());
            for (at, got) in product.iter().enumerate() {
                let (row, output) = (at / outputs * inputs, at % outputs * inputs);
                let products =
                    (0..inputs).map(|i| x[row + i].to_f64() * weight[output + i].to_f64());
                let dot: f64 = products.sum();
                let apart = (got.to_f64() - dot).abs();
                assert!(apart < 1e-4 + unit * dot.abs(), "{} {apart}", isa.name());
            }
        }
    }
}

#[test]
fn a_matrix_that_stays_where_it_is_multiplies_like_the_definition() {
    rows_multiply_like_the_definition::<f32>(0.0);
    rows_multiply_like_the_definition::<bf16>(1.0 / 256.0);
    rows_multiply_like_the_definition::<f16>(1.0 / 2048.0);
}

#[test]
fn no_rows_and_no_matrices_make_empty_products() {
    let matrix = PackedMatrix::new(&[1.0; 6], 2, 3).unwrap();
    let isa = Isa::current().unwrap();
    assert!(matrix
        .multiply(isa, &[], 0, &GemmEpilogue::default())
        .is_empty());
    assert!(multiply_each::<f32, PackedMatrix>(isa, &[1.0, 2.0], 1, &[]).is_empty());
}
