//! Tables of positions that are computed.

use candle_core::{Device, Tensor};

use super::config::Frequencies;
use super::parameters::Parameters;
use crate::nn::Embedding;
use crate::{Error, Result};

/// No model has more positions that are computed; more are the word of a damaged file.
const MOST_SINUSOIDS: usize = 1 << 16;

/// A table of (rows, width), of which one row may be zero.
pub fn sinusoids(
    (rows, width): (usize, usize),
    frequencies: Frequencies,
    zero_row: Option<u32>,
    parameters: &Parameters<'_>,
) -> Result<Embedding> {
    let mut table = values(rows, width, frequencies)?;
    if let Some(row) = zero_row.and_then(|row| table.chunks_exact_mut(width).nth(row as usize)) {
        row.fill(0.0);
    }
    let table = Tensor::from_vec(table, (rows, width), &Device::Cpu)?;
    let table = table.to_dtype(parameters.dtype())?;
    Ok(Embedding::Dense(table.to_device(parameters.device())?))
}

/// For each position the sines of its multiples of the frequencies, then the cosines.
fn values(rows: usize, width: usize, frequencies: Frequencies) -> Result<Vec<f32>> {
    if rows > MOST_SINUSOIDS || width < 4 || !width.is_multiple_of(2) {
        return Err(Error::CorruptModel(format!(
            "the configuration asks for {rows} computed positions of width {width}"
        )));
    }
    base::runtime::memory::ensure_elements(&[rows, width], 4, "the positions")?;
    let half = width / 2;
    let mut table = vec![0f32; rows * width];
    for (position, row) in table.chunks_exact_mut(width).enumerate() {
        let (sines, cosines) = row.split_at_mut(half);
        for (at, (sine, cosine)) in sines.iter_mut().zip(cosines).enumerate() {
            (*sine, *cosine) = match frequencies {
                Frequencies::Open => {
                    let frequency = 10_000f64.powf(-(at as f64) / half as f64);
                    let angle = position as f64 * frequency;
                    (angle.sin() as f32, angle.cos() as f32)
                }
                // In single precision, since the reference is.
                Frequencies::Closed => {
                    let step = (10_000f64.ln() / (half - 1) as f64) as f32;
                    let angle = position as f32 * (at as f32 * -step).exp();
                    (angle.sin(), angle.cos())
                }
            };
        }
    }
    Ok(table)
}
