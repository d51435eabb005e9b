//! Cases of scans on a GPU: sequences of several lengths in one launch, in slots of their own, against the scans of the
//! CPU; and the same bits whole, in parts, beside others, and after rows were read again.

use candle_core::{DType, Device, Tensor};

use super::data::{self, Random};
use super::Bench;
use crate::scan::{
    unit_heads, Decay, Decays, MatrixHead, MatrixRule, MatrixShape, Piece, RecurrentGates, Scan,
    SlotStates, StepTable, UnitHeads,
};
use crate::{Activation, Isa, Result};

/// Slots and trails that there are, numbers of a slot beside the scan's own, and rows of a trail.
const SLOTS: usize = 7;
const BESIDE: [usize; 2] = [3, 5];
const TRAIL: usize = 32;
/// Rows of the sequences of a launch.
const ROWS: [usize; 3] = [1, 70, 13];
/// Of a number, or of one where that is less.
const TOLERANCE: f64 = 3e-5;

fn numbers(random: &mut Random, count: usize, scale: f64) -> Vec<f32> {
    (0..count)
        .map(|_| (scale * random.signed()) as f32)
        .collect()
}

/// A scan on a device, and what its inputs are multiplied by.
type Make = dyn Fn(&Device) -> Result<Scan>;

/// All rules; some with keys and values that fill lanes, and with many keys.
fn matrices() -> Vec<(String, Box<Make>)> {
    let mut all: Vec<(String, Box<Make>)> = Vec::new();
    for (heads, keys, size, only) in [
        (3, 5, 7, None),
        (1, 128, 64, Some(2)),
        (2, 33, 20, Some(1)),
        (1, 300, 3, Some(3)),
    ] {
        let more = 2 * keys + size;
        let rules = [
            MatrixRule::Plain { kept: 0.8 },
            MatrixRule::Steps {
                time: more,
                bias: 0.3,
                bounds: (0.01, 0.9),
                rate: -1.3,
                skip: 0.4,
            },
            MatrixRule::Delta {
                fading: more,
                factors: 1,
                written: more + 1,
            },
            MatrixRule::Delta {
                fading: more,
                factors: keys,
                written: more + keys,
            },
            MatrixRule::Earlier { kept: more },
            MatrixRule::Replace {
                kept: more,
                searched: more + keys,
                rates: more + 2 * keys,
            },
        ];
        let rules = rules.into_iter().enumerate();
        for (_, rule) in rules.filter(|(at, _)| only.is_none_or(|only| only == *at)) {
            let inputs = more + 3 * keys + 1;
            let shape = MatrixShape { inputs, keys, size };
            let make = move |device: &Device| {
                let head = MatrixHead {
                    query: 0,
                    key: keys,
                    value: 2 * keys,
                    rule,
                };
                Scan::matrix(shape, vec![head; heads], device)
            };
            let name = format!("matrix {heads} x {keys} x {size} {rule:?}");
            all.push((name, Box::new(make)));
        }
    }
    all
}

fn channels() -> Vec<(String, Box<Make>)> {
    let mut all: Vec<(String, Box<Make>)> = Vec::new();
    for (channels, kept) in [(32, 16), (200, 4), (3, 5)] {
        let make = move |device: &Device| {
            let mut random = Random::new(71);
            let rates = numbers(&mut random, channels * kept, 1.0);
            let rates: Vec<f32> = rates.iter().map(|x| x - 1.1).collect();
            Scan::selective(&rates, numbers(&mut random, channels, 1.0), device)
        };
        all.push((format!("selective {channels} x {kept}"), Box::new(make)));
    }
    for width in [1, 130] {
        let make = move |device: &Device| Scan::rglru(width, device);
        all.push((format!("rglru {width}"), Box::new(make)));
        let make = move |device: &Device| {
            let mut random = Random::new(73);
            let fading = numbers(&mut random, width, 1.0);
            let fading = fading.iter().map(|x| x - 1.5).collect();
            Scan::rwkv(numbers(&mut random, width, 1.0), fading, device)
        };
        all.push((format!("rwkv {width}"), Box::new(make)));
        let make = move |device: &Device| Scan::before(width, device);
        all.push((format!("before {width}"), Box::new(make)));
    }
    for (channels, taps, activation) in [
        (192, 4, Activation::Silu),
        (5, 3, Activation::Identity),
        (130, 1, Activation::GeluTanh),
        (7, 80, Activation::Identity),
    ] {
        let make = move |device: &Device| {
            let mut random = Random::new(79);
            let weights = numbers(&mut random, channels * taps, 0.5);
            let bias = numbers(&mut random, channels, 1.0);
            Scan::convolution(&weights, bias, activation, device)
        };
        all.push((format!("convolution {channels} x {taps}"), Box::new(make)));
    }
    all
}

/// States and trails of a launch.
struct Memory {
    states: Tensor,
    trails: Tensor,
}

impl Memory {
    fn run(&self, scan: &Scan, inputs: &Tensor, pieces: &[Piece]) -> Result<Tensor> {
        let table = StepTable::new(pieces, inputs.device())?;
        let places = SlotStates {
            states: &self.states,
            first: BESIDE[0],
            trails: Some((&self.trails, 0)),
            table: &table,
        };
        scan.forward(inputs, &places)
    }
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}

fn piece(rows: std::ops::Range<usize>, slot: u32) -> Piece {
    Piece {
        rows,
        again: 0,
        slot,
        trail: slot,
        record: None,
        marks: Vec::new(),
    }
}

pub(super) fn scan(bench: &mut Bench<'_>) -> Result<()> {
    if bench.dtype != DType::F32 || bench.device.is_cpu() {
        return Ok(());
    }
    for (name, make) in matrices().into_iter().chain(channels()) {
        whole(bench, &name, &make)?;
        resumed(bench, &name, &make)?;
    }
    Ok(())
}

/// All sequences at once, each with the state of its slot, against the CPU.
fn whole(bench: &mut Bench<'_>, name: &str, make: &Make) -> Result<()> {
    let (scan, host) = (make(bench.device)?, make(&Device::Cpu)?);
    let mut random = Random::new(83);
    let (tokens, width) = (ROWS.iter().sum::<usize>(), scan.inputs());
    let slot = BESIDE[0] + scan.state() + BESIDE[1];
    // Long keys would let states grow without bounds.
    let inputs = numbers(&mut random, tokens * width, 0.25);
    let first = numbers(&mut random, SLOTS * slot, 1.0);
    let memory = Memory {
        states: Tensor::from_slice(&first, (SLOTS, slot), bench.device)?,
        trails: Tensor::zeros((SLOTS, TRAIL * width), DType::F32, bench.device)?,
    };
    let rows = Tensor::from_slice(&inputs, (tokens, width), bench.device)?;
    let mut start = 0;
    let pieces: Vec<Piece> = ROWS
        .iter()
        .zip([5, 0, 2])
        .map(|(&count, slot)| {
            start += count;
            piece(start - count..start, slot)
        })
        .collect();
    let got = data::read(&memory.run(&scan, &rows, &pieces)?)?;
    let states = data::read(&memory.states)?;
    let mut want: Vec<f64> = first.iter().map(|x| f64::from(*x)).collect();
    let mut outputs = vec![0.0; tokens * scan.outputs()];
    for piece in &pieces {
        let begin = piece.slot as usize * slot + BESIDE[0];
        let mut state = first[begin..begin + scan.state()].to_vec();
        let (size, lane_width) = (scan.state() / scan.lanes(), scan.lane_outputs());
        let rows = &inputs[piece.rows.start * width..piece.rows.end * width];
        for lane in 0..scan.lanes() {
            let mut out = vec![0.0; piece.rows.len() * lane_width];
            let state = &mut state[lane * size..][..size];
            host.run(Isa::current()?, lane, state, rows, &mut out);
            for (row, out) in out.chunks_exact(lane_width).enumerate() {
                let at = (piece.rows.start + row) * scan.outputs() + lane * lane_width;
                for (to, x) in outputs[at..].iter_mut().zip(out) {
                    *to = f64::from(*x);
                }
            }
        }
        for (to, x) in want[begin..].iter_mut().zip(&state) {
            *to = f64::from(*x);
        }
    }
    bench.judge(format!("{name} outputs"), &distances(&got, &outputs))?;
    bench.judge(format!("{name} states"), &distances(&states, &want))
}

fn distances(got: &[f64], want: &[f64]) -> Vec<f64> {
    if got.len() != want.len() {
        return vec![f64::INFINITY];
    }
    let pairs = got.iter().zip(want);
    pairs
        .map(|(got, want)| (got - want).abs() / (TOLERANCE * want.abs().max(1.0)))
        .collect()
}

/// One sequence whole, against itself in parts beside another, with copies on the way, and after rows were read again.
fn resumed(bench: &mut Bench<'_>, name: &str, make: &Make) -> Result<()> {
    const LENGTH: usize = 40;
    let scan = make(bench.device)?;
    let mut random = Random::new(89);
    let (width, slot) = (scan.inputs(), BESIDE[0] + scan.state() + BESIDE[1]);
    let inputs = numbers(&mut random, 2 * LENGTH * width, 0.25);
    let inputs = Tensor::from_slice(&inputs, (2 * LENGTH, width), bench.device)?;
    let memory = || -> Result<Memory> {
        Ok(Memory {
            states: Tensor::zeros((SLOTS, slot), DType::F32, bench.device)?,
            trails: Tensor::zeros((SLOTS, TRAIL * width), DType::F32, bench.device)?,
        })
    };
    let own = |memory: &Memory, slot: usize| bits(&memory.states.narrow(0, slot, 1)?);
    let plain = memory()?;
    let mut marked = piece(0..LENGTH, 0);
    marked.marks = vec![(9, 4), (LENGTH, 6)];
    let expected = plain.run(&scan, &inputs.narrow(0, 0, LENGTH)?, &[marked])?;
    let mut alike = own(&plain, 0)? == own(&plain, 6)?;
    // Nine rows, then the rest beside another sequence.
    let parts = memory()?;
    let first = parts.run(&scan, &inputs.narrow(0, 0, 9)?, &[piece(0..9, 3)])?;
    alike &= own(&parts, 3)? == own(&plain, 4)?;
    let rest = Tensor::cat(
        &[
            inputs.narrow(0, LENGTH, 5)?,
            inputs.narrow(0, 9, LENGTH - 9)?,
        ],
        0,
    )?;
    let both = [piece(0..5, 1), piece(5..LENGTH - 4, 3)];
    let second = parts.run(&scan, &rest, &both)?;
    let joined = Tensor::cat(&[first, second.narrow(0, 5, LENGTH - 9)?], 0)?;
    alike &= bits(&joined)? == bits(&expected)? && own(&parts, 3)? == own(&plain, 0)?;
    // Twenty rows are noted, of which twelve are read again from the beginning.
    let again = memory()?;
    let mut noted = piece(0..20, 2);
    noted.record = Some(0);
    again.run(&scan, &inputs.narrow(0, 0, 20)?, &[noted])?;
    let fresh = Tensor::zeros((1, slot), DType::F32, bench.device)?;
    again.states.slice_set(&fresh, 0, 2)?;
    let mut repeated = piece(0..LENGTH - 12, 2);
    repeated.again = 12;
    let rest = inputs.narrow(0, 12, LENGTH - 12)?;
    let found = again.run(&scan, &rest, &[repeated])?;
    let tail = expected.narrow(0, 12, LENGTH - 12)?;
    alike &= bits(&found)? == bits(&tail)? && own(&again, 2)? == own(&plain, 0)?;
    let deviation = if alike { 0.0 } else { f64::INFINITY };
    bench.judge(format!("{name} in parts"), &[deviation])
}

/// How much states keep, gates, and vectors of length one.
pub(super) fn scan_gates(bench: &mut Bench<'_>) -> Result<()> {
    if bench.dtype != DType::F32 || bench.device.is_cpu() {
        return Ok(());
    }
    let device = bench.device;
    for (rows, width) in [(3, 7), (1, 130), (5, 300)] {
        let mut random = Random::new(97);
        let mut row = |scale: f64| numbers(&mut random, width, scale);
        let (biases, rates, second) = (row(1.0), row(1.5), row(1.0));
        let tensors = [2.0, 20.0, 0.3].map(|scale| numbers(&mut random, rows * width, scale));
        let on = |values: &[f32], device: &Device| -> Result<Tensor> {
            Ok(Tensor::from_slice(values, (rows, width), device)?)
        };
        for rule in [
            Decay::Softplus,
            Decay::Bounded { least: -5.0 },
            Decay::Exponential,
        ] {
            let rates: Vec<f32> = rates.iter().map(|x| x + 1.6).collect();
            let run = |device: &Device| -> Result<Vec<f64>> {
                let decays = Decays::new(biases.clone(), rates.clone(), rule, device)?;
                data::read(&decays.forward(&on(&tensors[0], device)?)?)
            };
            let deviations = distances(&run(device)?, &run(&Device::Cpu)?);
            bench.judge(format!("{rule:?} {rows} x {width}"), &deviations)?;
        }
        let begins: Vec<u32> = (0..rows as u32).map(|row| row % 2).collect();
        let run = |device: &Device| -> Result<Vec<f64>> {
            let rates = rates.iter().map(|x| 4.0 * x - 7.0).collect();
            let gates = RecurrentGates::new([biases.clone(), second.clone()], rates, device)?;
            let [given, input, fading] = [0, 1, 2].map(|at| on(&tensors[at], device));
            let opened = gates.open(&given?, [&input?, &fading?], &begins)?;
            data::read(&opened)
        };
        let deviations = distances(&run(device)?, &run(&Device::Cpu)?);
        bench.judge(format!("gates {rows} x {width}"), &deviations)?;
        let heads = UnitHeads {
            size: width / 4,
            counts: [1, 2],
            factors: [0.5, 1.0],
            epsilon: 1e-6,
        };
        let run = |device: &Device| -> Result<Vec<f64>> {
            data::read(&unit_heads(&on(&tensors[1], device)?, heads)?)
        };
        let deviations = distances(&run(device)?, &run(&Device::Cpu)?);
        bench.judge(format!("units {rows} x {width}"), &deviations)?;
    }
    Ok(())
}
