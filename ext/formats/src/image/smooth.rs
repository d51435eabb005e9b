//! Pictures that are resized as numbers, which nothing rounds to bytes (DINOv3), and views with zeros around.

use super::processor::View;
use super::resample::Filter;
use super::{Image, CHANNELS};
use crate::{CancelToken, Result};
use base::runtime::memory;

/// One plane for each channel.
pub struct Planes {
    pub width: usize,
    pub height: usize,
    pub values: Vec<f32>,
}

impl Planes {
    /// The bytes of a picture in another size.
    pub fn resized(
        image: &Image,
        (width, height): (usize, usize),
        filter: Filter,
        cancel: &CancelToken,
    ) -> Result<Self> {
        memory::ensure_elements(&[width, height, CHANNELS], 4, "a resized image")?;
        memory::ensure_elements(&[width, image.height(), CHANNELS], 4, "a resized image")?;
        let mut values = Vec::with_capacity(width * height * CHANNELS);
        let across = filter.windows(image.width(), width);
        let down = filter.windows(image.height(), height);
        for channel in 0..CHANNELS {
            cancel.check()?;
            let mut wide = Vec::with_capacity(width * image.height());
            for y in 0..image.height() {
                let row = &image.pixels()[y * image.width() * CHANNELS..];
                wide.extend(across.iter().map(|(first, weights)| {
                    let pixels = row.iter().skip(first * CHANNELS + channel);
                    let pixels = pixels.step_by(CHANNELS).zip(weights);
                    let sum: f64 = pixels.map(|(&byte, part)| f64::from(byte) * part).sum();
                    sum as f32
                }));
            }
            for (first, weights) in &down {
                for x in 0..width {
                    let column = weights.iter().zip(*first..);
                    let parts = column.map(|(part, y)| part * f64::from(wide[y * width + x]));
                    values.push(parts.sum::<f64>() as f32);
                }
            }
        }
        Ok(Self {
            width,
            height,
            values,
        })
    }

    pub fn clamped(mut self, least: f32, most: f32) -> Self {
        let values = self.values.iter_mut();
        values.for_each(|value| *value = value.clamp(least, most));
        self
    }

    /// The middle; where that is larger than the picture, the rest is black.
    pub fn centred(&self, width: usize, height: usize) -> Self {
        let place = |size: usize, wanted: usize| {
            let before = wanted.saturating_sub(size) / 2;
            let cut = size.saturating_sub(wanted) / 2;
            move |at: usize| (at + cut).checked_sub(before).filter(|&at| at < size)
        };
        let (column, row) = (place(self.width, width), place(self.height, height));
        let mut values = Vec::with_capacity(width * height * CHANNELS);
        for channel in 0..CHANNELS {
            for y in 0..height {
                for x in 0..width {
                    let found = row(y).zip(column(x));
                    values.push(found.map_or(0.0, |(y, x)| {
                        self.values[(channel * self.height + y) * self.width + x]
                    }));
                }
            }
        }
        Self {
            width,
            height,
            values,
        }
    }

    pub fn view(mut self, shift: [f32; CHANNELS], scale: [f32; CHANNELS]) -> View {
        let plane = (self.width * self.height).max(1);
        for (channel, values) in self.values.chunks_exact_mut(plane).enumerate() {
            for value in values {
                *value = (*value - shift[channel]) * scale[channel];
            }
        }
        View {
            width: self.width,
            height: self.height,
            values: self.values,
        }
    }
}

impl View {
    /// With zeros on all sides, until edges are multiples of this (DPT).
    pub fn in_multiples(self, edge: usize) -> Result<Self> {
        let (width, height) = (
            self.width.next_multiple_of(edge),
            self.height.next_multiple_of(edge),
        );
        let (left, top) = ((width - self.width) / 2, (height - self.height) / 2);
        self.within((width, height), (left, top))
    }

    /// With zeros around, at a place of a larger one.
    pub fn within(
        self,
        (width, height): (usize, usize),
        (left, top): (usize, usize),
    ) -> Result<Self> {
        if (width, height) == (self.width, self.height) {
            return Ok(self);
        }
        memory::ensure_elements(&[width, height, CHANNELS], 4, "the pixels of an image")?;
        let mut values = vec![0f32; width * height * CHANNELS];
        for (number, row) in self.values.chunks_exact(self.width.max(1)).enumerate() {
            let (channel, y) = (number / self.height, number % self.height);
            let start = (channel * height + top + y) * width + left;
            values[start..start + self.width].copy_from_slice(row);
        }
        Ok(Self {
            width,
            height,
            values,
        })
    }
}

/// A place beyond an edge is the one as far inside.
fn mirrored(at: isize, size: usize) -> usize {
    let period = 2 * (size as isize - 1);
    if period <= 0 {
        return 0;
    }
    let at = at.rem_euclid(period);
    at.min(period - at) as usize
}

/// Each row of `from` places as `to`: a Gauss filter where there become fewer, and linear interpolation.
fn row_weights(from: usize, to: usize) -> Vec<Vec<(usize, f64)>> {
    let factor = from as f64 / to as f64;
    let sigma = ((factor - 1.0) / 2.0).max(0.0);
    let radius = (4.0 * sigma + 0.5) as isize;
    let bell = |x: isize| (-0.5 * (x * x) as f64 / (sigma * sigma)).exp();
    let kernel: Vec<f64> = if sigma > 1e-15 {
        (-radius..=radius).map(bell).collect()
    } else {
        vec![1.0]
    };
    let sum: f64 = kernel.iter().sum();
    let reach = kernel.len() as isize / 2;
    let place = |at: usize| {
        let centre = (at as f64 + 0.5) * factor - 0.5;
        let below = centre.floor();
        let part = centre - below;
        let mut weights = Vec::with_capacity(2 * kernel.len());
        for (at, share) in [(below as isize, 1.0 - part), (below as isize + 1, part)] {
            let at = mirrored(at, from) as isize;
            weights.extend(kernel.iter().enumerate().map(|(tap, weight)| {
                (
                    mirrored(at + tap as isize - reach, from),
                    share * weight / sum,
                )
            }));
        }
        weights
    };
    (0..to).map(place).collect()
}

impl Planes {
    /// The bytes of a picture in another size, smoothed first where it becomes smaller (OWLv2).
    pub fn smoothed(
        image: &Image,
        (width, height): (usize, usize),
        cancel: &CancelToken,
    ) -> Result<Self> {
        memory::ensure_elements(&[width, height, CHANNELS], 4, "a resized image")?;
        memory::ensure_elements(&[width, image.height(), CHANNELS], 8, "a resized image")?;
        let across = row_weights(image.width(), width);
        let down = row_weights(image.height(), height);
        let mut values = Vec::with_capacity(width * height * CHANNELS);
        for channel in 0..CHANNELS {
            cancel.check()?;
            let mut wide = Vec::with_capacity(width * image.height());
            for y in 0..image.height() {
                let row = &image.pixels()[y * image.width() * CHANNELS..];
                let byte = |x: usize| f64::from(row[x * CHANNELS + channel]);
                wide.extend(
                    across.iter().map(|weights| {
                        weights.iter().map(|&(x, part)| byte(x) * part).sum::<f64>()
                    }),
                );
            }
            for weights in &down {
                values.extend((0..width).map(|x| {
                    let parts = weights.iter().map(|&(y, part)| wide[y * width + x] * part);
                    parts.sum::<f64>() as f32
                }));
            }
        }
        Ok(Self {
            width,
            height,
            values,
        })
    }
}
