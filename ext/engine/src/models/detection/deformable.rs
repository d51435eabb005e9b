//! Attention to some places around a point: each query says where, and how much of each.

use candle_core::{DType, Device, Tensor};

use crate::models::modules::Modules;
use crate::nn::{Inventory, Linear};
use crate::{Error, Result};

#[derive(Debug)]
pub struct Deformable {
    offsets: Linear,
    weights: Linear,
    /// `None` where places stand for themselves (D-FINE).
    value: Option<Linear>,
    output: Option<Linear>,
    heads: usize,
    /// The part of an offset that counts for each point: one of as many as its level has, unless the file says it.
    shares: Vec<f32>,
    settings: Settings,
}

/// How places are found.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many places of each level.
    pub points: Vec<usize>,
    /// Of offsets, beside the size of the box and the number of places.
    pub scale: f32,
    /// The nearest place instead of a mean of four.
    pub nearest: bool,
}

impl Settings {
    fn shares(&self) -> Vec<f32> {
        let levels = self.points.iter();
        levels
            .flat_map(|&points| std::iter::repeat_n(1.0 / points as f32, points))
            .collect()
    }
}

/// The maps of all levels end to end.
pub struct Levels {
    /// [places, width]
    pub rows: Tensor,
    /// (height, width) of each.
    pub sizes: Vec<(usize, usize)>,
}

impl Deformable {
    pub fn load(
        modules: &Modules<'_>,
        (width, heads): (usize, usize),
        settings: Settings,
    ) -> Result<Self> {
        super::attention::check_heads(modules, width, heads)?;
        let points: usize = settings.points.iter().sum::<usize>() * heads;
        let shares = match ["n_points_scale", "num_points_scale"]
            .into_iter()
            .find(|name| modules.has(name))
        {
            Some(name) => modules.values(name)?,
            None => settings.shares(),
        };
        if shares.len() * heads != points {
            return Err(modules.corrupt(format!(
                "{} has {} shares for {} points",
                modules.path(),
                shares.len(),
                points / heads
            )));
        }
        let own = |name: &str| -> Result<Option<Linear>> {
            let linear = modules.has(name);
            let linear = linear.then(|| modules.sized_linear(name, width, width));
            linear.transpose()
        };
        Ok(Self {
            offsets: modules.sized_linear("sampling_offsets", width, 2 * points)?,
            weights: modules.sized_linear("attention_weights", width, points)?,
            value: own("value_proj")?,
            output: own("output_proj")?,
            heads,
            shares,
            settings,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        [&self.offsets, &self.weights]
            .into_iter()
            .chain(&self.value)
            .chain(&self.output)
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    /// `queries` know their places; `boxes` are the centre and the size of each: [queries, width].
    pub fn forward(&self, queries: &Tensor, boxes: &[[f32; 4]], levels: &Levels) -> Result<Tensor> {
        let values = match &self.value {
            Some(linear) => linear.forward(&levels.rows)?,
            None => levels.rows.clone(),
        };
        let (places, width) = values.dims2()?;
        let size = width / self.heads;
        let count = boxes.len();
        let offsets = numbers(&self.offsets.forward(queries)?)?;
        let points: usize = self.settings.points.iter().sum();
        let weights = self.weights.forward(queries)?;
        let weights = weights.reshape((count * self.heads, points))?;
        let weights = numbers(&kernels::softmax(&weights)?)?;
        let taps = if self.settings.nearest { 1 } else { 4 };
        let mut rows = Vec::with_capacity(count * self.heads * points * taps);
        let mut parts = Vec::with_capacity(rows.capacity());
        let each = offsets.chunks_exact(2).zip(&weights).enumerate();
        for (number, (offset, &weight)) in each {
            let (row, point) = (number / points, number % points);
            let (query, head) = (row / self.heads, row % self.heads);
            let (level, start) = self.level(point, &levels.sizes)?;
            let centre = boxes[query];
            let at = [0, 1].map(|axis| {
                let share = self.shares[point];
                let reach = offset[axis] * share * centre[2 + axis] * self.settings.scale;
                centre[axis] + reach
            });
            let mut take = |place: Option<usize>, part: f32| {
                // What lies outside adds nothing.
                let row = place.map_or(0, |place| start + place) * self.heads + head;
                rows.push(row as u32);
                parts.push(if place.is_some() { part * weight } else { 0.0 });
            };
            if self.settings.nearest {
                take(Some(nearest(at, level)), 1.0);
            } else {
                around(at, level)
                    .into_iter()
                    .for_each(|(place, part)| take(place, part));
            }
        }
        let device = values.device();
        let values = values.contiguous()?.reshape((places * self.heads, size))?;
        let number = rows.len();
        let seen = values.index_select(&Tensor::from_vec(rows, number, device)?, 0)?;
        let seen = seen.reshape((count * self.heads, points * taps, size))?;
        let parts = Tensor::from_vec(parts, (count * self.heads, 1, points * taps), device)?;
        let mixed = parts.to_dtype(seen.dtype())?.matmul(&seen)?;
        let mixed = mixed.reshape((count, width))?;
        match &self.output {
            Some(linear) => linear.forward(&mixed),
            None => Ok(mixed),
        }
    }

    /// The level of a point: its size, and where its places begin.
    fn level(&self, point: usize, sizes: &[(usize, usize)]) -> Result<((usize, usize), usize)> {
        let (mut first, mut start) = (0, 0);
        for (&points, &size) in self.settings.points.iter().zip(sizes) {
            if point < first + points {
                return Ok((size, start));
            }
            first += points;
            start += size.0 * size.1;
        }
        Err(Error::Internal(format!("point {point} is on no level")))
    }
}

/// The four places around a point between 0 and 1, and how much each counts.
fn around([x, y]: [f32; 2], (height, width): (usize, usize)) -> [(Option<usize>, f32); 4] {
    // As grid_sample computes it: places count from the middle of the first one.
    let along = |at: f32, count: usize| ((2.0 * at - 1.0 + 1.0) * count as f32 - 1.0) / 2.0;
    let (x, y) = (along(x, width), along(y, height));
    let (left, top) = (x.floor(), y.floor());
    let (right, below) = (x - left, y - top);
    let place = |x: f32, y: f32| {
        let inside = x >= 0.0 && y >= 0.0 && x < width as f32 && y < height as f32;
        inside.then(|| y as usize * width + x as usize)
    };
    [
        (place(left, top), (1.0 - right) * (1.0 - below)),
        (place(left + 1.0, top), right * (1.0 - below)),
        (place(left, top + 1.0), (1.0 - right) * below),
        (place(left + 1.0, top + 1.0), right * below),
    ]
}

fn nearest([x, y]: [f32; 2], (height, width): (usize, usize)) -> usize {
    let along = |at: f32, count: usize| {
        let place = (at * count as f32 + 0.5) as i64;
        place.clamp(0, count as i64 - 1) as usize
    };
    along(y, height) * width + along(x, width)
}

/// In f32, on the CPU.
pub fn numbers(x: &Tensor) -> Result<Vec<f32>> {
    let x = x.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
    Ok(x.flatten_all()?.to_vec1()?)
}
