//! The positions of patches: a table for one grid, and for other grids resized.

use candle_core::{DType, Device, Tensor};

use super::config::{GridPositions, VisionConfig};
use super::misfit;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::elementwise;
use crate::{Error, Result};
use base::runtime::memory;
use formats::image::Filter;

#[derive(Debug)]
pub struct GridTable {
    /// [rows · columns, width], row by row.
    values: Vec<f32>,
    columns: usize,
    rows: usize,
    width: usize,
    kind: GridPositions,
}

/// What is added to the tokens of a picture: to those before the patches, and to the patches.
#[derive(Debug)]
pub struct Table {
    pub leading: Option<Tensor>,
    pub grid: GridTable,
}

/// The positions of patches, and the tokens before them with their own.
pub fn load(
    config: &VisionConfig,
    parameters: &Parameters<'_>,
) -> Result<(Option<GridTable>, Option<Tensor>)> {
    let hidden = config.encoder.hidden_size;
    if config.positions == GridPositions::Rotary {
        return Ok((None, None));
    }
    let positions = rows(parameters, Part::PositionEmbedding, hidden)?;
    let class = if parameters.has(Part::ClassToken) {
        Some(rows(parameters, Part::ClassToken, hidden)?)
    } else {
        None
    };
    let mut leading: Vec<Tensor> = class.into_iter().collect();
    if parameters.has(Part::SecondToken) && !leading.is_empty() {
        leading.push(rows(parameters, Part::SecondToken, hidden)?);
    }
    let positions = match (config.positions, positions.dim(0)?) {
        (GridPositions::FixedTokensLast, count) if count > leading.len() => {
            let patches = count - leading.len();
            let last = positions.narrow(0, patches, leading.len())?;
            Tensor::cat(&[last, positions.narrow(0, 0, patches)?], 0)?
        }
        _ => positions,
    };
    let table = table(config, parameters, &positions, leading.len())?;
    if let Some(finders) = config.finders {
        let tokens = rows(parameters, Part::FinderTokens, hidden)?;
        if tokens.dim(0)? != finders.count {
            return Err(parameters.misfit(Part::FinderTokens, &[finders.count, hidden]));
        }
        leading.push(tokens);
    }
    let mut leading = match (&leading[..], &table.leading) {
        ([], _) | (_, None) => Vec::new(),
        (tokens, Some(positions)) => {
            vec![elementwise::add(&Tensor::cat(tokens, 0)?, positions)?]
        }
    };
    if parameters.has(Part::RegisterTokens) && !leading.is_empty() {
        leading.push(rows(parameters, Part::RegisterTokens, hidden)?);
    }
    let leading = if leading.is_empty() {
        None
    } else {
        Some(Tensor::cat(&leading, 0)?)
    };
    Ok((Some(table.grid), leading))
}

/// What is added behind every layer but the last, where the configuration says so.
pub fn later(config: &VisionConfig, parameters: &Parameters<'_>) -> Result<Vec<Table>> {
    if !config
        .finders
        .is_some_and(|finders| finders.later_positions)
    {
        return Ok(Vec::new());
    }
    let hidden = config.encoder.hidden_size;
    let rows = rows(parameters, Part::LaterPositions, hidden)?;
    let count = config.encoder.layers.len().saturating_sub(1);
    let all = rows.dim(0)?;
    if count == 0 || !all.is_multiple_of(count) {
        return Err(misfit(
            parameters,
            format!("{all} positions are not those of {count} layers"),
        ));
    }
    let each = all / count;
    (0..count)
        .map(|layer| table(config, parameters, &rows.narrow(0, layer * each, each)?, 1))
        .collect()
}

/// A table of `first` tokens, patches and detection tokens.
fn table(
    config: &VisionConfig,
    parameters: &Parameters<'_>,
    all: &Tensor,
    first: usize,
) -> Result<Table> {
    let count = all.dim(0)?;
    let last = config.finders.map_or(0, |finders| finders.count);
    let patches = count.saturating_sub(first + last);
    let edge = patches.isqrt();
    let (columns, rows) = config.finders.map_or((edge, edge), |finders| finders.grid);
    if patches == 0 || columns.checked_mul(rows) != Some(patches) {
        let grid = match config.finders {
            Some(_) => format!("{columns}x{rows} patches"),
            None => "a square of patches".to_owned(),
        };
        return Err(misfit(
            parameters,
            format!("a table of {count} positions is not that of {grid}"),
        ));
    }
    let mut leading = Vec::new();
    for (start, count) in [(0, first), (first + patches, last)] {
        if count > 0 {
            leading.push(all.narrow(0, start, count)?);
        }
    }
    let leading = if leading.is_empty() {
        None
    } else {
        Some(Tensor::cat(&leading, 0)?)
    };
    let grid = all.narrow(0, first, patches)?.to_device(&Device::Cpu)?;
    Ok(Table {
        leading,
        grid: GridTable {
            values: grid.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?,
            columns,
            rows,
            width: config.encoder.hidden_size,
            kind: config.positions,
        },
    })
}

/// A tensor of rows of one width, whatever dimensions of 1 stand around them.
fn rows(parameters: &Parameters<'_>, part: Part, width: usize) -> Result<Tensor> {
    let shape = parameters.shape(part)?;
    let elements: usize = shape.iter().product();
    if shape.last() != Some(&width) || elements == 0 {
        return Err(parameters.misfit(part, &[width]));
    }
    Ok(parameters
        .tensor(part)?
        .reshape((elements / width, width))?)
}

impl GridTable {
    /// `values` are [rows · columns, width], row by row; the grid is (columns, rows).
    pub fn new(
        values: Vec<f32>,
        (columns, rows): (usize, usize),
        width: usize,
        kind: GridPositions,
    ) -> Self {
        Self {
            values,
            columns,
            rows,
            width,
            kind,
        }
    }

    /// The positions of images of these (columns, rows), one image after the other.
    pub fn rows(&self, grids: &[(usize, usize)], device: &Device, dtype: DType) -> Result<Tensor> {
        let mut values = Vec::new();
        let mut known: Vec<((usize, usize), Vec<f32>)> = Vec::new();
        for &grid in grids {
            let found = match known.iter().position(|(other, _)| *other == grid) {
                Some(found) => found,
                None => {
                    known.push((grid, self.resized(grid)?));
                    known.len() - 1
                }
            };
            values.extend_from_slice(&known[found].1);
        }
        let shape = (values.len() / self.width, self.width);
        Ok(Tensor::from_vec(values, shape, device)?.to_dtype(dtype)?)
    }

    fn resized(&self, (columns, rows): (usize, usize)) -> Result<Vec<f32>> {
        let same = (columns, rows) == (self.columns, self.rows);
        if same && self.kind != GridPositions::Buckets {
            return Ok(self.values.clone());
        }
        let taps: fn(usize, usize) -> Vec<Taps> = match self.kind {
            GridPositions::Bicubic => cubic,
            GridPositions::LinearCorners => corners,
            GridPositions::Buckets => buckets,
            GridPositions::SmoothBicubic => |from, to| smooth(from, to, Filter::Bicubic),
            GridPositions::SmoothLinear => |from, to| smooth(from, to, Filter::Bilinear),
            GridPositions::Fixed | GridPositions::FixedTokensLast | GridPositions::Rotary => {
                return Err(Error::InvalidInput(format!(
                    "the image became {columns}x{rows} patches, and the model has positions for {}x{}: its \
                     preprocessor_config.json belongs to another model",
                    self.columns, self.rows
                )));
            }
        };
        let larger = self.rows.max(rows);
        memory::ensure_elements(
            &[larger, columns, self.width],
            8,
            "the positions of an image",
        )?;
        let (across, down) = (taps(self.columns, columns), taps(self.rows, rows));
        let mut wide = vec![0f32; self.rows * columns * self.width];
        for (number, row) in wide.chunks_exact_mut(self.width).enumerate() {
            let (y, x) = (number / columns, number % columns);
            for &(from, weight) in &across[x] {
                self.add(&self.values, y * self.columns + from, weight, row);
            }
        }
        let mut result = vec![0f32; rows * columns * self.width];
        for (number, row) in result.chunks_exact_mut(self.width).enumerate() {
            let (y, x) = (number / columns, number % columns);
            for &(from, weight) in &down[y] {
                self.add(&wide, from * columns + x, weight, row);
            }
        }
        Ok(result)
    }

    fn add(&self, values: &[f32], number: usize, weight: f32, row: &mut [f32]) {
        let source = &values[number * self.width..][..self.width];
        for (sum, value) in row.iter_mut().zip(source) {
            *sum += weight * value;
        }
    }
}

/// Which points make a new one, and how much of each.
pub type Taps = Vec<(usize, f32)>;

/// Four neighbours; beyond the edges the last point goes on.
pub fn cubic(from: usize, to: usize) -> Vec<Taps> {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let scale = from as f32 / to as f32;
    let point = |place: usize| {
        let centre = scale * (place as f32 + 0.5) - 0.5;
        let below = centre.floor();
        let t = centre - below;
        let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
        let at = |offset: usize| {
            let index = below as isize - 1 + offset as isize;
            index.clamp(0, from as isize - 1) as usize
        };
        weights
            .into_iter()
            .enumerate()
            .map(|(offset, weight)| (at(offset), weight))
            .collect()
    };
    (0..to).map(point).collect()
}

/// Two neighbours; the first and the last new point are the first and the last old one.
fn corners(from: usize, to: usize) -> Vec<Taps> {
    let last = to.saturating_sub(1).max(1) as f32;
    let point = |place: usize| {
        let at = place as f32 * (from - 1) as f32 / last;
        let below = (at as usize).min(from - 1);
        let part = at - below as f32;
        vec![(below, 1.0 - part), ((below + 1).min(from - 1), part)]
    };
    (0..to).map(point).collect()
}

/// The one that a place lies in, as the reference counts it: in 32 bits.
fn buckets(from: usize, to: usize) -> Vec<Taps> {
    let step = 1.0 / to as f32;
    let bounds = bounds(from);
    let point = |place: usize| {
        let at = (place as f32 * step).min(1.0 - 1e-6);
        let bucket = bounds.partition_point(|bound| *bound <= at);
        vec![(bucket.min(from - 1), 1.0)]
    };
    (0..to).map(point).collect()
}

/// For each of `to` places the one of `from` that its beginning lies in (MiniCPM-V).
pub fn nearest(from: usize, to: usize) -> Vec<u32> {
    let bounds = bounds(from);
    let place = |place: usize| {
        let at = place as f32 / to as f32;
        let bucket = bounds.partition_point(|bound| *bound <= at);
        bucket.min(from.saturating_sub(1)) as u32
    };
    (0..to).map(place).collect()
}

/// Where the places of a table but the first begin, between 0 and 1.
fn bounds(from: usize) -> Vec<f32> {
    let width = 1.0 / from as f64;
    let count = ((1.0 - width) / width).ceil() as usize;
    // torch counts in vectors of eight, two at a time, each from a number of 32 bits, and what is left one by one.
    let bound = |at: usize| {
        let first = if at < count / 16 * 16 { at / 8 * 8 } else { at };
        let base = (width + width * first as f64) as f32;
        (f64::from(base) + width * (at - first) as f64) as f32
    };
    (0..count).map(bound).collect()
}

/// All points within reach of the new one, as pictures are resized.
fn smooth(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
    let windows = filter.windows(from, to);
    let taps = |(first, weights): (usize, Vec<f64>)| {
        let weights = weights.into_iter().enumerate();
        weights
            .map(|(at, weight)| (first + at, weight as f32))
            .collect()
    };
    windows.into_iter().map(taps).collect()
}
