//! Attention to some places around a point: each query says where, and how much of each.

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

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
    pub reach: Reach,
    /// The nearest place instead of a mean of four.
    pub nearest: bool,
}

/// What an offset is a part of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    /// So many times the box of the query, divided by the number of places.
    Box(f32),
    /// One place of the level.
    Place,
}

/// So many numbers are laid out at once where the device picks rows.
const MOST_ELEMENTS: usize = 1 << 23;

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
        let points = self.shares.len();
        let weights = self.weights.forward(queries)?;
        let weights = weights.reshape((boxes.len() * self.heads, points))?;
        let points = (0..points).map(|point| self.level(point, &levels.sizes));
        let sampling = Sampling {
            own: self,
            offsets: numbers(&self.offsets.forward(queries)?)?,
            weights: numbers(&kernels::softmax(&weights)?)?,
            boxes,
            points: points.collect::<Result<_>>()?,
        };
        let mixed = match values.device() {
            Device::Cpu => sampling.mixed(&values)?,
            _ => sampling.picked(&values)?,
        };
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

/// What the queries of one call look at.
struct Sampling<'a> {
    own: &'a Deformable,
    /// [queries · heads · points, 2]
    offsets: Vec<f32>,
    /// [queries · heads, points]
    weights: Vec<f32>,
    boxes: &'a [[f32; 4]],
    /// The level of each point: its size, and where its places begin.
    points: Vec<((usize, usize), usize)>,
}

impl Sampling<'_> {
    /// The places that a head of a query looks at, and how much each counts; those outside of the map are left out.
    fn each(&self, query: usize, head: usize, mut take: impl FnMut(usize, f32)) {
        let settings = &self.own.settings;
        let first = (query * self.own.heads + head) * self.points.len();
        let centre = self.boxes[query];
        for (point, &(size, start)) in self.points.iter().enumerate() {
            let offset = &self.offsets[2 * (first + point)..][..2];
            let weight = self.weights[first + point];
            let at = [0, 1].map(|axis| match settings.reach {
                Reach::Box(scale) => {
                    let share = self.own.shares[point];
                    centre[axis] + offset[axis] * share * centre[2 + axis] * scale
                }
                Reach::Place => centre[axis] + offset[axis] / [size.1, size.0][axis] as f32,
            });
            if settings.nearest {
                take(start + nearest(at, size), weight);
                continue;
            }
            for (place, part) in around(at, size) {
                if let Some(place) = place {
                    take(start + place, part * weight);
                }
            }
        }
    }

    /// [queries, width] of [places, width], on the CPU.
    fn mixed(&self, values: &Tensor) -> Result<Tensor> {
        let width = values.dim(1)?;
        let size = width / self.own.heads;
        let rows = numbers(values)?;
        let mut mixed = vec![0f32; self.boxes.len() * width];
        let queries = mixed.par_chunks_mut(width.max(1)).enumerate();
        queries.for_each(|(query, row)| {
            for (head, sum) in row.chunks_mut(size.max(1)).enumerate() {
                self.each(query, head, |place, part| {
                    let seen = &rows[place * width + head * size..][..size];
                    sum.iter_mut()
                        .zip(seen)
                        .for_each(|(sum, x)| *sum += part * x);
                });
            }
        });
        let mixed = Tensor::from_vec(mixed, (self.boxes.len(), width), values.device())?;
        Ok(mixed.to_dtype(values.dtype())?)
    }

    /// The same on other devices, which pick rows and multiply them.
    fn picked(&self, values: &Tensor) -> Result<Tensor> {
        let (places, width) = values.dims2()?;
        let (heads, size) = (self.own.heads, width / self.own.heads);
        let taps = self.points.len() * if self.own.settings.nearest { 1 } else { 4 };
        let values = values.contiguous()?.reshape((places * heads, size))?;
        let most = (MOST_ELEMENTS / (heads * taps * size).max(1)).max(1);
        let all: Vec<usize> = (0..self.boxes.len()).collect();
        let mut parts = Vec::with_capacity(all.len().div_ceil(most));
        for queries in all.chunks(most) {
            let groups = queries.len() * heads;
            let mut rows = Vec::with_capacity(groups * taps);
            let mut shares = Vec::with_capacity(groups * taps);
            for group in 0..groups {
                let (query, head) = (queries[group / heads], group % heads);
                self.each(query, head, |place, part| {
                    rows.push((place * heads + head) as u32);
                    shares.push(part);
                });
                // What lies outside adds nothing.
                rows.resize((group + 1) * taps, 0);
                shares.resize((group + 1) * taps, 0.0);
            }
            let count = rows.len();
            let rows = Tensor::from_vec(rows, count, values.device())?;
            let seen = values
                .index_select(&rows, 0)?
                .reshape((groups, taps, size))?;
            let shares = Tensor::from_vec(shares, (groups, 1, taps), values.device())?;
            let mixed = shares.to_dtype(seen.dtype())?.matmul(&seen)?;
            parts.push(mixed.reshape((queries.len(), width))?);
        }
        Ok(Tensor::cat(&parts, 0)?)
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
