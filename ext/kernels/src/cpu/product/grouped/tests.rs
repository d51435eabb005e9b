use super::*;
use crate::cpu::product::multiply_each;
use crate::cpu::test_numbers::numbers;
use base::quant::noise::random_matrix;
use base::quant::Rounding;
use base::runtime::bytes::Bytes;

fn matrix(blocks: &QuantizedTensor) -> GroupedMatrix {
    GroupedMatrix::new(blocks).unwrap().unwrap()
}

fn product(isa: Isa, matrix: &GroupedMatrix, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / matrix.inputs;
    matrix.multiply(isa, x, rows, &Default::default())
}

#[test]
fn every_type_multiplies_like_its_expansion() {
    let (inputs, outputs, rows) = (320, 37, 7);
    let x = numbers(rows * inputs, 3);
    for kind in BlockType::GROUPED {
        let blocks = random_matrix(kind, outputs, inputs);
        let dense = blocks.dequantize().unwrap();
        for isa in Isa::of_numbers() {
            let got = product(isa, &matrix(&blocks), &x);
            for (got, x) in got.chunks(outputs).zip(x.chunks(inputs)) {
                for (got, weights) in got.iter().zip(dense.chunks(inputs)) {
                    let products = x.iter().zip(weights);
                    let products = products.map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let size: f64 = products.clone().map(f64::abs).sum();
                    let off = (f64::from(*got) - products.sum::<f64>()).abs();
                    // What a minimum takes away again counts too.
                    let most = match kind {
                        BlockType::Int8 | BlockType::Int8Of32 | BlockType::Int8Of16 => 1e-4,
                        _ => 2e-6,
                    };
                    assert!(
                        off <= most * (1.0 + size),
                        "{}: {off} of {size}",
                        kind.name()
                    );
                }
            }
        }
    }
}

#[test]
fn rows_may_end_within_a_group() {
    let (inputs, outputs, rows) = (100, 20, 3);
    let whole = numbers(rows * 128, 3);
    let x: Vec<f32> = whole
        .chunks(128)
        .flat_map(|row| row[..inputs].iter().copied())
        .collect();
    let mut padded = whole;
    (padded.chunks_mut(128)).for_each(|row| row[inputs..].fill(0.0));
    for kind in BlockType::GROUPED {
        let blocks = random_matrix(kind, outputs, 128);
        let cut = QuantizedTensor {
            shape: vec![outputs, inputs],
            ..blocks.clone()
        };
        for isa in Isa::of_numbers() {
            let found = product(isa, &matrix(&cut), &x);
            assert!(found == product(isa, &matrix(&blocks), &padded));
        }
    }
}

/// Rows are prepared once for matrices of different types.
#[test]
fn matrices_of_all_types_share_rows() {
    let (inputs, outputs, rows) = (192, 20, 3);
    let x = numbers(rows * inputs, 17);
    let kinds = BlockType::GROUPED;
    let matrices = kinds.map(|kind| matrix(&random_matrix(kind, outputs, inputs)));
    for isa in Isa::of_numbers() {
        for first in [&matrices[0], &matrices[13]] {
            let factors: Vec<_> = std::iter::once(first)
                .chain(&matrices)
                .map(|matrix| (matrix, Default::default()))
                .collect();
            let together = multiply_each(isa, &x, rows, &factors);
            for (matrix, found) in matrices.iter().zip(&together[1..]) {
                assert_eq!(found, &product(isa, matrix, &x), "{matrix:?}");
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let (inputs, outputs, rows) = (192, 50, 15);
    let x = numbers(rows * inputs, 11);
    for kind in BlockType::GROUPED {
        let packed = matrix(&random_matrix(kind, outputs, inputs));
        let expected = product(Isa::Scalar, &packed, &x);
        for isa in Isa::of_numbers() {
            let found = product(isa, &packed, &x);
            assert!(found == expected, "{} on {isa:?}", kind.name());
        }
    }
}

/// One input is 1 and the others are 0: the product is a column of weights.
#[test]
fn every_weight_is_the_expanded_one() {
    let (inputs, outputs) = (128, 35);
    let rounded = BlockType::GROUPED.into_iter().filter(|kind| {
        let form = GroupForm::of(*kind).unwrap();
        form.rounding != Rounding::None
    });
    let kinds: Vec<BlockType> = rounded.chain([BlockType::Nf4, BlockType::Fp4]).collect();
    assert_eq!(kinds.len(), 6);
    let mut x = vec![0.0; inputs * inputs];
    (0..inputs).for_each(|at| x[at * inputs + at] = 1.0);
    for kind in kinds {
        let blocks = random_matrix(kind, outputs, inputs);
        let dense = blocks.dequantize().unwrap();
        let packed = matrix(&blocks);
        for isa in Isa::of_numbers() {
            let found = product(isa, &packed, &x);
            for (at, found) in found.iter().enumerate() {
                let wanted = dense[at % outputs * inputs + at / outputs];
                assert!(found == &wanted, "{}: {found} for {wanted}", kind.name());
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let (inputs, outputs, rows) = (128, 33, 101);
    let x = numbers(rows * inputs, 5);
    for kind in BlockType::GROUPED {
        let packed = matrix(&random_matrix(kind, outputs, inputs));
        for isa in Isa::of_numbers() {
            let together = product(isa, &packed, &x);
            for row in [0, 3, 11, 95, 96, 100] {
                let alone = product(isa, &packed, &x[row * inputs..][..inputs]);
                assert!(alone == together[row * outputs..][..outputs]);
            }
        }
    }
}

#[test]
fn bytes_that_do_not_make_a_matrix_are_refused() {
    let make = |kind: BlockType, shape: Vec<usize>, length: usize| {
        let bytes = Bytes::unpacked(vec![0; length]);
        let order = None;
        GroupedMatrix::new(&QuantizedTensor {
            kind,
            shape,
            bytes,
            order,
            fp8_rows: false,
        })
    };
    assert!(make(BlockType::Nf4, vec![2, 64], 72).unwrap().is_some());
    assert!(make(BlockType::Nf4, vec![2, 64], 71).is_err());
    // Two blocks a row, of which the second has 32 inputs.
    assert!(make(BlockType::Fp8, vec![2, 96], 272).unwrap().is_some());
    assert!(make(BlockType::Fp8, vec![2, 96], 271).is_err());
    assert!(make(BlockType::Int4, vec![64], 40).is_err());
    assert!(make(BlockType::Int8, vec![usize::MAX / 2, 64], 72).is_err());
    assert!(make(BlockType::Q8_0, vec![1, 64], 68).unwrap().is_none());
}
