//! The cases of each kernel.

use candle_core::{DType, Tensor};

use super::data::{self, input, Fill, Input, Placement, Random};
use super::{decoding, pointwise, scans, state_layers, Bench};
use crate::Result;
use crate::{reference, Activation, RopeKind, SoftmaxOptions};

type Case = fn(&mut Bench<'_>) -> Result<()>;

pub(super) const ALL: &[(&str, Case)] = &[
    ("layer_norm", layer_norm),
    ("rms_norm", rms_norm),
    ("add_layer_norm", add_layer_norm),
    ("add_rms_norm", add_rms_norm),
    ("softmax", softmax),
    ("softmax_masked", softmax_masked),
    ("activation", activation),
    ("gated", gated),
    ("pointwise", pointwise::pointwise),
    ("clamped_glu", pointwise::clamped_glu),
    ("rope", rope),
    ("rope_store", decoding::rope_store),
    ("largest", decoding::largest),
    ("sampling", decoding::sampling),
    ("mean_pool", mean_pool),
    ("l2_normalize", l2_normalize),
    ("scan", scans::scan),
    ("scan_gates", scans::scan_gates),
    ("joined_columns", state_layers::joined_columns),
    ("gated_norm", state_layers::gated_norm),
];

pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

const ROWS: [usize; 4] = [0, 1, 3, 18];
const WIDTHS: [usize; 18] = [
    1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 384, 513, 768, 1025,
];
// A lane keeps 16 elements of its row in registers, and there are 1024 lanes at most.
const WIDE: [(usize, usize); 4] = [(2, 4096), (1, 17_001), (3, 30011), (2, 65_536)];

/// The inputs that every row kernel must survive.
pub(super) fn inputs(bench: &Bench<'_>) -> Result<Vec<Input>> {
    let mut random = Random::new(7);
    let mut wanted = Vec::new();
    for rows in ROWS {
        for width in WIDTHS {
            wanted.push(((rows, width), (Fill::Plain, Placement::Contiguous)));
        }
    }
    for size in WIDE {
        wanted.push((size, (Fill::Plain, Placement::Contiguous)));
        wanted.push((size, (Fill::Plain, Placement::Narrowed)));
    }
    for width in [1, 5, 16, 33, 768] {
        for placement in [Placement::Narrowed, Placement::Transposed] {
            wanted.push(((6, width), (Fill::Plain, placement)));
        }
        // Twice as many rows as columns: at every place, beside a row without it.
        let rows = if width < 100 { 2 * width } else { 4 };
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            wanted.push(((rows, width), (Fill::With(value), Placement::Contiguous)));
        }
    }
    // Enough for every thread of the pool, and rows that begin at every alignment.
    wanted.push(((700, 384), (Fill::Plain, Placement::Contiguous)));
    wanted.push(((1100, 1021), (Fill::Plain, Placement::Contiguous)));
    wanted
        .into_iter()
        .filter(|(size, (fill, _))| bench.takes(*size) || matches!(fill, Fill::With(_)))
        .map(|(size, style)| input(&mut random, size, style, bench.dtype, bench.device))
        .collect()
}

/// Rows whose statistics are hard to take; the widths include those of the regressions by name.
fn hard_inputs(bench: &Bench<'_>) -> Result<Vec<Input>> {
    let mut random = Random::new(11);
    let around = |mean, spread| Fill::Around { mean, spread };
    let fills = [
        Fill::Constant(3.3),
        Fill::Constant(0.0),
        around(1000.0, 0.1),
        around(100.0, 0.01),
        around(1e4, 1e-3),
        around(-1e4, 1e-3),
        around(0.0, 1e-5),
        around(0.0, 1e3),
        Fill::FirstFar(5.0),
        Fill::FirstFar(10.0),
        Fill::FirstFar(1e4),
    ];
    let mut inputs = Vec::new();
    for fill in fills {
        for width in [768, 37, 4096, 4097, 8192] {
            if !bench.takes((3, width)) {
                continue;
            }
            let style = (fill, Placement::Contiguous);
            inputs.push(input(
                &mut random,
                (3, width),
                style,
                bench.dtype,
                bench.device,
            )?);
        }
    }
    Ok(inputs)
}

fn width(x: &Input) -> usize {
    x.tensor.dims().last().copied().unwrap_or(1)
}

/// A weight and a bias for rows of the width.
fn affine(bench: &Bench<'_>, width: usize) -> Result<[(Tensor, Vec<f64>); 2]> {
    let mut random = Random::new(width as u64 + 3);
    let mut vector = || {
        let values = data::values(&mut random, width, Fill::Plain, width);
        data::tensor(values, &[width], bench.dtype, bench.device)
    };
    Ok([vector()?, vector()?])
}

fn norm_inputs(bench: &Bench<'_>) -> Result<Vec<Input>> {
    let mut all = inputs(bench)?;
    all.extend(hard_inputs(bench)?);
    Ok(all)
}

fn layer_norm(bench: &mut Bench<'_>) -> Result<()> {
    for x in norm_inputs(bench)? {
        let [(weight, w), (bias, b)] = affine(bench, width(&x))?;
        for epsilon in [1e-5f32, 1e-12] {
            let got = crate::layer_norm(&x.tensor, &weight, Some(&bias), epsilon)?;
            let want = reference::layer_norm(&x.values, &w, Some(&b), epsilon as f64);
            bench.check(format!("{} bias eps {epsilon:e}", x.label), &got, &want)?;
        }
        let got = crate::layer_norm(&x.tensor, &weight, None, 1e-5)?;
        let want = reference::layer_norm(&x.values, &w, None, 1e-5f32 as f64);
        bench.check(format!("{} no bias", x.label), &got, &want)?;
    }
    Ok(())
}

fn rms_norm(bench: &mut Bench<'_>) -> Result<()> {
    for x in norm_inputs(bench)? {
        let [(weight, w), _] = affine(bench, width(&x))?;
        let epsilon = 1e-6f32;
        let plain = crate::rms_norm(&x.tensor, &weight, epsilon)?;
        let offset = crate::rms_norm_offset(&x.tensor, &weight, epsilon, 1.0)?;
        for (got, by) in [(plain, 0.0), (offset, 1.0)] {
            let want = reference::rms_norm(&x.values, &w, epsilon as f64, by);
            bench.check(format!("{} offset {by}", x.label), &got, &want)?;
        }
    }
    Ok(())
}

/// What is added to `x`: its rows in another order and layout.
pub(super) fn residual(bench: &Bench<'_>, x: &Input) -> Result<(Tensor, Vec<f64>)> {
    let mut random = Random::new(x.values.len() as u64 + 29);
    let mut shape = x.tensor.dims().to_vec();
    let width = width(x);
    if let Some(last) = shape.last_mut() {
        *last += 3;
    }
    let count = shape.iter().product();
    let values = data::values(&mut random, count, Fill::Plain, width + 3);
    let (whole, _) = data::tensor(values, &shape, bench.dtype, bench.device)?;
    let tensor = whole.narrow(shape.len() - 1, 1, width)?;
    let values = data::read(&tensor)?;
    Ok((tensor, values))
}

/// Sums are f32 before they are normalized.
fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    let sums = a.iter().zip(b).map(|(a, b)| (a + b) as f32);
    sums.map(f64::from).collect()
}

fn add_layer_norm(bench: &mut Bench<'_>) -> Result<()> {
    for x in inputs(bench)? {
        let [(weight, w), (bias, b)] = affine(bench, width(&x))?;
        let (residual, r) = residual(bench, &x)?;
        let epsilon = 1e-5f32;
        let (total, normed) =
            crate::add_layer_norm(x.tensor, &residual, &weight, Some(&bias), epsilon)?;
        let sums = sum(&x.values, &r);
        bench.check(format!("{} sum", x.label), &total, &sums)?;
        let want = reference::layer_norm(&sums, &w, Some(&b), epsilon as f64);
        bench.check(format!("{} norm", x.label), &normed, &want)?;
    }
    Ok(())
}

fn add_rms_norm(bench: &mut Bench<'_>) -> Result<()> {
    for offset in [0.0f32, 1.0] {
        for x in inputs(bench)? {
            let [(weight, w), _] = affine(bench, width(&x))?;
            let (residual, r) = residual(bench, &x)?;
            let epsilon = 1e-6f32;
            let (total, normed) =
                crate::add_rms_norm(x.tensor, &residual, &weight, epsilon, offset)?;
            let sums = sum(&x.values, &r);
            bench.check(format!("{} sum", x.label), &total, &sums)?;
            let want = reference::rms_norm(&sums, &w, epsilon as f64, offset as f64);
            bench.check(format!("{} norm offset {offset}", x.label), &normed, &want)?;
        }
    }
    Ok(())
}

fn softmax(bench: &mut Bench<'_>) -> Result<()> {
    let mut all = inputs(bench)?;
    let mut random = Random::new(23);
    for fill in [
        Fill::Constant(f64::NEG_INFINITY),
        Fill::Constant(6e4),
        Fill::Around {
            mean: 0.0,
            spread: 80.0,
        },
    ] {
        let style = (fill, Placement::Contiguous);
        all.push(input(
            &mut random,
            (3, 100),
            style,
            bench.dtype,
            bench.device,
        )?);
    }
    for x in all {
        let got = crate::softmax(&x.tensor)?;
        let want = reference::softmax(&x.values, width(&x), 1.0, |_, _| Some(0.0));
        bench.check(x.label, &got, &want)?;
    }
    Ok(())
}

/// Masks for `rows` × `width`: every seventh row is masked whole, and NaN hides behind masks.
struct Masks {
    additive: (Tensor, Vec<f64>),
    keep: (Tensor, Vec<u8>),
    lengths: (Tensor, Vec<u32>),
}

impl Masks {
    fn new(bench: &Bench<'_>, leading: &[usize], width: usize) -> Result<Self> {
        let rows: usize = leading.iter().product();
        let mut shape = leading.to_vec();
        shape.push(width);
        let mut random = Random::new((rows * width) as u64 + 41);
        let lowest = f64::from(crate::types::lowest_finite(bench.dtype));
        let additive = (0..rows * width)
            .map(|i| match (random.bits() % 5, i / width % 7) {
                (0, _) | (_, 6) if i % 2 == 0 => f64::NEG_INFINITY,
                (0, _) | (_, 6) => lowest,
                _ => random.signed(),
            })
            .collect();
        let keep: Vec<u8> = (0..rows * width)
            .map(|i| u8::from(!random.bits().is_multiple_of(4) && i / width % 7 != 5))
            .collect();
        let lengths: Vec<u32> = (0..rows)
            .map(|row| {
                if row % 7 == 4 {
                    0
                } else {
                    (random.bits() % (width as u64 + 3)) as u32
                }
            })
            .collect();
        Ok(Self {
            additive: data::tensor(additive, &shape, bench.dtype, bench.device)?,
            keep: (data::indices(&keep, &shape, bench.device)?, keep),
            lengths: (data::indices(&lengths, leading, bench.device)?, lengths),
        })
    }
}

fn softmax_masked(bench: &mut Bench<'_>) -> Result<()> {
    let lowest = f64::from(crate::types::lowest_finite(bench.dtype));
    for x in inputs(bench)? {
        let (dims, width) = (x.tensor.dims(), width(&x));
        let masks = Masks::new(bench, &dims[..dims.len() - 1], width)?;
        for choice in 1..8u8 {
            let (additive, keep, lengths) = (choice & 1 != 0, choice & 2 != 0, choice & 4 != 0);
            let scale = 0.125f32;
            let options = SoftmaxOptions {
                scale: Some(scale),
                additive: additive.then_some(&masks.additive.0),
                keep: keep.then_some(&masks.keep.0),
                lengths: lengths.then_some(&masks.lengths.0),
            };
            let got = crate::softmax_masked(&x.tensor, &options)?;
            let want = reference::softmax(&x.values, width, scale as f64, |row, column| {
                let at = row * width + column;
                let bias = if additive { masks.additive.1[at] } else { 0.0 };
                let hidden = keep && masks.keep.1[at] == 0;
                let beyond = lengths && column >= masks.lengths.1[row] as usize;
                let kept = bias > lowest && !hidden && !beyond;
                kept.then_some(bias)
            });
            bench.check(format!("{} masks {choice:03b}", x.label), &got, &want)?;
        }
    }
    Ok(())
}

const ACTIVATIONS: [Activation; 10] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::QuickGelu,
    Activation::Silu,
    Activation::Relu,
    Activation::Tanh,
    Activation::Sigmoid,
    Activation::ReluSquared,
    Activation::Relu6,
    Activation::Identity,
];

fn activation(bench: &mut Bench<'_>) -> Result<()> {
    let mut all = inputs(bench)?;
    let mut random = Random::new(31);
    for spread in [1e-3, 8.0, 60.0, 1e4] {
        let style = (Fill::Around { mean: 0.0, spread }, Placement::Contiguous);
        all.push(input(
            &mut random,
            (3, 1000),
            style,
            bench.dtype,
            bench.device,
        )?);
    }
    for x in all {
        for activation in ACTIVATIONS {
            let got = crate::activate(&x.tensor, activation)?;
            let want: Vec<f64> = x
                .values
                .iter()
                .map(|&v| reference::activation(v, activation))
                .collect();
            bench.check(format!("{activation:?} {}", x.label), &got, &want)?;
        }
    }
    match bench.dtype {
        DType::F32 => gelu_tail(bench),
        _ => Ok(()),
    }
}

/// Far out GELU is small, and yet a number of all its places.
fn gelu_tail(bench: &mut Bench<'_>) -> Result<()> {
    let values = (0..400).map(|i| -8.0 - 0.01117 * f64::from(i)).collect();
    let (x, values) = data::tensor(values, &[4, 100], bench.dtype, bench.device)?;
    let got = crate::activate(&x, Activation::Gelu)?;
    // Metal's kernel makes good what rounding the square costs; the others save the time.
    let allowed = if bench.device.is_metal() {
        1.5e-6
    } else {
        2e-5
    };
    // `check` allows more around zero than these numbers are.
    let deviations: Vec<f64> = data::read(&got)?
        .into_iter()
        .zip(values)
        .map(|(got, x)| got / reference::activation(x, Activation::Gelu) - 1.0)
        .map(|error| error / allowed)
        .collect();
    bench.judge("Gelu, far out".into(), &deviations)
}

fn gated(bench: &mut Bench<'_>) -> Result<()> {
    for x in inputs(bench)? {
        let (up, u) = residual(bench, &x)?;
        for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            let got = crate::gated(&x.tensor, &up, activation)?;
            let want: Vec<f64> = x
                .values
                .iter()
                .zip(&u)
                .map(|(&g, u)| reference::activation(g, activation) * u)
                .collect();
            bench.check(format!("{activation:?} {}", x.label), &got, &want)?;
        }
        if width(&x).is_multiple_of(2) {
            let (got, half) = (
                crate::gated_fused(&x.tensor, Activation::Silu)?,
                width(&x) / 2,
            );
            let want: Vec<f64> = x
                .values
                .chunks(2 * half)
                .flat_map(|row| {
                    (0..half)
                        .map(|i| reference::activation(row[i], Activation::Silu) * row[half + i])
                })
                .collect();
            bench.check(format!("fused {}", x.label), &got, &want)?;
        }
    }
    Ok(())
}

fn rope(bench: &mut Bench<'_>) -> Result<()> {
    const SHAPES: [(usize, usize, usize, usize); 8] = [
        (0, 2, 8, 8),
        (1, 1, 2, 2),
        (3, 2, 6, 4),
        (5, 3, 64, 64),
        (5, 3, 80, 32),
        (4, 2, 128, 128),
        (7, 1, 31, 30),
        (300, 4, 64, 64),
    ];
    let mut random = Random::new(53);
    for (tokens, heads, width, rotary) in SHAPES {
        let known = 2 * tokens + 1;
        let style = (Fill::Plain, Placement::Contiguous);
        let size = (tokens, 2 * heads * width);
        let x = input(&mut random, size, style, bench.dtype, bench.device)?;
        // The second half of a fused projection: strided tokens, contiguous heads.
        let tensor = x
            .tensor
            .reshape((tokens, 2 * heads, width))?
            .narrow(1, heads, heads)?;
        let used: Vec<f64> = (0..tokens)
            .flat_map(|t| {
                x.values[(2 * t + 1) * heads * width..(2 * t + 2) * heads * width].to_vec()
            })
            .collect();
        let angles: Vec<f64> = (0..known * rotary / 2)
            .map(|_| 3.0 * random.signed())
            .collect();
        let table =
            |values: Vec<f64>| data::tensor(values, &[known, rotary / 2], DType::F32, bench.device);
        let (cosines, c) = table(angles.iter().map(|a| a.cos()).collect())?;
        let (sines, s) = table(angles.iter().map(|a| a.sin()).collect())?;
        let positions: Vec<u32> = (0..tokens)
            .map(|_| (random.bits() % known as u64) as u32)
            .collect();
        let indices = data::indices(&positions, &[tokens], bench.device)?;
        for kind in [RopeKind::Half, RopeKind::Interleaved] {
            let got = crate::rope(&tensor, &cosines, &sines, &indices, kind, rotary)?;
            let want = reference::rope(&used, (heads, width), (&c, &s), &positions, kind, rotary);
            let case = format!("{tokens}x{heads}x{width} rotary {rotary} {kind:?}");
            bench.check(case, &got, &want)?;
        }
    }
    rope_beyond_its_tables(bench)
}

/// The CPU refuses what a GPU can't without waiting for it: there the rotated elements become NaN.
fn rope_beyond_its_tables(bench: &mut Bench<'_>) -> Result<()> {
    let mut random = Random::new(59);
    for (known, width, rotary) in [(4, 8, 8), (3, 7, 6)] {
        let style = (Fill::Plain, Placement::Contiguous);
        let x = input(&mut random, (3, width), style, bench.dtype, bench.device)?;
        let tensor = x.tensor.reshape((3, 1, width))?;
        let ones = vec![1.0; known * rotary / 2];
        let (table, t) = data::tensor(ones, &[known, rotary / 2], DType::F32, bench.device)?;
        let positions = [0, known as u32, 1];
        let indices = data::indices(&positions, &[3], bench.device)?;
        for kind in [RopeKind::Half, RopeKind::Interleaved] {
            let got = crate::rope(&tensor, &table, &table, &indices, kind, rotary);
            let case = format!("position {known} of {known} {kind:?}");
            if bench.device.is_cpu() {
                bench.judge(case, &[if got.is_err() { 0.0 } else { f64::INFINITY }])?;
                continue;
            }
            let want = reference::rope(&x.values, (1, width), (&t, &t), &positions, kind, rotary);
            bench.check(case, &got?, &want)?;
        }
    }
    Ok(())
}

fn mean_pool(bench: &mut Bench<'_>) -> Result<()> {
    for x in inputs(bench)? {
        if x.tensor.rank() != 2 {
            continue;
        }
        let tokens = x.tensor.dims()[0] as u32;
        let some = [0, tokens / 4, tokens / 4, tokens / 2 + tokens % 2, tokens];
        for boundaries in [&some[..], &[0, tokens], &[0]] {
            let got = crate::mean_pool(&x.tensor, boundaries)?;
            let want = reference::mean_pool(&x.values, width(&x), boundaries);
            bench.check(format!("{} {boundaries:?}", x.label), &got, &want)?;
        }
    }
    Ok(())
}

fn l2_normalize(bench: &mut Bench<'_>) -> Result<()> {
    for x in norm_inputs(bench)? {
        let got = crate::l2_normalize(&x.tensor)?;
        let least = f64::from(crate::LEAST_L2_NORM);
        let want = reference::l2_normalize(&x.values, width(&x), least);
        bench.check(x.label, &got, &want)?;
    }
    Ok(())
}
