//! How exact products by tiles are: those of this processor's tiles, if it has any, else of its vectors; and those of
//! `model.rs`.

use super::matrix::LEAST_INPUTS;
use super::model::TileModel;
use super::{multiply, task_rows, Matrix, Rows, Workspace};
use crate::cpu::isa::Isa;
use crate::cpu::product::driver::{Sums, Tile};
use crate::cpu::product::gemm::PackedMatrix;
use crate::cpu::product::panels::PANEL;
use crate::cpu::product::{GemmEpilogue, WeightMatrix};
use crate::cpu::test_numbers::numbers;

/// Edges of tiles, blocks, steps and panels.
const SHAPES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (1, 384, 384),
    (7, 128, 33),
    (16, 160, 32),
    (17, 129, 31),
    (31, 191, 64),
    (32, 192, 97),
    (33, 384, 40),
    (49, 1536, 32),
    (300, 200, 70),
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

/// A matrix, multiplied by this processor and by the model of tiles.
pub(super) struct Subject {
    packed: PackedMatrix,
    /// Where the processor has what surrounds the tiles.
    parts: Option<Matrix>,
    inputs: usize,
    outputs: usize,
}

impl Subject {
    pub fn new(weight: &[f32], inputs: usize, outputs: usize) -> Self {
        Self {
            packed: PackedMatrix::for_tiles(weight, inputs, outputs).unwrap(),
            parts: Matrix::new(weight, inputs, outputs).unwrap(),
            inputs,
            outputs,
        }
    }

    /// The products, and who made them.
    pub fn products(&self, x: &[f32]) -> Vec<(&'static str, Vec<f32>)> {
        let isa = Isa::current().unwrap();
        let rows = x.len() / self.inputs;
        let own = self.packed.multiply(isa, x, rows, &GemmEpilogue::default());
        let modelled = self.parts.as_ref();
        let modelled = modelled.map(|matrix| ("model", by_model(matrix, x, self.inputs)));
        let outputs = self.outputs;
        let whole = |(name, rows): (_, Vec<Vec<f32>>)| {
            let rows = rows.iter().flat_map(|row| &row[..outputs]);
            (name, rows.copied().collect::<Vec<f32>>())
        };
        let own = (isa.name(), own);
        let modelled = modelled.map(whole);
        if let (true, Some((_, modelled))) = (self.packed.has_parts(), &modelled) {
            let bits = |sums: &[f32]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
            // One NaN is as good as another.
            let is_number = modelled.iter().all(|sum| !sum.is_nan());
            assert!(
                !is_number || bits(&own.1) == bits(modelled),
                "tiles and model differ"
            );
        }
        std::iter::once(own).chain(modelled).collect()
    }
}

/// In tasks as the driver cuts them: rows of whole panels.
fn by_model(matrix: &Matrix, x: &[f32], inputs: usize) -> Vec<Vec<f32>> {
    let rows = x.len() / inputs;
    let width = matrix.panels() * PANEL;
    let mut sums = vec![f32::NAN; rows * width];
    let (start, most) = (sums.as_mut_ptr(), task_rows(inputs).most);
    let tiles = TileModel::new(rows);
    let mut workspace = Workspace::default();
    for row in (0..rows).step_by(most) {
        let rows = most.min(rows - row);
        for panel in 0..matrix.panels() {
            let sums = Sums {
                // SAFETY: the sums have all rows and panels.
                start: unsafe { start.add(row * width + panel * PANEL) },
                stride: width,
            };
            let tile = Tile {
                row,
                rows,
                panel,
                panels: 1,
                sums,
            };
            let exactly = |panel: &[f32], first: usize, count: usize| {
                for number in first..first + count {
                    let numbers = &x[(row + number) * inputs..][..inputs];
                    for column in 0..PANEL {
                        let weights = panel[column..].iter().step_by(PANEL);
                        // SAFETY: the tile has the row, and the row a panel.
                        unsafe { *sums.row(number).add(column) = plain(numbers, weights) };
                    }
                }
            };
            let cut = None;
            // SAFETY: tasks are whole blocks; x has the rows, the sums have room, the model has the rows.
            unsafe {
                let rows = Rows { x, inputs, cut };
                multiply(&tiles, &mut workspace, rows, matrix, tile, exactly)
            };
        }
    }
    sums.chunks(width).map(<[f32]>::to_vec).collect()
}

/// A sum in f32, as vectors make it.
pub(super) fn plain<'a>(row: &[f32], weights: impl Iterator<Item = &'a f32>) -> f32 {
    let pairs = row.iter().zip(weights);
    pairs.fold(0.0, |sum, (x, weight)| x.mul_add(*weight, sum))
}

/// The error of each product over the size of its results; every one is within its room.
fn errors(subject: &Subject, x: &[f32], weight: &[f32]) -> Vec<(&'static str, f64)> {
    let wanted = reference(x, weight, subject.inputs);
    let error = |(name, got): (&'static str, Vec<f32>)| {
        let (mut errors, mut sizes) = (0.0, 0.0);
        for (&got, Wanted { sum, room, .. }) in got.iter().zip(&wanted) {
            let error = (f64::from(got) - sum).abs();
            assert!(error <= *room, "{name}: {got} instead of {sum}");
            errors += error * error;
            sizes += sum * sum;
        }
        (name, f64::sqrt(errors / sizes))
    };
    subject.products(x).into_iter().map(error).collect()
}

#[test]
fn sums_are_as_exact_as_those_of_f32() {
    for (rows, inputs, outputs) in SHAPES {
        let (x, weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
        let subject = Subject::new(&weight, inputs, outputs);
        let is_deep = inputs >= LEAST_INPUTS;
        let has_tiles = Isa::current().unwrap() == Isa::Amx;
        assert_eq!(subject.packed.has_parts(), has_tiles && is_deep);
        let has_vectors = Isa::available().contains(&Isa::Avx512);
        assert_eq!(subject.parts.is_some(), has_vectors && is_deep);
        for (name, error) in errors(&subject, &x, &weight) {
            let limit = match name {
                "amx" | "model" => 3e-7,
                _ => 8e-7,
            };
            assert!(error < limit, "{name} {rows} {inputs} {outputs}: {error}");
        }
    }
}

/// Where the largest number has the most of all that have its power of two, and the least of the next.
#[test]
fn the_largest_number_is_never_too_large() {
    let (inputs, outputs) = (LEAST_INPUTS, 1);
    let edge = 1.991_987_f32.to_bits();
    let plain = numbers(3 * inputs, 3);
    for bits in (edge - 2000..edge + 2000).step_by(7) {
        let most = f32::from_bits(bits);
        let mut weight = plain[..inputs].to_vec();
        weight[..3].copy_from_slice(&[most, -most, most * 0.37]);
        let subject = Subject::new(&weight, inputs, outputs);
        let mut x = plain.clone();
        for (row, numbers) in x.chunks_mut(inputs).enumerate() {
            numbers[row] = most;
        }
        errors(&subject, &x, &weight);
    }
}

#[test]
fn short_numbers_are_multiplied_exactly() {
    let whole = |count, seed| -> Vec<f32> {
        let numbers = numbers(count, seed).into_iter();
        numbers.map(|number| (number * 4096.0).round()).collect()
    };
    let (inputs, outputs) = (384, 40);
    let (x, weight) = (whole(50 * inputs, 1), whole(outputs * inputs, 2));
    let subject = Subject::new(&weight, inputs, outputs);
    let small: Vec<f32> = x.iter().map(|number| (number / 512.0).round()).collect();
    let wanted = reference(&small, &weight, inputs);
    for (name, products) in subject.products(&small) {
        for (&got, wanted) in products.iter().zip(&wanted) {
            assert_eq!(f64::from(got), wanted.sum, "{name}");
        }
    }
}

#[test]
fn unusual_rows_come_out_as_in_f32_and_leave_the_others_alone() {
    let (rows, inputs, outputs) = (70, 145, 50);
    let weight = numbers(outputs * inputs, 2);
    let subject = Subject::new(&weight, inputs, outputs);
    let usual = numbers(rows * inputs, 1);
    let alone = subject.products(&usual);
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
            for ((name, products), (_, alone)) in subject.products(&x).iter().zip(&alone) {
                for (at, &got) in products.iter().enumerate() {
                    if at / outputs == 33 {
                        check_unusual(name, (number, whole_row), got, &wanted[at]);
                    } else {
                        assert_eq!(got.to_bits(), alone[at].to_bits(), "{name}");
                    }
                }
            }
        }
    }
}

fn check_unusual(name: &str, (number, whole_row): (usize, bool), got: f32, wanted: &Wanted) {
    let Wanted { sum, size, room } = *wanted;
    let error = (f64::from(got) - sum).abs();
    let limit = room + f64::from(f32::MIN_POSITIVE);
    let is_finite = size < f64::from(f32::MAX);
    let is_right = error <= limit || (!is_finite && !got.is_finite());
    assert!(
        is_right || number == 2,
        "{name} {number}: {got} instead of {sum}"
    );
    if number < 2 && !whole_row {
        assert_eq!(f64::from(got), sum, "{name} {number}");
    }
    assert!(number != 2 || got.is_nan(), "{name}");
}

#[test]
fn unusual_matrices_are_multiplied_in_f32() {
    let (inputs, outputs) = (140, 70);
    let x = numbers(5 * inputs, 1);
    let unusual = [f32::INFINITY, f32::NAN, f32::MAX, 1e20];
    for (number, value) in unusual.into_iter().enumerate() {
        let mut weight = numbers(outputs * inputs, 2);
        weight[50 * inputs + 3] = value;
        let subject = Subject::new(&weight, inputs, outputs);
        assert!(!subject.packed.has_parts() && subject.parts.is_none());
        let wanted = reference(&x, &weight, inputs);
        for (&got, Wanted { sum, size, .. }) in subject.products(&x)[0].1.iter().zip(wanted) {
            let error = (f64::from(got) - sum).abs();
            let is_finite = sum.is_finite() && size < f64::from(f32::MAX);
            assert!(!is_finite || error <= 1e-5 * size, "{number}");
            assert!(
                is_finite || !got.is_finite() || sum.is_finite(),
                "{number}: {got}"
            );
        }
    }
    for scale in [1e-35, 1e30] {
        let weight = numbers(outputs * inputs, 2);
        let weight: Vec<f32> = weight.iter().map(|number| number * scale).collect();
        let subject = Subject::new(&weight, inputs, outputs);
        assert!(!subject.packed.has_parts() && subject.parts.is_none());
    }
    let zeros = Subject::new(&vec![0.0; outputs * inputs], inputs, outputs);
    for (name, products) in zeros.products(&x) {
        assert!(products.iter().all(|&sum| sum == 0.0), "{name}");
    }
}
