//! Seeded inputs in awkward shapes and layouts.

use candle_core::{DType, Device, Tensor, WithDType};

use crate::Result;
use base::runtime::device::placed;

/// A tensor as the kernel gets it, and its values as the reference does: rounded to the type.
pub(super) struct Input {
    pub tensor: Tensor,
    pub values: Vec<f64>,
    pub label: String,
}

/// What the numbers of an input look like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fill {
    /// About -3 to 3.
    Plain,
    Around {
        mean: f64,
        spread: f64,
    },
    Constant(f64),
    /// From -3 to 3 in whole steps, with zeros of both signs.
    Steps,
    /// Plain, after a first element of every row that lies elsewhere.
    FirstFar(f64),
    /// Plain, with the number at one place of every second row, from the middle on at another place in each.
    With(f64),
}

/// How an input lies in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placement {
    Contiguous,
    /// The middle columns of a wider tensor.
    Narrowed,
    /// [rows, 3, width] seen as the transpose of [3, rows, width].
    Transposed,
}

pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From -1 to 1.
    pub fn signed(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

pub(super) fn values(random: &mut Random, count: usize, fill: Fill, width: usize) -> Vec<f64> {
    (0..count)
        .map(|i| {
            let noise = random.signed();
            let row = i / width.max(1);
            match fill {
                Fill::Constant(value) => value,
                Fill::Steps => (3.0 * noise).round(),
                Fill::Around { mean, spread } => mean + spread * 1.7 * noise,
                Fill::FirstFar(value) if i % width == 0 => value,
                Fill::With(value) if row % 2 == 1 && i % width == (width / 2 + row / 2) % width => {
                    value
                }
                _ => 3.0 * noise,
            }
        })
        .collect()
}

pub(super) fn tensor(
    values: Vec<f64>,
    shape: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<(Tensor, Vec<f64>)> {
    let rounded = Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?;
    let kept = rounded.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?;
    Ok((placed(&rounded, device)?, kept))
}

/// Numbers that count, on the device.
pub(super) fn indices<T: WithDType>(
    values: &[T],
    shape: &[usize],
    device: &Device,
) -> Result<Tensor> {
    placed(&Tensor::from_slice(values, shape, &Device::Cpu)?, device)
}

/// `rows` × `width` numbers in the placement.
pub(super) fn input(
    random: &mut Random,
    (rows, width): (usize, usize),
    (fill, placement): (Fill, Placement),
    dtype: DType,
    device: &Device,
) -> Result<Input> {
    let label = format!("{rows}x{width} {fill:?} {placement:?}");
    let shape = match placement {
        Placement::Contiguous => vec![rows, width],
        Placement::Narrowed => vec![rows, width + 5],
        Placement::Transposed => vec![3, rows, width],
    };
    let count = shape.iter().product();
    let wide = *shape.last().unwrap_or(&1);
    let (whole, _) = tensor(values(random, count, fill, wide), &shape, dtype, device)?;
    let tensor = match placement {
        Placement::Contiguous => whole,
        Placement::Narrowed => whole.narrow(1, 3, width)?,
        Placement::Transposed => whole.transpose(0, 1)?,
    };
    let values = read(&tensor)?;
    Ok(Input {
        tensor,
        values,
        label,
    })
}

/// The values of a tensor on any device. An empty view is not given to candle, which would panic.
pub(super) fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    if tensor.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let values = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    Ok(values.to_dtype(DType::F64)?.to_vec1()?)
}
