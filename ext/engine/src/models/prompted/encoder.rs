//! SAM's images: attention inside windows, in some layers over the whole picture, with distances of rows and columns.

use candle_core::Tensor;

use super::block::{Block, Settings};
use crate::models::config::activation;
use crate::models::modules::{Convolution, Modules};
use crate::models::swin::{Windows, WINDOW};
use crate::models::towers::scores::{mixed, Scores};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{elementwise, Conv2d, Inventory, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, HEADS, LAYERS, WIDTH};
use formats::image::CHANNELS;
use kernels::tensor::matmul::matmul;

/// Of norms that the configuration does not name.
const EPSILON: f32 = 1e-6;

#[derive(Debug)]
pub struct ImageEncoder {
    patches: Conv2d,
    /// [places, width]
    positions: Option<Tensor>,
    layers: Vec<Layer>,
    narrow: Conv2d,
    narrow_norm: Norm,
    smooth: Conv2d,
    smooth_norm: Norm,
    /// Rows and columns of patches.
    edge: usize,
}

#[derive(Debug)]
struct Layer {
    block: Block,
    /// `None`: the whole picture.
    window: Option<usize>,
    /// Of rows and of columns: [own place, width of a head, other place].
    distances: Option<[Tensor; 2]>,
}

/// For each place, what belongs to its distances from all others: [own, width, other].
fn distances(modules: &Modules<'_>, name: &str, size: usize, width: usize) -> Result<Tensor> {
    let table = modules.shaped(name, &[2 * size - 1, width])?;
    let mut rows = Vec::with_capacity(size * size);
    for own in 0..size {
        rows.extend((0..size).map(|other| (own + size - 1 - other) as u32));
    }
    let rows = Tensor::from_vec(rows, size * size, modules.device())?;
    let all = table
        .to_dtype(candle_core::DType::F32)?
        .index_select(&rows, 0)?;
    Ok(all
        .reshape((size, size, width))?
        .transpose(1, 2)?
        .contiguous()?)
}

impl Layer {
    fn load(
        modules: &Modules<'_>,
        raw: &RawConfig,
        (width, edge): (usize, usize),
        window: Option<usize>,
    ) -> Result<Self> {
        let heads = raw
            .opt_usize_in("num_attention_heads", HEADS)?
            .unwrap_or(12);
        let epsilon = raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-6) as f32;
        let attention = modules.at("attn");
        let name = raw.opt_string("hidden_act")?.unwrap_or("gelu");
        let size = window.unwrap_or(edge);
        let settings = Settings {
            heads,
            epsilon,
            activation: activation(name, raw.file())?,
        };
        let feed = ["mlp.lin1", "mlp.lin2"];
        Ok(Self {
            block: Block::load(modules, feed, (width, width), settings)?,
            window,
            distances: if raw.opt_bool("use_rel_pos")?.unwrap_or(true) {
                Some([
                    distances(&attention, "rel_pos_h", size, width / heads)?,
                    distances(&attention, "rel_pos_w", size, width / heads)?,
                ])
            } else {
                None
            },
        })
    }

    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let normed = map.with(self.block.before.forward(&map.rows)?)?;
        let size = self.window.unwrap_or(map.height);
        let windows = Windows::new(map.size(), size, 0);
        let divided = normed.picked(windows.rows, 0.0)?.contiguous()?;
        let found = self.attend(&divided, (windows.count, size))?;
        let places = windows.places;
        let places = Tensor::from_vec(places, map.height * map.width, found.device())?;
        let found = found.index_select(&places, 0)?.contiguous()?;
        let x = elementwise::add(&map.rows, &found)?;
        map.with(self.block.fed(&x)?)
    }

    /// `x` is [windows · places, width].
    fn attend(&self, x: &Tensor, (count, size): (usize, usize)) -> Result<Tensor> {
        let (area, width) = (size * size, x.dim(1)?);
        let heads = self.block.heads;
        let own = width / heads;
        let all = self.block.qkv.forward(x)?;
        let part = |number: usize| -> Result<Tensor> {
            let rows = all.narrow(1, number * width, width)?.contiguous()?;
            let rows = rows.reshape((count, area, heads, own))?;
            Ok(rows.transpose(1, 2)?.contiguous()?)
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let bias = match &self.distances {
            Some([down, across]) => Some(biases(&q, size, down, across)?),
            None => None,
        };
        let added: Vec<&Tensor> = bias.iter().collect();
        self.block
            .output
            .forward(&mixed([&q, &k, &v], Scores::Product, &added)?)
    }
}

/// What queries say of rows and columns, for all keys: [groups, heads, places, places].
fn biases(q: &Tensor, size: usize, down: &Tensor, across: &Tensor) -> Result<Tensor> {
    let (groups, heads, area, width) = q.dims4()?;
    let many = groups * heads;
    let q = q
        .to_dtype(candle_core::DType::F32)?
        .reshape((many, size, size, width))?;
    let product = |x: Tensor, table: &Tensor| -> Result<Tensor> {
        let x = x.contiguous()?.reshape((size, many * size, width))?;
        let found = matmul(&x, table, &CancelToken::new())?;
        Ok(found.reshape((size, many, size, size))?)
    };
    // [own row, many, own column, other row], and the same with rows and columns exchanged.
    let rows = product(q.permute((1, 0, 2, 3))?, down)?.permute((1, 0, 2, 3))?;
    let columns = product(q.permute((2, 0, 1, 3))?, across)?.permute((1, 2, 0, 3))?;
    let rows = rows.contiguous()?.unsqueeze(4)?;
    let columns = columns.contiguous()?.unsqueeze(3)?;
    let sum = elementwise::add(&rows, &columns)?;
    Ok(sum.contiguous()?.reshape((groups, heads, area, area))?)
}

impl ImageEncoder {
    pub fn load(raw: &RawConfig, modules: &Modules<'_>, cancel: &CancelToken) -> Result<Self> {
        let kernel = modules.shape("patch_embed.projection.weight")?;
        let patch = kernel.last().copied().unwrap_or(0).max(1);
        let of = Convolution {
            stride: patch,
            padding: Some(0),
            ..Convolution::new("patch_embed.projection", "", None)
        };
        let patches = modules.convolution(CHANNELS, of)?;
        let width = patches.outputs();
        let named = raw.opt_usize_in("hidden_size", WIDTH)?.unwrap_or(768);
        let image = raw.opt_usize_in("image_size", 1..=1 << 14)?.unwrap_or(1024);
        let edge = image / patch;
        if named != width || edge == 0 {
            let reason = format!(
                "patches of {patch} pixels and {width} numbers do not fit its configuration"
            );
            return Err(modules.corrupt(reason));
        }
        let window = raw.opt_usize_in("window_size", 0..=*WINDOW.end())?;
        let window = window.unwrap_or(14);
        let whole = raw.opt_integers("global_attn_indexes")?;
        let whole = whole.unwrap_or(vec![2, 5, 8, 11]);
        let mut layers = Vec::new();
        for number in 0..raw.opt_usize_in("num_hidden_layers", LAYERS)?.unwrap_or(12) {
            cancel.check()?;
            let windowed = window > 0 && !whole.contains(&(number as i64));
            let modules = modules.at(format!("layers.{number}"));
            let window = windowed.then_some(window);
            layers.push(Layer::load(&modules, raw, (width, edge), window)?);
        }
        let neck = modules.at("neck");
        let narrow = neck.convolution(width, Convolution::new("conv1", "", None))?;
        let channels = narrow.outputs();
        Ok(Self {
            positions: if raw.opt_bool("use_abs_pos")?.unwrap_or(true) {
                let table = modules.shaped("pos_embed", &[1, edge, edge, width])?;
                Some(table.reshape((edge * edge, width))?)
            } else {
                None
            },
            patches,
            layers,
            narrow,
            narrow_norm: neck.layer_norm("layer_norm1", channels, EPSILON)?,
            smooth: neck.convolution(channels, Convolution::new("conv2", "", None))?,
            smooth_norm: neck.layer_norm("layer_norm2", channels, EPSILON)?,
            edge,
        })
    }

    pub fn channels(&self) -> usize {
        self.smooth.outputs()
    }

    pub fn edge(&self) -> usize {
        self.edge
    }

    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for convolution in [&self.patches, &self.narrow, &self.smooth] {
            convolution.list(inventory)?;
        }
        self.layers
            .iter()
            .try_for_each(|layer| layer.block.list(inventory))?;
        inventory.add_norm(&self.narrow_norm)?;
        inventory.add_norm(&self.smooth_norm)
    }

    pub fn forward(&self, image: &FeatureMap, cancel: &CancelToken) -> Result<FeatureMap> {
        let mut map = self.patches.forward(image)?;
        if map.size() != (self.edge, self.edge) {
            return Err(Error::InvalidInput(format!(
                "the image became {}x{} patches, and the model reads {2}x{2}: its preprocessor_config.json belongs to \
                 another model",
                map.width, map.height, self.edge
            )));
        }
        if let Some(positions) = &self.positions {
            map = map.with(elementwise::add(&map.rows, positions)?)?;
        }
        for layer in &self.layers {
            cancel.check()?;
            map = layer.forward(&map)?;
        }
        let map = self.narrow.forward(&map)?;
        let map = map.with(self.narrow_norm.forward(&map.rows)?)?;
        let map = self.smooth.forward(&map)?;
        map.with(self.smooth_norm.forward(&map.rows)?)
    }
}
