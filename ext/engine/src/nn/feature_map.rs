//! Channels at the places of a grid.

use candle_core::{DType, Device, Tensor};

use super::elementwise;
use super::joined::joined;
use crate::{Error, Result};
use formats::image::{View, CHANNELS};
use kernels::cpu::maps::{activated_sum, interleaved, mixed_rows, Corners};
use kernels::cpu::windows::{largest_of_windows, Windows};

#[derive(Clone, Debug)]
pub struct FeatureMap {
    /// [height · width, channels], row by row from the top.
    pub rows: Tensor,
    pub height: usize,
    pub width: usize,
}

/// What becomes of the places under a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    Max,
    Mean,
}

/// A square window that moves over a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub kernel: usize,
    pub stride: usize,
    /// On every side.
    pub padding: usize,
    /// How far places of the window lie apart.
    pub dilation: usize,
    /// Whether a window that reaches beyond the end counts.
    pub beyond: bool,
}

impl Window {
    pub fn new(kernel: usize, stride: usize, padding: usize) -> Self {
        Self {
            kernel,
            stride,
            padding,
            dilation: 1,
            beyond: false,
        }
    }

    /// How many windows there are over so many places.
    pub fn count(&self, places: usize) -> usize {
        let padded = places + 2 * self.padding;
        let reach = (self.kernel - 1) * self.dilation + 1;
        let Some(room) = padded.checked_sub(reach) else {
            return usize::from(self.beyond && places > 0);
        };
        if self.beyond {
            let count = room.div_ceil(self.stride) + 1;
            // The last one must begin on the map.
            let begins = (count - 1) * self.stride < places + self.padding;
            count - usize::from(!begins)
        } else {
            room / self.stride + 1
        }
    }

    /// As kernels take it.
    pub fn over(&self, map: &FeatureMap) -> Windows {
        Windows {
            height: map.height,
            width: map.width,
            kernel: self.kernel,
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
            down: self.count(map.height),
            across: self.count(map.width),
        }
    }

    /// For each window of `windows` (counted row by row), the row of each of its places; `outside` where
    /// that is not on the map.
    pub fn rows(
        &self,
        map: &FeatureMap,
        windows: std::ops::Range<usize>,
        outside: u32,
    ) -> Vec<u32> {
        let across = self.count(map.width).max(1);
        let mut rows = Vec::with_capacity(windows.len() * self.kernel * self.kernel);
        for window in windows {
            let (top, left) = (window / across * self.stride, window % across * self.stride);
            let steps = (0..self.kernel).map(|step| step * self.dilation);
            for y in steps.clone().map(|step| top + step) {
                for x in steps.clone().map(|step| left + step) {
                    let place = (y.checked_sub(self.padding), x.checked_sub(self.padding));
                    rows.push(match place {
                        (Some(y), Some(x)) if y < map.height && x < map.width => {
                            (y * map.width + x) as u32
                        }
                        _ => outside,
                    });
                }
            }
        }
        rows
    }
}

/// For each new place: the two old ones around it, and the share of the second.
type Between = fn(usize, usize) -> Vec<(usize, usize, f32)>;

/// The same where the first and the last place stay where they are (`align_corners`).
pub fn between_corners(from: usize, to: usize) -> Vec<(usize, usize, f32)> {
    let last = from.saturating_sub(1);
    let scale = last as f32 / to.saturating_sub(1).max(1) as f32;
    let place = |at: usize| {
        let at = scale * at as f32;
        let first = (at as usize).min(last);
        (first, (first + 1).min(last), at - first as f32)
    };
    (0..to).map(place).collect()
}

/// For each of `to` places the two of `from` that it lies between, and how near it is to the second.
pub fn between(from: usize, to: usize) -> Vec<(usize, usize, f32)> {
    let scale = from as f32 / to as f32;
    let last = from.saturating_sub(1);
    let place = |at: usize| {
        let centre = (scale * (at as f32 + 0.5) - 0.5).max(0.0);
        let first = (centre as usize).min(last);
        (first, (first + 1).min(last), centre - first as f32)
    };
    (0..to).map(place).collect()
}

impl FeatureMap {
    pub fn new(rows: Tensor, (height, width): (usize, usize)) -> Result<Self> {
        if rows.dims().first() != Some(&(height * width)) || rows.rank() != 2 {
            return Err(Error::Internal(format!(
                "rows {:?} are not the places of a map of {height}x{width}",
                rows.dims()
            )));
        }
        Ok(Self {
            rows,
            height,
            width,
        })
    }

    /// The red, green and blue of a picture.
    pub fn of_view(view: &View, (device, dtype): (&Device, DType)) -> Result<Self> {
        let places = view.width * view.height;
        let rows = interleaved(&view.values, CHANNELS);
        let rows = Tensor::from_vec(rows, (places, CHANNELS), &Device::Cpu)?.to_device(device)?;
        Self::new(rows.to_dtype(dtype)?, (view.height, view.width))
    }

    pub fn size(&self) -> (usize, usize) {
        (self.height, self.width)
    }

    pub fn channels(&self) -> Result<usize> {
        Ok(self.rows.dim(1)?)
    }

    /// Other rows for the same places.
    pub fn with(&self, rows: Tensor) -> Result<Self> {
        Self::new(rows, self.size())
    }

    /// The sum of two maps of one size.
    pub fn add(&self, other: &Self) -> Result<Self> {
        self.check_size(other)?;
        self.with(elementwise::add(&self.rows, &other.rows)?)
    }

    /// activation(self + other).
    pub fn add_activated(&self, other: &Self, activation: kernels::Activation) -> Result<Self> {
        self.check_size(other)?;
        match activated_sum(&self.rows, &other.rows, activation)? {
            Some(rows) => self.with(rows),
            None => self.add(other)?.activated(activation),
        }
    }

    /// scale · x + shift.
    pub fn affine(&self, scale: f32, shift: f32) -> Result<Self> {
        let shift = Tensor::new(shift, self.rows.device())?.to_dtype(self.rows.dtype())?;
        let scaled = elementwise::scale(&self.rows, scale)?;
        self.with(elementwise::add(&scaled, &shift)?)
    }

    pub fn activated(&self, activation: kernels::Activation) -> Result<Self> {
        self.with(kernels::activate(&self.rows, activation)?)
    }

    /// The channels of several maps of one size side by side.
    pub fn join(maps: &[Self]) -> Result<Self> {
        let first = maps
            .first()
            .ok_or_else(|| Error::Internal("no maps to join".into()))?;
        maps.iter().try_for_each(|map| first.check_size(map))?;
        first.with(joined(
            maps.iter().map(|map| map.rows.clone()).collect(),
            1,
        )?)
    }

    pub fn narrow(&self, start: usize, count: usize) -> Result<Self> {
        let rows = self.rows.narrow(1, start, count)?;
        self.with(rows.contiguous()?)
    }

    fn check_size(&self, other: &Self) -> Result<()> {
        if self.size() == other.size() {
            return Ok(());
        }
        Err(Error::InvalidInput(format!(
            "the image became maps of {:?} and {:?} places, which do not fit each other: its preprocessor_config.json \
             belongs to another model",
            self.size(),
            other.size()
        )))
    }

    /// With zeros to the right and below.
    pub fn padded(&self, right: usize, below: usize) -> Result<Self> {
        self.framed([0, right, 0, below])
    }

    /// With zeros to the left, to the right, above and below.
    pub fn framed(&self, [left, right, above, below]: [usize; 4]) -> Result<Self> {
        if left + right + above + below == 0 {
            return Ok(self.clone());
        }
        let (height, width) = (above + self.height + below, left + self.width + right);
        let outside = self.height * self.width;
        let mut rows = Vec::with_capacity(height * width);
        for y in 0..height {
            for x in 0..width {
                let place = y.checked_sub(above).zip(x.checked_sub(left));
                rows.push(match place {
                    Some((y, x)) if y < self.height && x < self.width => y * self.width + x,
                    _ => outside,
                } as u32);
            }
        }
        Self::new(self.picked(rows, 0.0)?, (height, width))
    }

    /// The first rows and columns.
    pub fn cut(&self, (height, width): (usize, usize)) -> Result<Self> {
        let (height, width) = (height.min(self.height), width.min(self.width));
        if (height, width) == self.size() {
            return Ok(self.clone());
        }
        let place = |at: usize| (at / width * self.width + at % width) as u32;
        let rows: Vec<u32> = (0..height * width).map(place).collect();
        Self::new(self.picked(rows, 0.0)?, (height, width))
    }

    /// Every place twice as wide and as high.
    pub fn doubled(&self) -> Result<Self> {
        let (height, width) = (2 * self.height, 2 * self.width);
        let place = |at: usize| (at / width / 2 * self.width + at % width / 2) as u32;
        let rows: Vec<u32> = (0..height * width).map(place).collect();
        Self::new(self.picked(rows, 0.0)?, (height, width))
    }

    /// Of another size: new places are means of those around (`align_corners` false).
    pub fn stretched(&self, size: (usize, usize)) -> Result<Self> {
        self.resized(size, between)
    }

    /// The same where the corners stay where they are (`align_corners` true).
    pub fn stretched_corners(&self, size: (usize, usize)) -> Result<Self> {
        self.resized(size, between_corners)
    }

    fn resized(&self, (height, width): (usize, usize), between: Between) -> Result<Self> {
        if self.size() == (height, width) {
            return Ok(self.clone());
        }
        let (across, down) = (between(self.width, width), between(self.height, height));
        let mut corners: Vec<Corners> = Vec::with_capacity(height * width);
        for &(top, below, lower) in &down {
            corners.extend(across.iter().map(|&(left, right, later)| {
                let row = |y: usize, x: usize| (y * self.width + x) as u32;
                [
                    (row(top, left), (1.0 - lower) * (1.0 - later)),
                    (row(top, right), (1.0 - lower) * later),
                    (row(below, left), lower * (1.0 - later)),
                    (row(below, right), lower * later),
                ]
            }));
        }
        if let Some(rows) = mixed_rows(&self.rows, &corners)? {
            return Self::new(rows, (height, width));
        }
        // In f32, so that numbers of 16 bits are rounded once.
        let mut sum: Option<Tensor> = None;
        for corner in 0..4 {
            let of_corner = corners.iter().map(|all| all[corner]);
            let (rows, parts): (Vec<u32>, Vec<f32>) = of_corner.unzip();
            let parts = Tensor::from_vec(parts, (height * width, 1), self.rows.device())?;
            let seen = self.picked(rows, 0.0)?.to_dtype(DType::F32)?;
            let seen = elementwise::multiply(&seen, &parts)?;
            sum = Some(match sum {
                Some(sum) => elementwise::add(&sum, &seen)?,
                None => seen,
            });
        }
        let rows = sum.ok_or_else(|| Error::Internal("a place without corners".into()))?;
        Self::new(rows.to_dtype(self.rows.dtype())?, (height, width))
    }

    /// Rows by number; the one behind the last is filled.
    pub fn picked(&self, rows: Vec<u32>, filling: f64) -> Result<Tensor> {
        let outside = (self.height * self.width) as u32;
        let device = self.rows.device();
        let source = if rows.contains(&outside) {
            let filled = Tensor::full(filling as f32, (1, self.channels()?), device)?;
            let filled = filled.to_dtype(self.rows.dtype())?;
            Tensor::cat(&[&self.rows, &filled], 0)?
        } else {
            self.rows.contiguous()?
        };
        let count = rows.len();
        Ok(source.index_select(&Tensor::from_vec(rows, count, device)?, 0)?)
    }

    /// The largest or the mean of what each window sees.
    pub fn pooled(&self, window: Window, pooling: Pooling) -> Result<Self> {
        let (height, width) = (window.count(self.height), window.count(self.width));
        if pooling == Pooling::Max {
            if let Some(rows) = largest_of_windows(&self.rows, &window.over(self))? {
                return Self::new(rows, (height, width));
            }
        }
        let outside = (self.height * self.width) as u32;
        let places = window.rows(self, 0..height * width, outside);
        let size = window.kernel * window.kernel;
        let mut result: Option<Tensor> = None;
        for tap in 0..size {
            let rows: Vec<u32> = places.iter().skip(tap).step_by(size).copied().collect();
            let seen = match pooling {
                Pooling::Max => self.picked(rows, f64::from(f32::MIN))?,
                Pooling::Mean => self.picked(rows, 0.0)?.to_dtype(DType::F32)?,
            };
            result = Some(match (result, pooling) {
                (None, _) => seen,
                (Some(most), Pooling::Max) => most.maximum(&seen)?,
                (Some(sum), Pooling::Mean) => elementwise::add(&sum, &seen)?,
            });
        }
        let rows = result.ok_or_else(|| Error::Internal("a window without places".into()))?;
        let rows = match pooling {
            Pooling::Max => rows,
            Pooling::Mean => {
                // Only places on the map count.
                let counts: Vec<f32> = places
                    .chunks(size)
                    .map(|seen| seen.iter().filter(|&&row| row != outside).count())
                    .map(|count| 1.0 / count.max(1) as f32)
                    .collect();
                let counts = Tensor::from_vec(counts, (height * width, 1), rows.device())?;
                elementwise::multiply(&rows, &counts)?.to_dtype(self.rows.dtype())?
            }
        };
        Self::new(rows, (height, width))
    }

    /// The mean of all places: [channels].
    pub fn mean(&self) -> Result<Tensor> {
        let end = (self.height * self.width) as u32;
        let mean = kernels::mean_pool(&self.rows.contiguous()?, &[0, end])?;
        Ok(mean.squeeze(0)?.to_dtype(self.rows.dtype())?)
    }
}
