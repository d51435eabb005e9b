use super::*;
use crate::cpu::product::driver::{multiply_each, multiply_prepared};
use crate::cpu::product::GemmEpilogue;
use crate::Activation;
use base::quant::dequantize;
use base::quant::noise::random_matrix;
use base::runtime::bytes::Bytes;

pub const KINDS: [BlockType; 13] = [
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
    BlockType::Q8_1,
    BlockType::Q2K,
    BlockType::Q3K,
    BlockType::Q4K,
    BlockType::Q5K,
    BlockType::Q6K,
    BlockType::Iq4Nl,
    BlockType::Iq4Xs,
];

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
    .take(count)
    .collect()
}

fn matrix(blocks: &QuantizedTensor) -> BlockMatrix {
    BlockMatrix::new(Isa::current().unwrap(), blocks).unwrap()
}

fn plain(matrix: &BlockMatrix, level: Level, x: &[f32], rows: usize) -> Vec<f32> {
    let mut sets = Isa::available().iter().copied();
    let isa = sets.find(|&isa| Level::of(isa) == level);
    let isa = isa.unwrap_or(Isa::Scalar);
    let x = QuantizedRows::new((isa, level), x, rows);
    let factor = [(matrix, GemmEpilogue::default())];
    multiply_prepared(isa, &x, rows, &factor).remove(0)
}

/// Each output as a sum in f64, with how far rounding the elements of x to pairs of bytes may move it.
fn expected(dense: &[f32], x: &[f32], inputs: usize) -> Vec<(f64, f64)> {
    let mut products = Vec::new();
    for x in x.chunks(inputs) {
        for weights in dense.chunks(inputs) {
            let (mut sum, mut size, mut bound) = (0.0, 0.0, 0.0);
            for (x, weights) in x.chunks(32).zip(weights.chunks(32)) {
                let largest = x.iter().fold(0f64, |most, &x| most.max(f64::from(x).abs()));
                for (&x, &weight) in x.iter().zip(weights) {
                    let product = f64::from(x) * f64::from(weight);
                    sum += product;
                    size += product.abs();
                    bound += largest / (2.0 * 127.0 * 254.0) * f64::from(weight).abs();
                }
            }
            products.push((sum, bound + 1e-6 * (1.0 + size)));
        }
    }
    products
}

#[test]
fn every_block_type_multiplies_like_its_expansion() {
    let (inputs, outputs, rows) = (512, 37, 7);
    let x = numbers(rows * inputs, 3);
    let level = Level::of(Isa::current().unwrap());
    for kind in KINDS {
        let blocks = random_matrix(kind, outputs, inputs);
        let dense = dequantize(kind, &blocks.bytes).unwrap();
        let expected = expected(&dense, &x, inputs);
        let got = plain(&matrix(&blocks), level, &x, rows);
        let mut square = (0.0, 0.0);
        for (got, (expected, bound)) in got.iter().zip(expected) {
            let off = (f64::from(*got) - expected).abs();
            assert!(off <= bound, "{}: {off} is over {bound}", kind.name());
            square = (square.0 + off * off, square.1 + bound * bound);
        }
        // Rounding errors mostly cancel: a wrong product would stay within the bound, but not this.
        assert!(square.0 < 0.01 * square.1, "{}", kind.name());
    }
}

#[test]
fn elements_that_are_bytes_multiply_exactly() {
    let (inputs, outputs) = (256, 20);
    let x: Vec<f32> = (0..inputs)
        .map(|i| {
            if i % 32 == 0 {
                127.0
            } else {
                (i * 37 % 255) as f32 - 127.0
            }
        })
        .collect();
    for kind in KINDS {
        let blocks = random_matrix(kind, outputs, inputs);
        let dense = dequantize(kind, &blocks.bytes).unwrap();
        let got = plain(&matrix(&blocks), Level::of(Isa::current().unwrap()), &x, 1);
        for (got, weights) in got.iter().zip(dense.chunks(inputs)) {
            let products = x
                .iter()
                .zip(weights)
                .map(|(x, w)| f64::from(*x) * f64::from(*w));
            let size: f64 = products.clone().map(f64::abs).sum();
            let off = (f64::from(*got) - products.sum::<f64>()).abs();
            assert!(off <= 1e-6 * size, "{}: {off} of {size}", kind.name());
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for (kind, outputs, blocks) in KINDS.map(|kind| (kind, 50, 1)).into_iter().chain([
        (BlockType::Q4_1, 1, 3),
        (BlockType::Q6K, 16, 2),
        (BlockType::Q8_0, 17, 5),
    ]) {
        let inputs = blocks * kind.elements();
        let blocks = random_matrix(kind, outputs, inputs);
        let rows = 29;
        let x = numbers(rows * inputs, 11);
        let portable = plain(&matrix(&blocks), Level::Portable, &x, rows);
        for isa in Isa::of_numbers() {
            for zipped in [false, Level::zips()] {
                let packed = BlockMatrix::packed(isa, &blocks, zipped).unwrap();
                let reads = |level: &Level| zipped || !level.joins_planes();
                for level in Level::available().into_iter().filter(reads) {
                    let got = plain(&packed, level, &x, rows);
                    assert!(got == portable, "{} on {level:?}", kind.name());
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let (inputs, outputs, rows) = (256, 33, 131);
    let x = numbers(rows * inputs, 5);
    for kind in KINDS {
        let packed = matrix(&random_matrix(kind, outputs, inputs));
        for level in Level::available() {
            let together = plain(&packed, level, &x, rows);
            for row in [0, 3, 11, 12, 95, 96, 127, 130] {
                let alone = plain(&packed, level, &x[row * inputs..][..inputs], 1);
                assert!(alone == together[row * outputs..][..outputs]);
            }
        }
    }
}

#[test]
fn a_lone_row_takes_any_number_of_panels_together() {
    let inputs = 256;
    let x = numbers(2 * inputs, 6);
    for panels in [1, 2, 3, 4, 5, 9] {
        // Something of a panel comes after the whole ones.
        let outputs = panels * PANEL + 5;
        for kind in KINDS {
            let packed = matrix(&random_matrix(kind, outputs, inputs));
            for level in Level::available() {
                let together = plain(&packed, level, &x, 2);
                for (x, together) in x.chunks(inputs).zip(together.chunks(outputs)) {
                    let alone = plain(&packed, level, x, 1);
                    assert!(alone == together, "{} on {level:?}", kind.name());
                }
            }
        }
    }
}

#[test]
fn several_matrices_at_once_and_their_epilogues() {
    let (inputs, rows) = (256, 5);
    let x = numbers(rows * inputs, 9);
    let isa = Isa::current().unwrap();
    let first = matrix(&random_matrix(BlockType::Q4K, 40, inputs));
    let second = matrix(&random_matrix(BlockType::Q8_0, 19, inputs));
    let (bias, residual) = (numbers(19, 1), numbers(rows * 19, 2));
    let epilogue = GemmEpilogue {
        bias: Some(&bias),
        activation: Some(Activation::Relu),
        residual: Some(&residual),
    };
    let both = multiply_each(
        isa,
        &x,
        rows,
        &[(&first, GemmEpilogue::default()), (&second, epilogue)],
    );
    let level = Level::of(isa);
    assert_eq!(both[0], plain(&first, level, &x, rows));
    let product = plain(&second, level, &x, rows);
    for (i, got) in both[1].iter().enumerate() {
        let wanted = (product[i] + bias[i % 19]).max(0.0) + residual[i];
        assert_eq!(*got, wanted);
    }
}

#[test]
fn what_is_not_a_number_stays_so() {
    let packed = matrix(&random_matrix(BlockType::Q4_1, 16, 64));
    let mut x = numbers(2 * 64, 4);
    x[3] = f32::INFINITY;
    for level in Level::available() {
        let got = plain(&packed, level, &x, 2);
        assert!(got[..16].iter().all(|value| value.is_nan()));
        assert!(got[16..].iter().all(|value| value.is_finite()));
    }
}

#[test]
fn bytes_that_do_not_make_a_matrix_are_refused() {
    let make = |kind: BlockType, shape: Vec<usize>, length: usize| {
        let bytes = Bytes::unpacked(vec![0; length]);
        let order = None;
        let blocks = QuantizedTensor {
            kind,
            shape,
            bytes,
            order,
            fp8_rows: false,
        };
        BlockMatrix::new(Isa::Scalar, &blocks)
    };
    assert!(make(BlockType::Q8_0, vec![2, 32], 2 * 34).is_ok());
    assert!(make(BlockType::Q8_0, vec![2, 32], 34).is_err());
    assert!(make(BlockType::Q8_0, vec![2, 33], 2 * 34).is_err());
    assert!(make(BlockType::Q8_0, vec![64], 68).is_err());
    assert!(make(BlockType::Q8_0, vec![usize::MAX / 2, 32], 68).is_err());
    assert!(make(BlockType::Q8K, vec![1, 256], 292).is_err());
}
