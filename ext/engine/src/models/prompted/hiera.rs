//! SAM 2's images: attention inside windows of maps that become smaller from stage to stage, and the maps of some stages
//! brought to one width.

use candle_core::Tensor;

use super::block::{Block, Settings};
use crate::models::config::activation;
use crate::models::convolutional::sizes;
use crate::models::modules::{Convolution, Modules};
use crate::models::swin::{Windows, WINDOW};
use crate::models::vision::config::GridPositions;
use crate::models::vision::positions::GridTable;
use crate::nn::feature_map::{FeatureMap, Pooling, Window};
use crate::nn::{attention, elementwise, AttentionKind, AttentionOptions};
use crate::nn::{Conv2d, Inventory, Linear};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, WIDTH};
use formats::image::CHANNELS;

/// Of edges that the configuration has two numbers for.
const MOST: usize = 1024;

#[derive(Debug)]
pub struct ImageEncoder {
    patches: Conv2d,
    positions: GridTable,
    /// Of a window's places, which all windows have: [places, width], row by row.
    own_positions: Vec<f32>,
    window: usize,
    layers: Vec<Layer>,
    /// The layers that stages end with.
    ends: Vec<usize>,
    neck: Vec<Conv2d>,
    /// Stages that the map of the next coarser one is added to.
    joined: Vec<usize>,
    /// How many maps are read.
    levels: usize,
    width: usize,
}

#[derive(Debug)]
struct Layer {
    block: Block,
    /// `None`: the whole picture.
    window: Option<usize>,
    /// Queries become fewer: the largest of so many rows and columns.
    stride: usize,
    /// What the picture itself becomes where it gets another width.
    around: Option<Linear>,
}

/// What the layers of a stage have in common.
#[derive(Clone, Copy)]
struct Stage {
    inputs: usize,
    width: usize,
    settings: Settings,
}

impl Layer {
    fn load(
        modules: &Modules<'_>,
        stage: Stage,
        window: Option<usize>,
        stride: usize,
    ) -> Result<Self> {
        let (inputs, width) = (stage.inputs, stage.width);
        if stride > 1 && inputs == width {
            let reason = "a stage that makes maps smaller keeps their width";
            return Err(modules.corrupt(reason.into()));
        }
        let feed = ["mlp.proj_in", "mlp.proj_out"];
        Ok(Self {
            block: Block::load(modules, feed, (inputs, width), stage.settings)?,
            window,
            stride,
            around: if inputs == width {
                None
            } else {
                Some(modules.sized_linear("proj", inputs, width)?)
            },
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if let Some(linear) = &self.around {
            inventory.add_linear(linear)?;
        }
        self.block.list(inventory)
    }

    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let normed = map.with(self.block.before.forward(&map.rows)?)?;
        let around = match &self.around {
            Some(linear) => self.smaller(&normed.with(linear.forward(&normed.rows)?)?)?,
            None => map.clone(),
        };
        let found = self.attended(&normed, around.size())?;
        let x = elementwise::add(&around.rows, &found)?;
        around.with(self.block.fed(&x)?)
    }

    fn smaller(&self, map: &FeatureMap) -> Result<FeatureMap> {
        if self.stride == 1 {
            return Ok(map.clone());
        }
        let window = Window::new(self.stride, self.stride, 0);
        if window.count(map.height) * window.count(map.width) == 0 {
            return Err(misfit(map.size()));
        }
        map.pooled(window, Pooling::Max)
    }

    /// The rows of a map of this size.
    fn attended(&self, map: &FeatureMap, size: (usize, usize)) -> Result<Tensor> {
        let Some(edge) = self.window else {
            let rows = self.mixed(&map.rows, 1, map.size())?;
            return self.block.output.forward(&rows);
        };
        let windows = Windows::new(map.size(), edge, 0);
        let (count, places) = (windows.count, windows.places);
        let divided = map.picked(windows.rows, 0.0)?.contiguous()?;
        let rows = self
            .block
            .output
            .forward(&self.mixed(&divided, count, (edge, edge))?)?;
        let places = match self.stride {
            1 => places,
            stride => {
                let smaller = Windows::new(size, edge / stride, 0);
                if smaller.count != count {
                    return Err(misfit(map.size()));
                }
                smaller.places
            }
        };
        let number = places.len();
        let places = Tensor::from_vec(places, number, rows.device())?;
        Ok(rows.index_select(&places, 0)?.contiguous()?)
    }

    /// `rows` are those of so many windows of a size; the result has fewer where the layer makes maps smaller.
    fn mixed(&self, rows: &Tensor, windows: usize, size: (usize, usize)) -> Result<Tensor> {
        let all = self.block.qkv.forward(rows)?;
        let width = all.dim(1)? / 3;
        let part = |number: usize| all.narrow(1, number * width, width)?.contiguous();
        let (mut q, k, v) = (part(0)?, part(1)?, part(2)?);
        let area = size.0 * size.1;
        let mut own = area;
        if self.stride > 1 {
            // Windows below each other are one map, whose windows do not share rows of it.
            let (high, wide) = (size.0 / self.stride, size.1 / self.stride);
            let map = FeatureMap::new(q, (windows * size.0, size.1))?;
            q = if size.0.is_multiple_of(self.stride) {
                self.smaller(&map)?.rows
            } else {
                return Err(misfit(size));
            };
            own = high * wide;
        }
        let head = width / self.block.heads;
        let heads = |x: &Tensor| -> Result<Tensor> {
            let count = x.dim(0)?;
            Ok(x.contiguous()?.reshape((count, self.block.heads, head))?)
        };
        let ends =
            |each: usize| -> Vec<u32> { (0..=windows).map(|at| (at * each) as u32).collect() };
        let scale = 1.0 / (head as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let found = attention(
            &heads(&q)?,
            &heads(&k)?,
            &heads(&v)?,
            &ends(own),
            &ends(area),
            &options,
        )?;
        Ok(found.reshape((windows * own, width))?)
    }
}

fn misfit((height, width): (usize, usize)) -> Error {
    Error::InvalidInput(format!(
        "a map of {width}x{height} places can't be made smaller as the model does it: its preprocessor_config.json \
         belongs to another model"
    ))
}

/// The edge of something that has one for rows and one for columns.
fn edge(raw: &RawConfig, key: &str, usual: usize) -> Result<usize> {
    let edges = match raw.get(key) {
        Some(serde_json::Value::Number(_)) => {
            raw.opt_usize_in(key, 0..=MOST)?.map(|edge| vec![edge])
        }
        _ => {
            let edges = raw.opt_integers(key)?.unwrap_or(vec![usual as i64]);
            let edges = edges.into_iter().map(|edge| usize::try_from(edge).ok());
            edges.collect::<Option<Vec<usize>>>()
        }
    };
    let edges = edges.unwrap_or_default();
    match edges.first() {
        Some(&edge) if edge <= MOST && edges.iter().all(|other| *other == edge) => Ok(edge),
        _ => Err(Error::unsupported(
            raw.file(),
            format!("{key:?} is not one size for rows and columns"),
        )),
    }
}

/// Numbers of layers or stages.
fn places(raw: &RawConfig, key: &str, usual: &[usize]) -> Result<Vec<usize>> {
    let Some(numbers) = raw.opt_integers(key)? else {
        return Ok(usual.to_vec());
    };
    let numbers = numbers
        .into_iter()
        .map(|number| usize::try_from(number).ok());
    let numbers: Option<Vec<usize>> = numbers.collect();
    numbers.ok_or_else(|| Error::corrupt(raw.file(), format!("{key:?} has numbers below 0")))
}

impl ImageEncoder {
    pub fn load(raw: &RawConfig, modules: &Modules<'_>, cancel: &CancelToken) -> Result<Self> {
        let whole = raw.opt_nested("backbone_config")?;
        let own = whole.map_or_else(|| RawConfig::parse(raw.file(), "{}"), Ok)?;
        let body = modules.at("backbone");
        let of = Convolution {
            stride: edge(&own, "patch_stride", 4)?.max(1),
            padding: Some(edge(&own, "patch_padding", 3)?),
            ..Convolution::new("patch_embed.projection", "", None)
        };
        let patches = body.convolution(CHANNELS, of)?;
        let width = patches.outputs();
        let windows = sizes(&own, "window_size_per_stage", &[8, 4, 14, 7], None)?;
        let window = windows[0];
        if windows.iter().any(|window| !WINDOW.contains(window)) {
            let reason = "\"window_size_per_stage\" is out of range";
            return Err(Error::corrupt(raw.file(), reason));
        }
        let (positions, own_positions) = position_tables(&body, (window, width))?;
        let (layers, ends, channels) = stages(&own, &body, &windows, width, cancel)?;
        let levels = raw.opt_usize_in("num_feature_levels", 1..=64)?.unwrap_or(3);
        let channel_list = channels.iter().rev().enumerate();
        let neck = channel_list.map(|(number, &inputs)| {
            let name = format!("neck.convs.{number}");
            let of = Convolution::new(&name, "", None);
            modules.convolution(inputs, of)
        });
        let neck: Vec<Conv2d> = neck.collect::<Result<_>>()?;
        let fpn = raw.opt_usize_in("fpn_hidden_size", WIDTH)?.unwrap_or(256);
        let wrong = neck.iter().any(|convolution| convolution.outputs() != fpn);
        if levels != 3 || levels > neck.len() || wrong {
            let reason = format!(
                "{} maps can't become {levels} levels of {fpn} channels",
                neck.len()
            );
            return Err(Error::unsupported(raw.file(), reason));
        }
        Ok(Self {
            patches,
            positions,
            own_positions,
            window,
            layers,
            ends,
            neck,
            joined: places(raw, "fpn_top_down_levels", &[2, 3])?,
            levels,
            width: fpn,
        })
    }

    pub fn channels(&self) -> usize {
        self.width
    }

    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.patches.list(inventory)?;
        for layer in &self.layers {
            layer.list(inventory)?;
        }
        self.neck.iter().try_for_each(|one| one.list(inventory))
    }

    /// Maps from fine to coarse.
    pub fn forward(&self, image: &FeatureMap, cancel: &CancelToken) -> Result<Vec<FeatureMap>> {
        let map = self.patches.forward(image)?;
        let mut map = map.with(elementwise::add(&map.rows, &self.places(&map)?)?)?;
        let mut stages = Vec::with_capacity(self.ends.len());
        for (number, layer) in self.layers.iter().enumerate() {
            cancel.check()?;
            map = layer.forward(&map)?;
            if self.ends.contains(&number) {
                stages.push(map.clone());
            }
        }
        let last = stages.len().saturating_sub(1);
        let mut found: Vec<FeatureMap> = Vec::with_capacity(stages.len());
        let coarse_to_fine = stages.iter().enumerate().rev().zip(&self.neck);
        for ((stage, map), convolution) in coarse_to_fine {
            let map = convolution.forward(map)?;
            let coarser = found.last().filter(|_| stage != last);
            let map = match coarser.filter(|_| self.joined.contains(&stage)) {
                Some(coarser) => map.add(&coarser.doubled()?)?,
                None => map,
            };
            found.push(map);
        }
        Ok(found.into_iter().rev().take(self.levels).collect())
    }

    /// What is added to patches: by their place in the picture, and in their window.
    fn places(&self, map: &FeatureMap) -> Result<Tensor> {
        let (height, width) = map.size();
        if !height.is_multiple_of(self.window) || !width.is_multiple_of(self.window) {
            return Err(misfit(map.size()));
        }
        let (device, dtype) = (map.rows.device(), map.rows.dtype());
        let wide = self.positions.rows(&[(width, height)], device, dtype)?;
        let channels = map.channels()?;
        let mut own = Vec::with_capacity(height * width * channels);
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let place = y % self.window * self.window + x % self.window;
            own.extend_from_slice(&self.own_positions[place * channels..][..channels]);
        }
        let own = Tensor::from_vec(own, (height * width, channels), device)?;
        elementwise::add(&wide, &own.to_dtype(dtype)?)
    }
}

/// The table of a whole picture, which is stretched over it, and that of a window.
fn position_tables(
    modules: &Modules<'_>,
    (window, width): (usize, usize),
) -> Result<(GridTable, Vec<f32>)> {
    let shape = modules.shape("pos_embed")?;
    let (rows, columns) = match shape[..] {
        [1, found, rows, columns] if found == width && rows * columns > 0 => (rows, columns),
        _ => {
            let reason = format!("the shape {shape:?} of pos_embed is not that of a map");
            return Err(modules.corrupt(reason));
        }
    };
    modules.shaped("pos_embed_window", &[1, width, window, window])?;
    let turned = |name: &str, places: usize| -> Result<Vec<f32>> {
        let values = modules.values(name)?;
        let place = |place: usize| {
            let values = &values;
            (0..width).map(move |channel| values[channel * places + place])
        };
        Ok((0..places).flat_map(place).collect())
    };
    let whole = turned("pos_embed", rows * columns)?;
    let whole = GridTable::new(whole, (columns, rows), width, GridPositions::Bicubic);
    Ok((whole, turned("pos_embed_window", window * window)?))
}

/// All layers, those that stages end with, and the channels of the stages' maps.
fn stages(
    raw: &RawConfig,
    body: &Modules<'_>,
    windows: &[usize],
    first: usize,
    cancel: &CancelToken,
) -> Result<(Vec<Layer>, Vec<usize>, Vec<usize>)> {
    let count = Some(windows.len());
    let blocks = sizes(raw, "blocks_per_stage", &[1, 2, 7, 2], count)?;
    let widths = sizes(raw, "embed_dim_per_stage", &[96, 192, 384, 768], count)?;
    let heads = sizes(raw, "num_attention_heads_per_stage", &[1, 2, 4, 8], count)?;
    let whole = places(raw, "global_attention_blocks", &[5, 7, 9])?;
    let stride = edge(raw, "query_stride", 2)?.max(1);
    let pools = raw
        .opt_usize_in("num_query_pool_stages", 0..=64)?
        .unwrap_or(3);
    let name = raw.opt_string("hidden_act")?.unwrap_or("gelu");
    let mut inputs = first;
    let (mut layers, mut ends) = (Vec::new(), Vec::new());
    for (number, (&width, &blocks)) in widths.iter().zip(&blocks).enumerate() {
        for block in 0..blocks {
            cancel.check()?;
            let begins = number > 0 && block == 0;
            let window = windows[number - usize::from(begins)];
            let window = (!whole.contains(&layers.len())).then_some(window);
            let pooled = begins && number <= pools;
            let stage = Stage {
                inputs,
                width,
                settings: Settings {
                    heads: heads[number],
                    epsilon: raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-6) as f32,
                    activation: activation(name, raw.file())?,
                },
            };
            let modules = body.at(format!("blocks.{}", layers.len()));
            let stride = if pooled { stride } else { 1 };
            if window.is_some_and(|window| window < stride || !window.is_multiple_of(stride)) {
                let reason = format!("windows of {:?} places can't be made smaller", window);
                return Err(Error::unsupported(raw.file(), reason));
            }
            layers.push(Layer::load(&modules, stage, window, stride)?);
            inputs = width;
        }
        ends.push(layers.len() - 1);
    }
    Ok((layers, ends, widths))
}
