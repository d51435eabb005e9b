//! Vision transformers whose files tell their structure: patches of a picture in, hidden states after any layer out.

mod bias;
mod block;
mod pooling;
mod reading;
pub mod scores;

use candle_core::{DType, Device, Tensor};

use crate::models::vision::positions::GridTable;
use crate::nn::feature_map::FeatureMap;
use crate::nn::{elementwise, Conv2d, Inventory, Norm};
use crate::{CancelToken, Error, Result};
use base::runtime::device::ensure_activations;

use bias::BiasTable;
use block::{Block, Rotation};
use pooling::Pooling;

/// The `model_type`s that classify and embed images by themselves.
pub const TYPES: &[&str] = &[
    "beit",
    "data2vec-vision",
    "deit",
    "dinov3_vit",
    "aimv2_vision_model",
];

/// Those of them that there are classifiers of.
pub const CLASSIFIERS: &[&str] = &["beit", "data2vec-vision", "deit", "dinov3_vit"];

#[derive(Debug)]
pub struct Tower {
    pub family: &'static str,
    patches: Conv2d,
    /// Tokens before the patches, positions added: [count, width].
    leading: Option<Tensor>,
    positions: Positions,
    /// Of patches, before their positions are added.
    patch_norm: Option<Norm>,
    blocks: Vec<Block>,
    /// What all layers add to their scores.
    shared: Option<BiasTable>,
    final_norm: Option<Norm>,
    pooling: Pooling,
    width: usize,
    heads: usize,
}

/// How patches know where they are.
#[derive(Debug)]
enum Positions {
    None,
    Table(GridTable),
    /// Resized linearly.
    Linear(FeatureMap),
    /// Sines and cosines of columns and rows (AIMv2).
    Sines,
    /// Queries and keys rotate by rows and columns, with this base.
    Rotary(f32),
}

/// What a tower makes of a picture.
pub struct Seen {
    /// The hidden states after the layers that were asked for: [tokens, width] each.
    pub states: Vec<Tensor>,
    /// After all layers and the last norm.
    pub last: Tensor,
    /// (rows, columns) of patches.
    pub grid: (usize, usize),
    /// How many tokens stand before the patches.
    pub leading: usize,
}

impl Seen {
    /// The patches of states.
    pub fn map(&self, states: &Tensor) -> Result<FeatureMap> {
        let count = self.grid.0 * self.grid.1;
        let rows = states.narrow(0, self.leading, count)?.contiguous()?;
        FeatureMap::new(rows, self.grid)
    }
}

impl Tower {
    pub fn width(&self) -> usize {
        self.width
    }

    pub fn heads(&self) -> usize {
        self.heads
    }

    pub fn layer_count(&self) -> usize {
        self.blocks.len()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.patches.list(inventory)?;
        self.leading
            .iter()
            .for_each(|rows| inventory.add_tensor(rows));
        for block in &self.blocks {
            block.list(inventory)?;
        }
        for norm in self.patch_norm.iter().chain(&self.final_norm) {
            inventory.add_norm(norm)?;
        }
        self.pooling.list(inventory)
    }

    /// One row for the picture.
    pub fn pooled(&self, image: &FeatureMap, cancel: &CancelToken) -> Result<Tensor> {
        self.pooling.forward(&self.forward(image, &[], cancel)?)
    }

    /// The first tokens side by side: [1, count · width].
    pub fn first(&self, image: &FeatureMap, count: usize, cancel: &CancelToken) -> Result<Tensor> {
        let seen = self.forward(image, &[], cancel)?;
        let rows = seen.last.narrow(0, 0, count)?.contiguous()?;
        Ok(rows.reshape((1, count * self.width))?)
    }

    /// States after numbers of layers, where 0 is before all.
    pub fn forward(
        &self,
        image: &FeatureMap,
        wanted: &[usize],
        cancel: &CancelToken,
    ) -> Result<Seen> {
        let map = self.patches.forward(image)?;
        self.of_patches(map, wanted, cancel)
    }

    /// The same of patches that other layers made.
    pub fn of_patches(
        &self,
        map: FeatureMap,
        wanted: &[usize],
        cancel: &CancelToken,
    ) -> Result<Seen> {
        let grid = map.size();
        let (device, dtype) = (map.rows.device().clone(), map.rows.dtype());
        let tokens = grid.0 * grid.1 + self.leading_count()?;
        ensure_activations(tokens, self.width, dtype, &device)?;
        let mut x = self.placed(map)?;
        if let Some(leading) = &self.leading {
            x = Tensor::cat(&[leading, &x], 0)?.contiguous()?;
        }
        let rotation = match self.positions {
            Positions::Rotary(base) => {
                let half = self.width / self.heads / 2;
                Some(rotations(grid, half, base, &device)?)
            }
            _ => None,
        };
        let biases = |table: &Option<BiasTable>| -> Result<Option<Tensor>> {
            let table = table.as_ref();
            table.map(|table| table.of_grid(grid, &device)).transpose()
        };
        let shared = biases(&self.shared)?;
        let mut kept = Vec::with_capacity(wanted.len() + 1);
        for (number, block) in self.blocks.iter().enumerate() {
            cancel.check()?;
            if wanted.contains(&number) {
                kept.push((number, x.clone()));
            }
            let own = biases(&block.bias)?;
            let added: Vec<&Tensor> = shared.iter().chain(&own).collect();
            x = block.forward(&x, rotation.as_ref(), &added)?;
        }
        kept.push((self.blocks.len(), x.clone()));
        let state = |number: &usize| {
            let found = kept.iter().find(|(kept, _)| kept == number);
            let found = found.map(|(_, x)| x.clone());
            found.ok_or_else(|| Error::Internal(format!("a tower has no layer {number}")))
        };
        Ok(Seen {
            states: wanted.iter().map(state).collect::<Result<_>>()?,
            last: self.normed(&x)?,
            grid,
            leading: self.leading_count()?,
        })
    }

    /// States behind the last norm.
    pub fn normed(&self, x: &Tensor) -> Result<Tensor> {
        match &self.final_norm {
            Some(norm) => norm.forward(x),
            None => Ok(x.clone()),
        }
    }

    fn leading_count(&self) -> Result<usize> {
        Ok(match &self.leading {
            Some(rows) => rows.dim(0)?,
            None => 0,
        })
    }

    fn placed(&self, map: FeatureMap) -> Result<Tensor> {
        let grid = map.size();
        let rows = match &self.patch_norm {
            Some(norm) => norm.forward(&map.rows)?,
            None => map.rows,
        };
        let (device, dtype) = (rows.device(), rows.dtype());
        let positions = match &self.positions {
            Positions::None | Positions::Rotary(_) => return Ok(rows),
            Positions::Table(table) => table.rows(&[(grid.1, grid.0)], device, dtype)?,
            Positions::Linear(table) => table.stretched(grid)?.rows,
            Positions::Sines => sines(grid, self.width, device, dtype)?,
        };
        elementwise::add(&rows, &positions)
    }
}

/// By places between -1 and 1, rows before columns.
fn rotations(
    (rows, columns): (usize, usize),
    half: usize,
    base: f32,
    device: &Device,
) -> Result<Rotation> {
    let quarter = half / 2;
    let frequencies: Vec<f32> = (0..quarter)
        .map(|at| 1.0 / base.powf(at as f32 * (4.0 / (2 * half) as f32)))
        .collect();
    let place = |at: usize, count: usize| 2.0 * ((at as f32 + 0.5) / count as f32) - 1.0;
    let mut angles = Vec::with_capacity(rows * columns * half);
    for (y, x) in (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x))) {
        for at in [place(y, rows), place(x, columns)] {
            let around = (2.0 * std::f64::consts::PI) as f32 * at;
            angles.extend(frequencies.iter().map(|frequency| around * frequency));
        }
    }
    let tensor = |values: Vec<f32>| Tensor::from_vec(values, (rows * columns, 1, half), device);
    Ok(Rotation {
        cosines: tensor(angles.iter().map(|angle| angle.cos()).collect())?,
        sines: tensor(angles.iter().map(|angle| angle.sin()).collect())?,
    })
}

/// Sines and cosines of columns, then of rows.
fn sines(
    (rows, columns): (usize, usize),
    width: usize,
    device: &Device,
    dtype: DType,
) -> Result<Tensor> {
    let quarter = width / 4;
    let mut values = Vec::with_capacity(rows * columns * width);
    for (y, x) in (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x))) {
        for at in [x, y] {
            let angle = |n: usize| at as f64 / 10_000f64.powf(n as f64 / quarter as f64);
            values.extend((0..quarter).map(|n| angle(n).sin() as f32));
            values.extend((0..quarter).map(|n| angle(n).cos() as f32));
        }
    }
    let rows = Tensor::from_vec(values, (rows * columns, 4 * quarter), device)?;
    Ok(rows.to_dtype(dtype)?)
}
