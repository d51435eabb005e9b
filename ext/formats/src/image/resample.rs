//! Resizing as Pillow does it: each pass rounds to bytes, with weights of 22 fractional bits; and as torch does it, with
//! weights of 16 bits.

use rayon::prelude::*;

use super::{Image, CHANNELS};
use crate::{CancelToken, Result};
use base::runtime::{memory, threads};

/// By Pillow's numbers, which preprocessor files carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    Nearest,
    Lanczos,
    Bilinear,
    Bicubic,
    Box,
    Hamming,
    /// Of torch, which then looks at four places however far it shrinks. No file has a number for it.
    FourPlaces,
}

impl Filter {
    pub fn from_number(number: usize) -> Option<Self> {
        let all = [
            Self::Nearest,
            Self::Lanczos,
            Self::Bilinear,
            Self::Bicubic,
            Self::Box,
            Self::Hamming,
        ];
        all.get(number).copied()
    }

    /// How far it reaches to each side, in pixels of the smaller of both pictures.
    fn support(self) -> f64 {
        match self {
            Self::Nearest | Self::Box => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic | Self::FourPlaces => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Self::Nearest | Self::Box => f64::from(x > -0.5 && x <= 0.5),
            Self::Bilinear => (1.0 - x.abs()).max(0.0),
            Self::Hamming => {
                let x = x.abs();
                if x == 0.0 {
                    return 1.0;
                }
                if x >= 1.0 {
                    return 0.0;
                }
                let angle = x * std::f64::consts::PI;
                angle.sin() / angle * (0.54 + 0.46 * angle.cos())
            }
            Self::Bicubic | Self::FourPlaces => {
                let a = if self == Self::Bicubic { -0.5 } else { -0.75 };
                let x = x.abs();
                if x < 1.0 {
                    ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    (((x - 5.0) * x + 8.0) * x - 4.0) * a
                } else {
                    0.0
                }
            }
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

impl Filter {
    /// For each place of a result, the first place of the source that it is made of, and the weights
    /// of that one and those that follow.
    pub fn windows(self, from: usize, to: usize) -> Vec<(usize, Vec<f64>)> {
        let scale = from as f64 / to as f64;
        if self == Self::FourPlaces {
            return (0..to).map(|place| self.four(place, scale, from)).collect();
        }
        let stretch = scale.max(1.0);
        let support = self.support() * stretch;
        let window = |place: usize| {
            let centre = (place as f64 + 0.5) * scale;
            let first = ((centre - support + 0.5) as isize).max(0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            let weight = |x: usize| self.weight((x as f64 - centre + 0.5) / stretch);
            let weights: Vec<f64> = (first..end).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let normal = |weight: f64| if sum == 0.0 { weight } else { weight / sum };
            (first, weights.into_iter().map(normal).collect())
        };
        (0..to).map(window).collect()
    }

    /// The four places around one; what would lie beyond an edge counts for the place there.
    fn four(self, place: usize, scale: f64, from: usize) -> (usize, Vec<f64>) {
        let centre = (place as f64 + 0.5) * scale - 0.5;
        let before = centre.floor();
        let at = |x: f64| x.clamp(0.0, from.saturating_sub(1) as f64) as usize;
        let first = at(before - 1.0);
        let mut weights = vec![0.0; at(before + 2.0) - first + 1];
        for x in (-1..=2).map(|step| before + f64::from(step)) {
            weights[at(x) - first] += self.weight(x - centre);
        }
        (first, weights)
    }
}

/// What one place of the result is made of.
struct Window {
    first: usize,
    weights: Vec<i32>,
}

/// What all places of the result are made of, and how many bits of a weight are fractional.
struct Windows {
    windows: Vec<Window>,
    precision: u32,
}

/// Whose weights, and whose order of the passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Pillow,
    Torch,
}

/// Pillow's fractional bits of a weight: a byte and two bits for what overshoots fill the rest of 32.
const PRECISION: u32 = 32 - 8 - 2;

impl Rounding {
    /// The fractional bits of weights; torch has as many as let the largest one fit 16 bits.
    fn precision(self, windows: &[(usize, Vec<f64>)]) -> u32 {
        if self == Self::Pillow {
            return PRECISION;
        }
        let weights = windows.iter().flat_map(|(_, weights)| weights);
        let largest = weights.copied().fold(0.0, f64::max);
        let fits = |bits: &u32| 0.5 + largest * f64::from(1u32 << (bits + 1)) < f64::from(1 << 15);
        (0..PRECISION).find(|bits| !fits(bits)).unwrap_or(PRECISION)
    }
}

impl Windows {
    fn new(from: usize, to: usize, (filter, rounding): (Filter, Rounding)) -> Self {
        let windows = filter.windows(from, to);
        let precision = rounding.precision(&windows);
        let rounded = |weight: f64| {
            let scaled = weight * f64::from(1 << precision);
            (scaled + 0.5f64.copysign(weight)) as i32
        };
        let window = |(first, weights): (usize, Vec<f64>)| Window {
            first,
            weights: weights.into_iter().map(rounded).collect(),
        };
        Self {
            windows: windows.into_iter().map(window).collect(),
            precision,
        }
    }

    /// What rounds a sum.
    fn half(&self) -> i32 {
        (1 << self.precision) >> 1
    }

    fn rounded(&self, sum: i32) -> u8 {
        (sum >> self.precision).clamp(0, 255) as u8
    }
}

/// The picture in another size.
pub fn resize(
    image: &Image,
    width: usize,
    height: usize,
    filter: Filter,
    cancel: &CancelToken,
) -> Result<Image> {
    resize_as(Rounding::Pillow, image, (width, height), filter, cancel)
}

/// The same, as one of the libraries does it.
pub fn resize_as(
    rounding: Rounding,
    image: &Image,
    (width, height): (usize, usize),
    filter: Filter,
    cancel: &CancelToken,
) -> Result<Image> {
    cancel.check()?;
    if (width, height) == (image.width, image.height) {
        return Ok(image.clone());
    }
    memory::ensure_elements(&[width, height, CHANNELS], 1, "a resized image")?;
    memory::ensure_elements(&[width, image.height, CHANNELS], 1, "a resized image")?;
    if filter == Filter::Nearest {
        return nearest(image, width, height);
    }
    let across = |image: &Image| {
        if width == image.width {
            Ok(image.clone())
        } else {
            horizontally(image, width, (filter, rounding), cancel)
        }
    };
    let down = |image: &Image| {
        if height == image.height {
            Ok(image.clone())
        } else {
            vertically(image, height, (filter, rounding), cancel)
        }
    };
    let pillow = rounding == Rounding::Pillow;
    if pillow && shrinks_down_first((image.width, image.height), (width, height)) {
        across(&down(image)?)
    } else {
        down(&across(image)?)
    }
}

/// Bytes are rounded between the passes, so that their order shows. Pillow begins with the columns
/// where that takes away more than twice as much.
fn shrinks_down_first(from: (usize, usize), to: (usize, usize)) -> bool {
    let narrower = from.0 as isize - to.0 as isize;
    let lower = from.1 as isize - to.1 as isize;
    lower > 0 && lower > 2 * narrower
}

fn horizontally(
    image: &Image,
    width: usize,
    how: (Filter, Rounding),
    cancel: &CancelToken,
) -> Result<Image> {
    let windows = Windows::new(image.width, width, how);
    let pixels = by_rows(image.height, width * CHANNELS, cancel, |y, out| {
        let row = image.row(y);
        for (pixel, window) in out.chunks_exact_mut(CHANNELS).zip(&windows.windows) {
            let mut sums = [windows.half(); CHANNELS];
            let source = row[window.first * CHANNELS..].chunks_exact(CHANNELS);
            for (&weight, source) in window.weights.iter().zip(source) {
                for (sum, &value) in sums.iter_mut().zip(source) {
                    *sum += weight * i32::from(value);
                }
            }
            pixel.copy_from_slice(&sums.map(|sum| windows.rounded(sum)));
        }
    })?;
    Image::new(width, image.height, pixels)
}

fn vertically(
    image: &Image,
    height: usize,
    how: (Filter, Rounding),
    cancel: &CancelToken,
) -> Result<Image> {
    let windows = Windows::new(image.height, height, how);
    let pixels = by_rows(height, image.width * CHANNELS, cancel, |y, out| {
        let window = &windows.windows[y];
        let mut sums = vec![windows.half(); out.len()];
        for (number, &weight) in window.weights.iter().enumerate() {
            let source = image.row(window.first + number);
            for (sum, &value) in sums.iter_mut().zip(source) {
                *sum += weight * i32::from(value);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = windows.rounded(sum);
        }
    })?;
    Image::new(image.width, height, pixels)
}

fn nearest(image: &Image, width: usize, height: usize) -> Result<Image> {
    let place = |at: usize, from: usize, to: usize| {
        let scale = from as f64 / to as f64;
        (((at as f64 + 0.5) * scale) as usize).min(from - 1)
    };
    let mut pixels = Vec::with_capacity(width * height * CHANNELS);
    for y in 0..height {
        let row = image.row(place(y, image.height, height));
        for x in 0..width {
            let start = place(x, image.width, width) * CHANNELS;
            pixels.extend(&row[start..start + CHANNELS]);
        }
    }
    Image::new(width, height, pixels)
}

/// Rows of `length` bytes, filled by threads.
fn by_rows(
    count: usize,
    length: usize,
    cancel: &CancelToken,
    fill: impl Fn(usize, &mut [u8]) + Sync,
) -> Result<Vec<u8>> {
    /// Rows that are filled between two looks at the token.
    const ROWS: usize = 64;
    let mut pixels = vec![0u8; count * length];
    threads::install(|| {
        let parts = pixels.par_chunks_mut(length * ROWS).enumerate();
        parts.try_for_each(|(number, rows)| -> Result<()> {
            cancel.check()?;
            for (y, row) in rows.chunks_exact_mut(length).enumerate() {
                fill(number * ROWS + y, row);
            }
            Ok(())
        })
    })??;
    Ok(pixels)
}
