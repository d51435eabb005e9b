//! Layers of attention inside windows of a map, every second one's windows moved by half: of Swin and its second
//! version, of Donut's encoder, and of HTSAT.

mod windows;

use candle_core::Tensor;

use super::detection::attention::check_heads;
use super::modules::Modules;
use super::towers::scores::{mixed, Scores};
use crate::nn::{elementwise, Epilogue, FeatureMap, Inventory, Linear, Norm};
use crate::{Error, Result};
use base::runtime::memory;
use kernels::attention::windows::{attention_in_windows, WindowBias};
use kernels::Activation;
use windows::distances;

pub use windows::Windows;

/// Of norms that the configuration does not name.
pub const EPSILON: f32 = 1e-5;
/// Places of an edge of a window. Every two places of one have a number, and maps are filled up to whole windows.
pub const WINDOW: std::ops::RangeInclusive<usize> = 1..=64;
/// So many scores are computed at once.
const MOST_SCORES: usize = 1 << 22;

#[derive(Debug)]
pub struct Block {
    before: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    after: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
    heads: usize,
    window: usize,
    shift: usize,
    version: Version,
    /// Whether a map that is not larger than a window is one, whose places are not moved.
    shrinks: bool,
    /// [1, heads, places, places]
    bias: Tensor,
    /// [1, heads, 1, 1]: of cosines, instead of 1 / √width of products.
    scale: Option<Tensor>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Norms before attention and MLP.
    First,
    /// Norms behind them.
    Second,
}

/// The bias of all distances, [distances, heads]: learned one by one.
fn learned(modules: &Modules<'_>, size: usize, heads: usize) -> Result<Vec<f32>> {
    let span = 2 * size - 1;
    let name = modules
        .known("relative_position_bias_table|relative_position_bias.relative_position_bias_table");
    let name = name.unwrap_or("relative_position_bias_table");
    modules.shaped(name, &[span * span, heads])?;
    modules.values(name)
}

/// The same, which a small network makes of the distances.
fn computed(modules: &Modules<'_>, size: usize, learned: usize, heads: usize) -> Result<Vec<f32>> {
    let mlp = modules.at("continuous_position_bias_mlp");
    let inner = mlp.shape("0.weight")?.first().copied().unwrap_or(0);
    mlp.shaped("0.weight", &[inner, 2])?;
    mlp.shaped("0.bias", &[inner])?;
    mlp.shaped("2.weight", &[heads, inner])?;
    let (weight, bias) = (mlp.values("0.weight")?, mlp.values("0.bias")?);
    let second = mlp.values("2.weight")?;
    let last = match (learned, size) {
        (0, 1) => 1.0,
        (0, size) => (size - 1) as f32,
        (learned, _) => learned as f32 - 1.0,
    };
    let place = |at: usize| {
        let distance = (at as f32 - (size as f32 - 1.0)) / last * 8.0;
        let far = (distance.abs() + 1.0).log2() / 3.0;
        if distance == 0.0 {
            0.0
        } else {
            far.copysign(distance)
        }
    };
    let span = 2 * size - 1;
    let mut table = Vec::with_capacity(span * span * heads);
    for at in 0..span * span {
        let (down, right) = (place(at / span), place(at % span));
        let inside: Vec<f32> = weight
            .chunks_exact(2)
            .zip(&bias)
            .map(|(weight, bias)| (weight[0] * down + weight[1] * right + bias).max(0.0))
            .collect();
        table.extend(second.chunks_exact(inner.max(1)).map(|row| {
            let sum: f32 = row.iter().zip(&inside).map(|(a, b)| a * b).sum();
            16.0 / (1.0 + (-sum).exp())
        }));
    }
    Ok(table)
}

/// What the layers of a stage have in common.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub width: usize,
    pub heads: usize,
    pub window: usize,
    /// Of the windows that the model was trained with before.
    pub learned: usize,
    pub version: Version,
    pub activation: Activation,
    pub epsilon: f32,
    pub shrinks: bool,
}

impl Block {
    pub fn load(modules: &Modules<'_>, sizes: Sizes, shift: usize) -> Result<Self> {
        let (width, heads, size) = (sizes.width, sizes.heads, sizes.window);
        check_heads(modules, width, heads)?;
        if !WINDOW.contains(&size) {
            return Err(modules.corrupt(format!("an edge of a window can't have {size} places")));
        }
        let area = size * size;
        memory::ensure_elements(&[1 + heads, area, area], 4, "the distances in a window")?;
        let attention = modules.at("attention");
        let own = if attention.has("self") {
            attention.at("self")
        } else {
            attention.clone()
        };
        let linear = |name: &str| own.sized_linear(name, width, width);
        let norm = |name: &str| modules.layer_norm(name, width, sizes.epsilon);
        let up = modules.linear("intermediate.dense|mlp.fc1", width)?;
        let inner = up.outputs();
        let table = match sizes.version {
            Version::First => learned(&own, size, heads)?,
            Version::Second => computed(&own, size, sizes.learned, heads)?,
        };
        let (device, rows) = (modules.device(), distances(size));
        let mut bias = Vec::with_capacity(heads * area * area);
        for head in 0..heads {
            bias.extend(rows.iter().map(|&row| table[row as usize * heads + head]));
        }
        let scale = match sizes.version {
            Version::First => None,
            Version::Second => {
                own.shaped("logit_scale", &[heads, 1, 1])?;
                let most = (100f32).ln();
                let scales = own.values("logit_scale")?;
                let scales = scales.into_iter().map(|scale| scale.min(most).exp());
                let scales = Tensor::from_vec(scales.collect(), (1, heads, 1, 1), device)?;
                Some(scales)
            }
        };
        Ok(Self {
            before: norm("layernorm_before")?,
            query: linear("query|q_proj")?,
            key: linear("key|k_proj")?,
            value: linear("value|v_proj")?,
            output: attention.sized_linear("output.dense|o_proj", width, width)?,
            after: norm("layernorm_after")?,
            up,
            down: modules.sized_linear("output.dense|mlp.fc2", inner, width)?,
            activation: sizes.activation,
            heads,
            window: size,
            shift,
            version: sizes.version,
            shrinks: sizes.shrinks,
            bias: Tensor::from_vec(bias, (1, heads, area, area), device)?,
            scale,
        })
    }

    /// With a residual where there is one.
    fn attend(&self, map: &FeatureMap, residual: Option<&Tensor>) -> Result<FeatureMap> {
        let mut shift = self.shift;
        let least = map.height.min(map.width);
        if self.shrinks && least <= self.window {
            shift = 0;
            if least < self.window {
                return Err(Error::InvalidInput(format!(
                    "the image became a map of {}x{} places, which is smaller than the model's windows of {} places: \
                     its preprocessor_config.json belongs to another model",
                    map.height, map.width, self.window
                )));
            }
        }
        let windows = Windows::new(map.size(), self.window, shift);
        let (device, area) = (map.rows.device(), windows.area);
        let most = (MOST_SCORES / (self.heads * area * area)).max(1);
        let mut found = Vec::with_capacity(windows.count.div_ceil(most));
        for (part, rows) in windows.rows.chunks(most * area).enumerate() {
            let mask = windows.mask(part * most, rows.len() / area, device)?;
            let divided = map.picked(rows.to_vec(), 0.0)?.contiguous()?;
            found.push(self.mixed(&divided, area, mask.as_ref())?);
        }
        let found = Tensor::cat(&found, 0)?;
        let places = windows.places;
        let number = places.len();
        let rows = found.index_select(&Tensor::from_vec(places, number, device)?, 0)?;
        let epilogue = Epilogue {
            residual,
            ..Epilogue::default()
        };
        map.with(self.output.forward_with(&rows.contiguous()?, &epilogue)?)
    }

    /// [windows · places, width] of the same, as the heads find them.
    fn mixed(&self, x: &Tensor, area: usize, mask: Option<&Tensor>) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let [q, k, v] = [&self.query, &self.key, &self.value].map(|linear| linear.forward(x));
        let (q, k, v) = (q?, k?, v?);
        let bias = WindowBias {
            area,
            heads: self.heads,
            of_heads: &self.bias,
            of_windows: mask,
        };
        if self.scale.is_none() {
            if let Some(found) = attention_in_windows([&q, &k, &v], &bias)? {
                return Ok(found);
            }
        }
        let heads = |rows_of: &Tensor| -> Result<Tensor> {
            let shape = (rows / area, area, self.heads, width / self.heads);
            Ok(rows_of.reshape(shape)?.transpose(1, 2)?.contiguous()?)
        };
        let mut added = vec![&self.bias];
        added.extend(mask);
        let scores = match &self.scale {
            Some(scale) => Scores::Cosine(scale),
            None => Scores::Product,
        };
        let inputs = [heads(&q)?, heads(&k)?, heads(&v)?];
        mixed(inputs.each_ref(), scores, &added)
    }

    fn feed(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let epilogue = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let behind = Epilogue {
            residual,
            ..Epilogue::default()
        };
        self.down
            .forward_with(&self.up.forward_with(x, &epilogue)?, &behind)
    }

    pub fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let add = |a: &Tensor, b: &Tensor| map.with(elementwise::add(a, b)?);
        match self.version {
            Version::First => {
                let normed = map.with(self.before.forward(&map.rows)?)?;
                let map = self.attend(&normed, Some(&map.rows))?;
                map.with(self.feed(&self.after.forward(&map.rows)?, Some(&map.rows))?)
            }
            Version::Second => {
                let attended = self.attend(map, None)?;
                let map = add(&map.rows, &self.before.forward(&attended.rows)?)?;
                add(
                    &map.rows,
                    &self.after.forward(&self.feed(&map.rows, None)?)?,
                )
            }
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for linear in [
            &self.query,
            &self.key,
            &self.value,
            &self.output,
            &self.up,
            &self.down,
        ] {
            inventory.add_linear(linear)?;
        }
        inventory.add_tensor(&self.bias);
        self.scale
            .iter()
            .for_each(|scale| inventory.add_tensor(scale));
        inventory.add_norm(&self.before)?;
        inventory.add_norm(&self.after)
    }
}

/// Four places become one.
#[derive(Debug)]
pub struct Merging {
    norm: Norm,
    reduction: Linear,
    version: Version,
}

impl Merging {
    pub fn load(modules: &Modules<'_>, width: usize, version: Version) -> Result<Self> {
        let normed = if version == Version::First { 4 } else { 2 };
        Ok(Self {
            norm: modules.layer_norm("norm", normed * width, EPSILON)?,
            reduction: modules.sized_linear("reduction", 4 * width, 2 * width)?,
            version,
        })
    }

    pub fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let (height, width) = (map.height.div_ceil(2), map.width.div_ceil(2));
        let outside = map.height * map.width;
        let mut rows = Vec::with_capacity(4 * height * width);
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            for (right, down) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (y, x) = (2 * y + down, 2 * x + right);
                let inside = y < map.height && x < map.width;
                rows.push(if inside { y * map.width + x } else { outside } as u32);
            }
        }
        let four = map.picked(rows, 0.0)?.contiguous()?;
        let four = four.reshape((height * width, 4 * map.channels()?))?;
        let rows = match self.version {
            Version::First => self.reduction.forward(&self.norm.forward(&four)?)?,
            Version::Second => self.norm.forward(&self.reduction.forward(&four)?)?,
        };
        FeatureMap::new(rows, (height, width))
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_norm(&self.norm)?;
        inventory.add_linear(&self.reduction)
    }
}
