//! Cases of what a token takes beside products and norms, on devices that have kernels for it.

use candle_core::{DType, Tensor};

use super::data::{self, input, Fill, Input, Placement, Random};
use super::Bench;
use crate::recording::{self, Choices};
use crate::sampling::{reference as sampled_by, sample, Want};
use crate::Result;
use crate::{reference, RopeKind, Rotation};

/// Tokens, heads, key heads, width and rotary size.
const SHAPES: [[usize; 5]; 7] = [
    [1, 1, 1, 2, 2],
    [1, 4, 2, 8, 8],
    [3, 2, 1, 6, 4],
    [2, 3, 3, 64, 64],
    [5, 4, 2, 80, 32],
    [4, 2, 2, 31, 30],
    [40, 8, 2, 128, 128],
];
const SLOTS: usize = 50;
/// What rows of logits look like.
const LOGITS: [Fill; 8] = [
    Fill::Plain,
    Fill::Steps,
    Fill::Constant(-2.0),
    Fill::Constant(f64::NEG_INFINITY),
    Fill::With(f64::NAN),
    Fill::With(f64::INFINITY),
    Fill::With(f64::NEG_INFINITY),
    Fill::FirstFar(5.0),
];
const LOGIT_ROWS: [(usize, usize); 5] = [(1, 1), (14, 7), (3, 300), (4, 4099), (2, 70_001)];

pub(super) fn rope_store(bench: &mut Bench<'_>) -> Result<()> {
    let mut random = Random::new(61);
    for shape in SHAPES {
        let [tokens, heads, key_heads, width, rotary] = shape;
        if !bench.takes((tokens, (heads + 2 * key_heads) * width)) {
            continue;
        }
        let style = (Fill::Plain, Placement::Contiguous);
        let size = (tokens, (heads + 2 * key_heads) * width);
        let all = input(&mut random, size, style, bench.dtype, bench.device)?;
        let known = tokens + 3;
        let angles: Vec<f64> = (0..known * rotary / 2)
            .map(|_| 3.0 * random.signed())
            .collect();
        let table =
            |values: Vec<f64>| data::tensor(values, &[known, rotary / 2], DType::F32, bench.device);
        let (cosines, c) = table(angles.iter().map(|angle| angle.cos()).collect())?;
        let (sines, s) = table(angles.iter().map(|angle| angle.sin()).collect())?;
        let positions: Vec<u32> = (0..tokens as u32).map(|token| token + 2).collect();
        let rows = data::indices(&positions, &[tokens], bench.device)?;
        for kind in [Some(RopeKind::Half), Some(RopeKind::Interleaved), None] {
            let rotation = kind.map(|kind| Rotation {
                cosines: &cosines,
                sines: &sines,
                rows: &rows,
                kind,
                rotary,
            });
            let turned = |x: &[f64], heads: usize| match kind {
                Some(kind) => {
                    let tables = (&c[..], &s[..]);
                    reference::rope(x, (heads, width), tables, &positions, kind, rotary)
                }
                None => x.to_vec(),
            };
            let case = format!("{shape:?} {kind:?}");
            store_case(bench, &all, shape, rotation.as_ref(), (&case, &turned))?;
        }
    }
    Ok(())
}

type Turned<'a> = dyn Fn(&[f64], usize) -> Vec<f64> + 'a;

fn store_case(
    bench: &mut Bench<'_>,
    all: &Input,
    [tokens, heads, key_heads, width, _]: [usize; 5],
    rotation: Option<&Rotation<'_>>,
    (case, turned): (&str, &Turned<'_>),
) -> Result<()> {
    let total = heads + 2 * key_heads;
    let tensor = all.tensor.reshape((tokens, total, width))?;
    let part = |first: usize, count: usize| -> Result<(Tensor, Vec<f64>)> {
        let values = all.values.chunks(total * width);
        let values = values.flat_map(|row| row[first * width..][..count * width].to_vec());
        Ok((tensor.narrow(1, first, count)?, values.collect()))
    };
    let (query, q) = part(0, heads)?;
    let (key, k) = part(heads, key_heads)?;
    let (value, v) = part(heads + key_heads, key_heads)?;
    let page = || Tensor::zeros((SLOTS, key_heads, width), bench.dtype, bench.device);
    let (keys, values) = (page()?, page()?);
    let slots: Vec<u32> = (0..tokens as u32)
        .map(|token| (token * 7 + 3) % 50)
        .collect();
    let places = data::indices(&slots, &[tokens, 1], bench.device)?;
    let rows = (&query, &key, &value);
    let stored = crate::rotate_and_store(rows, rotation, (&keys, &values), &places)?;
    let Some(got) = stored else {
        return Ok(());
    };
    bench.check(format!("{case} queries"), &got, &turned(&q, heads))?;
    let sides = [
        ("keys", &keys, turned(&k, key_heads)),
        ("values", &values, v),
    ];
    for (name, pages, rows) in sides {
        let size = key_heads * width;
        let mut want = vec![0.0; SLOTS * size];
        for (row, &slot) in rows.chunks(size).zip(&slots) {
            want[slot as usize * size..][..size].copy_from_slice(row);
        }
        bench.check(format!("{case} {name}"), pages, &want)?;
    }
    Ok(())
}

pub(super) fn largest(bench: &mut Bench<'_>) -> Result<()> {
    if bench.dtype != DType::F32 {
        return Ok(());
    }
    let mut random = Random::new(67);
    for fill in LOGITS {
        for size in LOGIT_ROWS {
            if !bench.takes(size) {
                continue;
            }
            let style = (fill, Placement::Contiguous);
            let x = input(&mut random, size, style, bench.dtype, bench.device)?;
            for count in [1, 2, 41, 140, 1000] {
                let Some(got) = crate::largest(&x.tensor, count)? else {
                    continue;
                };
                let rows = x.values.chunks(size.1);
                let want: Vec<_> = rows.map(|row| largest_of(row, count)).collect();
                let deviation = if got == want { 0.0 } else { f64::INFINITY };
                bench.judge(format!("{count} of {}", x.label), &[deviation])?;
            }
            chosen(bench, &x.tensor, &x.label)?;
        }
    }
    Ok(())
}

pub(super) fn sampling(bench: &mut Bench<'_>) -> Result<()> {
    if bench.dtype != DType::F32 {
        return Ok(());
    }
    let mut random = Random::new(71);
    for fill in LOGITS {
        for size in LOGIT_ROWS {
            if bench.takes(size) {
                let style = (fill, Placement::Contiguous);
                let x = input(&mut random, size, style, bench.dtype, bench.device)?;
                sampled(bench, &x.tensor, &x.label)?;
            }
        }
    }
    Ok(())
}

/// What samplers ask of logits, in every row something else.
fn sampled(bench: &mut Bench<'_>, x: &Tensor, label: &str) -> Result<()> {
    let wants = [
        (0, 0.0, None),
        (3, 0.0, None),
        (41, 0.7, None),
        (256, 1.0, None),
    ]
    .into_iter()
    .chain((0..20).map(|at| (0, 0.4 + at as f32 / 8.0, Some(f64::from(at) / 20.0))))
    .map(|(count, temperature, uniform)| Want {
        count,
        temperature,
        uniform,
    });
    let rows: Vec<Vec<f32>> = x.to_vec2()?;
    let wants: Vec<Want> = wants.collect();
    for shift in 0..wants.len() {
        let own = (0..rows.len()).map(|row| wants[(row + shift) % wants.len()]);
        let own: Vec<Want> = own.collect();
        let Some(found) = sample(x, &own)? else {
            continue;
        };
        let alike = rows
            .iter()
            .zip(&own)
            .zip(&found)
            .all(|((row, want), found)| {
                let expected = sampled_by(row, want);
                let off = (found.total - expected.total).abs();
                found.largest == expected.largest
                    && found.drawn == expected.drawn
                    && off <= 1e-12 * expected.total
            });
        let deviation = if alike { 0.0 } else { f64::INFINITY };
        bench.judge(format!("asks {shift} of {label}"), &[deviation])?;
    }
    Ok(())
}

/// What a device that records keeps of logits of any type, goes on with and tells the host.
fn chosen(bench: &mut Bench<'_>, x: &Tensor, label: &str) -> Result<()> {
    if !recording::is_possible(bench.device) {
        return Ok(());
    }
    let (rows, width) = x.dims2()?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = x.to_dtype(dtype)?;
        let kept = Tensor::zeros((rows + 1, width), DType::F32, bench.device)?;
        let tokens = Tensor::full(u32::MAX, rows, bench.device)?;
        let mut choices = Choices::new(rows + 1, width, bench.device)?;
        choices.keep(&x, &kept)?;
        choices.choose(&tokens)?;
        let found = choices.read()?;
        let kept = kept.narrow(0, 0, rows)?;
        let bits = |x: &Tensor| -> Result<Vec<u32>> {
            let values: Vec<f32> = x.flatten_all()?.to_vec1()?;
            Ok(values.into_iter().map(f32::to_bits).collect())
        };
        let first = |row: &Vec<(u32, f32)>| row.first().map_or(0, |&(place, _)| place);
        let alike = bits(&kept)? == bits(&x.to_dtype(DType::F32)?)?
            && Some(&found) == crate::largest(&kept, 1)?.as_ref()
            && tokens.to_vec1::<u32>()? == found.iter().map(first).collect::<Vec<_>>();
        let deviation = if alike { 0.0 } else { f64::INFINITY };
        bench.judge(
            format!("chosen of {label} in {}", dtype.as_str()),
            &[deviation],
        )?;
    }
    Ok(())
}

fn largest_of(row: &[f64], count: usize) -> Vec<(u32, f32)> {
    let places = (0..row.len() as u32).filter(|&place| row[place as usize].is_finite());
    let mut pairs: Vec<_> = places.map(|at| (at, row[at as usize] as f32)).collect();
    // Of equal numbers the first stays first.
    pairs.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(std::cmp::Ordering::Equal));
    pairs.truncate(count);
    pairs.sort_by_key(|&(place, _)| place);
    pairs
}
