//! Scans by their descriptions, on the CPU, and what launches on GPUs are told of them.

use candle_core::{DType, Device, Tensor};

use super::launch::{geometry, GateParameters, UnitParameters};
use super::*;

fn run(scan: &Scan, state: &mut [f32], inputs: &[f32]) -> Vec<f32> {
    let (lanes, width) = (scan.lanes(), scan.lane_outputs());
    let (rows, size) = (inputs.len() / scan.inputs(), scan.state() / lanes);
    let mut outputs = vec![0.0; rows * scan.outputs()];
    for lane in 0..lanes {
        let mut own = vec![0.0; rows * width];
        let state = &mut state[lane * size..][..size];
        scan.run(Isa::current().unwrap(), lane, state, inputs, &mut own);
        for (row, own) in own.chunks_exact(width).enumerate() {
            outputs[row * lanes * width + lane * width..][..width].copy_from_slice(own);
        }
    }
    outputs
}

#[test]
fn the_token_before_is_kept() {
    for width in [3, 64, 192] {
        let scan = Scan::before(width, &Device::Cpu).unwrap();
        assert_eq!(scan.state(), width);
        let inputs: Vec<f32> = (0..4 * width).map(|x| x as f32 - 7.5).collect();
        let mut state = vec![9.0; width];
        let found = run(&scan, &mut state, &inputs);
        assert_eq!(found[..width], vec![9.0; width]);
        assert_eq!(found[width..], inputs[..3 * width]);
        assert_eq!(state, inputs[3 * width..]);
    }
}

/// Heads of 96 columns are three lanes each, in their order.
#[test]
fn lanes_are_columns_of_heads() {
    let (keys, size) = (2, 96);
    let head = |head: usize| MatrixHead {
        query: 0,
        key: keys,
        value: 2 * keys + head * size,
        rule: MatrixRule::Plain { kept: 0.5 },
    };
    let shape = MatrixShape {
        inputs: 2 * keys + 2 * size,
        keys,
        size,
    };
    let scan = Scan::matrix(shape, vec![head(0), head(1)], &Device::Cpu).unwrap();
    assert_eq!((scan.lanes(), scan.lane_outputs()), (6, 32));
    let mut row = vec![1.0, 0.0, 3.0, 5.0];
    row.extend((0..2 * size).map(|x| x as f32));
    let mut state = vec![0.0; scan.state()];
    let found = run(&scan, &mut state, &row);
    let expected: Vec<f32> = (0..2 * size).map(|x| 3.0 * x as f32).collect();
    assert_eq!(found, expected);
}

#[test]
fn launches_cover_all_columns() {
    let table = StepTable::new(
        &[Piece {
            rows: 4..104,
            again: 29,
            slot: 3,
            trail: 1,
            record: None,
            marks: vec![(64, 2)],
        }],
        &Device::Cpu,
    )
    .unwrap();
    let words: Vec<Vec<u32>> = table.words.to_vec2().unwrap();
    assert_eq!(words, [[4, 100, 29, 3, 1, u32::MAX, 1, 64, 2, 0, 0, 0]]);
    let states = Tensor::zeros((4, 5000), DType::F32, &Device::Cpu).unwrap();
    let places = SlotStates {
        states: &states,
        first: 7,
        trails: None,
        table: &table,
    };
    let weights = vec![0.0; 4 * 200];
    let convolution =
        Scan::convolution(&weights, vec![0.0; 200], Activation::Silu, &Device::Cpu).unwrap();
    let (told, groups) = geometry(&convolution, &places).unwrap();
    // Two groups of channels, and 129 rows in parts of 64.
    assert_eq!((groups, told.part, told.size), (6, 64, 4));
    assert_eq!((told.state, told.slot, told.trail_slot), (7, 5000, 0));
    for (keys, size, expected) in [(128, 64, 8 * 3), (256, 64, 16 * 3), (300, 3, 3 * 3)] {
        let head = MatrixHead {
            query: 0,
            key: 0,
            value: 0,
            rule: MatrixRule::Steps {
                time: 0,
                bias: 0.0,
                bounds: (0.1, 0.2),
                rate: -1.0,
                skip: 0.0,
            },
        };
        let shape = MatrixShape {
            inputs: 400,
            keys,
            size,
        };
        let scan = Scan::matrix(shape, vec![head; 3], &Device::Cpu).unwrap();
        let (told, groups) = geometry(&scan, &places).unwrap();
        assert_eq!(told.tasks, expected, "{keys} keys");
        assert_eq!(groups, (expected as usize).div_ceil(4));
        assert_eq!((told.least, told.most), (0.1, 0.2));
    }
    let told = GateParameters::new(5, Decay::Bounded { least: -2.0 }).unwrap();
    assert_eq!((told.width, told.rule, told.number), (5, 1, -2.0));
    let heads = UnitHeads {
        size: 4,
        counts: [2, 3],
        factors: [0.5, 1.0],
        epsilon: 1e-6,
    };
    let told = UnitParameters::new(40, heads).unwrap();
    assert_eq!((told.first_heads, told.heads), (2, 5));
}
