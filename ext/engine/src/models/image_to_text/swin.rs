//! Donut's image encoder: attention inside windows of a map, every second layer's windows moved by half, and maps of
//! half the size from stage to stage.

use candle_core::{DType, Device, Tensor};

use crate::models::config;
use crate::models::detection::attention::check_heads;
use crate::models::modules::{Convolution, Modules};
use crate::nn::{elementwise, Conv2d, Epilogue, FeatureMap, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, WIDTH};
use formats::image::{View, CHANNELS};
use kernels::tensor;
use kernels::Activation;

/// What is added to the scores of places that only the moved windows bring together.
const APART: f32 = -100.0;
/// Of norms that the configuration does not name.
const EPSILON: f32 = 1e-5;
/// So many scores are computed at once.
const MOST_SCORES: usize = 1 << 22;
const SIZES: std::ops::RangeInclusive<usize> = 1..=4096;

#[derive(Debug)]
pub struct Swin {
    patches: Conv2d,
    patch: usize,
    norm: Norm,
    stages: Vec<Stage>,
    place: (Device, DType),
    width: usize,
}

#[derive(Debug)]
struct Stage {
    blocks: Vec<Block>,
    merging: Option<(Norm, Linear)>,
}

#[derive(Debug)]
struct Block {
    before: Norm,
    /// Queries, keys and values.
    read: [Linear; 3],
    output: Linear,
    after: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
    heads: usize,
    window: usize,
    shift: usize,
    /// [1, heads, places, places]
    bias: Tensor,
}

impl Swin {
    pub fn load(raw: &RawConfig, modules: &Modules<'_>, cancel: &CancelToken) -> Result<Self> {
        if raw.opt_bool("use_absolute_embeddings")?.unwrap_or(false) {
            let reason = "\"use_absolute_embeddings\" of Donut's image encoder is not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let width = raw.opt_usize_in("embed_dim", WIDTH)?.unwrap_or(96);
        let patch = square(raw, "patch_size", 4)?;
        let window = raw.opt_usize_in("window_size", SIZES)?.unwrap_or(7);
        let depths = counts(raw, "depths", &[2, 2, 6, 2])?;
        let heads = counts(raw, "num_heads", &[3, 6, 12, 24])?;
        if heads.len() != depths.len() || depths.len() > 16 {
            let reason = "\"depths\" and \"num_heads\" are not lists of one length";
            return Err(Error::corrupt(raw.file(), reason));
        }
        let name = raw.opt_string("hidden_act")?.unwrap_or("gelu");
        let activation = config::activation(name, raw.file())?;
        let epsilon = raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32;
        let embeddings = modules.at("embeddings");
        let kernel = [width, CHANNELS, patch, patch];
        embeddings.shaped("patch_embeddings.projection.weight", &kernel)?;
        let of = Convolution {
            stride: patch,
            padding: Some(0),
            ..Convolution::new("patch_embeddings.projection", "", None)
        };
        let patches = embeddings.convolution(CHANNELS, of)?;
        let mut stages = Vec::with_capacity(depths.len());
        for (number, (&depth, &heads)) in depths.iter().zip(&heads).enumerate() {
            let modules = modules.at(format!("encoder.layers.{number}"));
            let wide = width << number;
            let mut blocks = Vec::new();
            for block in 0..depth {
                cancel.check()?;
                let modules = modules.at(format!("blocks.{block}"));
                let shift = if block % 2 == 1 { window / 2 } else { 0 };
                let sizes = (wide, heads, window, shift);
                blocks.push(Block::load(&modules, sizes, (activation, epsilon))?);
            }
            let merging = (number + 1 < depths.len()).then(|| -> Result<_> {
                let modules = modules.at("downsample");
                let norm = modules.layer_norm("norm", 4 * wide, EPSILON)?;
                Ok((norm, modules.sized_linear("reduction", 4 * wide, 2 * wide)?))
            });
            stages.push(Stage {
                blocks,
                merging: merging.transpose()?,
            });
        }
        Ok(Self {
            norm: embeddings.layer_norm("norm", width, EPSILON)?,
            patches,
            patch,
            width: width << (depths.len() - 1),
            stages,
            place: (modules.device().clone(), modules.dtype()),
        })
    }

    /// Of the states.
    pub fn width(&self) -> usize {
        self.width
    }

    pub fn layer_count(&self) -> usize {
        self.stages.iter().map(|stage| stage.blocks.len()).sum()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.patches.list(inventory)?;
        inventory.add_norm(&self.norm)?;
        for stage in &self.stages {
            stage.blocks.iter().try_for_each(|it| it.list(inventory))?;
            if let Some((norm, reduction)) = &stage.merging {
                inventory.add_norm(norm)?;
                inventory.add_linear(reduction)?;
            }
        }
        Ok(())
    }

    /// The states of a picture's places, [places, width].
    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Tensor> {
        let map = FeatureMap::of_view(view, (&self.place.0, self.place.1))?;
        let beyond = |edge: usize| edge.next_multiple_of(self.patch) - edge;
        let (right, below) = (beyond(view.width), beyond(view.height));
        let map = if right + below > 0 {
            map.padded(right, below)?
        } else {
            map
        };
        let map = self.patches.forward(&map)?;
        let mut map = map.with(self.norm.forward(&map.rows)?)?;
        for stage in &self.stages {
            for block in &stage.blocks {
                cancel.check()?;
                map = block.forward(&map, cancel)?;
            }
            if let Some((norm, reduction)) = &stage.merging {
                map = merged(&map, norm, reduction)?;
            }
        }
        Ok(map.rows)
    }
}

impl Block {
    fn load(
        modules: &Modules<'_>,
        (width, heads, window, shift): (usize, usize, usize, usize),
        (activation, epsilon): (Activation, f32),
    ) -> Result<Self> {
        check_heads(modules, width, heads)?;
        let attention = modules.at("attention");
        let own = attention.at("self");
        let linear = |name: &str| own.sized_linear(name, width, width);
        let norm = |name: &str| modules.layer_norm(name, width, epsilon);
        let up = modules.linear("intermediate.dense", width)?;
        let inner = up.outputs();
        Ok(Self {
            before: norm("layernorm_before")?,
            read: [linear("query")?, linear("key")?, linear("value")?],
            output: attention.sized_linear("output.dense", width, width)?,
            after: norm("layernorm_after")?,
            up,
            down: modules.sized_linear("output.dense", inner, width)?,
            activation,
            heads,
            window,
            shift,
            bias: distances(&own, window, heads)?,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let linears = self.read.iter().chain([&self.output, &self.up, &self.down]);
        for linear in linears {
            inventory.add_linear(linear)?;
        }
        inventory.add_tensor(&self.bias);
        inventory.add_norm(&self.before)?;
        inventory.add_norm(&self.after)
    }

    fn forward(&self, map: &FeatureMap, cancel: &CancelToken) -> Result<FeatureMap> {
        let least = map.height.min(map.width);
        if least < self.window {
            return Err(Error::InvalidInput(format!(
                "the image became a map of {}x{} places, and the model has windows of {} to a side: its \
                 preprocessor_config.json belongs to another model",
                map.width, map.height, self.window
            )));
        }
        // A map that is one window high or wide is not moved.
        let shift = if least > self.window { self.shift } else { 0 };
        let windows = Windows::new(map.size(), self.window, shift);
        let x = &map.rows;
        let device = x.device();
        let normed = self.before.forward(x)?.pad_with_zeros(0, 0, 1)?;
        let area = self.window * self.window;
        let most = (MOST_SCORES / (self.heads * area * area)).max(1);
        let mut mixed = Vec::new();
        for rows in windows.rows.chunks(most * area) {
            cancel.check()?;
            let places = Tensor::from_slice(rows, rows.len(), device)?;
            let divided = normed.index_select(&places, 0)?.contiguous()?;
            let mask = windows.mask(mixed.len() * most, rows.len() / area, device)?;
            mixed.push(self.attend(&divided, area, mask.as_ref(), cancel)?);
        }
        let mixed = Tensor::cat(&mixed, 0)?.to_dtype(x.dtype())?;
        let places = Tensor::from_slice(&windows.places, windows.places.len(), device)?;
        let x = elementwise::add(x, &mixed.index_select(&places, 0)?.contiguous()?)?;
        let inner = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let inner = self.up.forward_with(&self.after.forward(&x)?, &inner)?;
        let residual = Epilogue {
            residual: Some(&x),
            ..Epilogue::default()
        };
        map.with(self.down.forward_with(&inner, &residual)?)
    }

    /// [windows · places, width] of the same.
    fn attend(
        &self,
        x: &Tensor,
        area: usize,
        mask: Option<&Tensor>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let (count, size) = (rows / area, width / self.heads);
        let heads = |linear: &Linear| -> Result<Tensor> {
            let rows = linear.forward(x)?.to_dtype(DType::F32)?;
            let rows = rows.reshape((count, area, self.heads, size))?;
            Ok(rows.transpose(1, 2)?.contiguous()?)
        };
        let product = |a: &Tensor, b: &Tensor| {
            tensor::matmul::matmul(&a.contiguous()?, &b.contiguous()?, cancel)
        };
        let [query, key, value] = &self.read;
        let scores = product(&heads(query)?, &heads(key)?.transpose(2, 3)?)?;
        let scores = elementwise::scale(&scores, 1.0 / (size as f32).sqrt())?;
        let mut scores = elementwise::add(&scores, &self.bias)?;
        if let Some(mask) = mask {
            scores = elementwise::add(&scores, mask)?;
        }
        let mixed = product(&kernels::softmax(&scores.contiguous()?)?, &heads(value)?)?;
        let mixed = mixed.transpose(1, 2)?.contiguous()?;
        let mixed = mixed.reshape((rows, width))?;
        self.output.forward(&mixed.to_dtype(x.dtype())?)
    }
}

/// How a map of (height, width) is divided.
pub(super) struct Windows {
    /// For each place of each window, the map's row; the one behind the last outside of the map.
    pub rows: Vec<u32>,
    /// For each row of the map, its place among all windows'.
    pub places: Vec<u32>,
    /// For each place of each window, which part of the map it was in before windows were moved; empty where they
    /// are not.
    regions: Vec<u8>,
    area: usize,
}

impl Windows {
    pub fn new((height, width): (usize, usize), size: usize, shift: usize) -> Self {
        let (down, across) = (height.div_ceil(size), width.div_ceil(size));
        let padded = (down * size, across * size);
        let area = size * size;
        let none = (height * width) as u32;
        let mut rows = Vec::with_capacity(padded.0 * padded.1);
        let mut places = vec![0u32; height * width];
        let mut regions = Vec::new();
        let region = |at: usize, padded: usize| {
            u8::from(at >= padded - size) + u8::from(at >= padded - shift)
        };
        for window in 0..down * across {
            for place in 0..area {
                let y = window / across * size + place / size;
                let x = window % across * size + place % size;
                if shift > 0 {
                    regions.push(region(y, padded.0) * 3 + region(x, padded.1));
                }
                let (y, x) = ((y + shift) % padded.0, (x + shift) % padded.1);
                if y < height && x < width {
                    places[y * width + x] = rows.len() as u32;
                    rows.push((y * width + x) as u32);
                } else {
                    rows.push(none);
                }
            }
        }
        Self {
            rows,
            places,
            regions,
            area,
        }
    }

    /// What is added to the scores of some windows, [windows, 1, places, places].
    fn mask(&self, first: usize, count: usize, device: &Device) -> Result<Option<Tensor>> {
        if self.regions.is_empty() {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(count * self.area * self.area);
        let own = &self.regions[first * self.area..][..count * self.area];
        for regions in own.chunks_exact(self.area) {
            for one in regions {
                let apart = regions
                    .iter()
                    .map(|other| if one == other { 0.0 } else { APART });
                values.extend(apart);
            }
        }
        let shape = (count, 1, self.area, self.area);
        Ok(Some(Tensor::from_vec(values, shape, device)?))
    }
}

/// The bias of every two places of a window, [1, heads, places, places] in f32.
fn distances(modules: &Modules<'_>, size: usize, heads: usize) -> Result<Tensor> {
    let span = 2 * size - 1;
    let table = modules.shaped("relative_position_bias_table", &[span * span, heads])?;
    let area = size * size;
    let mut rows = Vec::with_capacity(area * area);
    for one in 0..area {
        for other in 0..area {
            let down = one / size + size - 1 - other / size;
            let right = one % size + size - 1 - other % size;
            rows.push((down * span + right) as u32);
        }
    }
    let rows = Tensor::from_vec(rows, area * area, modules.device())?;
    let bias = table.to_dtype(DType::F32)?.index_select(&rows, 0)?;
    let bias = bias.t()?.contiguous()?;
    Ok(bias.reshape((1, heads, area, area))?)
}

/// Every four places as one.
fn merged(map: &FeatureMap, norm: &Norm, reduction: &Linear) -> Result<FeatureMap> {
    let (height, width) = (map.height.div_ceil(2), map.width.div_ceil(2));
    let none = (map.height * map.width) as u32;
    let mut rows = Vec::with_capacity(4 * height * width);
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        for (right, down) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (y, x) = (2 * y + down, 2 * x + right);
            let inside = y < map.height && x < map.width;
            rows.push(if inside {
                (y * map.width + x) as u32
            } else {
                none
            });
        }
    }
    let count = rows.len();
    let rows = Tensor::from_vec(rows, count, map.rows.device())?;
    let padded = map.rows.pad_with_zeros(0, 0, 1)?;
    let four = padded.index_select(&rows, 0)?.contiguous()?;
    let four = four.reshape((height * width, 4 * map.channels()?))?;
    FeatureMap::new(reduction.forward(&norm.forward(&four)?)?, (height, width))
}

/// An edge that is one number or a pair of the same.
fn square(raw: &RawConfig, key: &str, usual: usize) -> Result<usize> {
    match counts(raw, key, &[usual])?[..] {
        [edge] => Ok(edge),
        [high, wide] if high == wide => Ok(high),
        _ => Err(Error::unsupported(
            raw.file(),
            format!("{key:?} is not the edge of a square"),
        )),
    }
}

/// A list of sizes.
pub(super) fn counts(raw: &RawConfig, key: &str, usual: &[usize]) -> Result<Vec<usize>> {
    let Some(found) = raw.opt_integers(key)? else {
        return Ok(usual.to_vec());
    };
    let count = |number: &i64| usize::try_from(*number).ok().filter(|n| SIZES.contains(n));
    let found: Option<Vec<usize>> = found.iter().map(count).collect();
    found
        .filter(|found| !found.is_empty())
        .ok_or_else(|| Error::corrupt(raw.file(), format!("{key:?} is not a list of sizes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_windows_cover_a_map_that_is_padded() {
        let windows = Windows::new((3, 4), 2, 1);
        assert_eq!(windows.rows.len(), 16);
        let found: Vec<u32> = windows
            .places
            .iter()
            .map(|&place| windows.rows[place as usize])
            .collect();
        assert_eq!(found, (0..12).collect::<Vec<u32>>());
        assert_eq!(windows.rows[..4], [5, 6, 9, 10]);
        let mask = windows.mask(0, 1, &Device::Cpu).unwrap().unwrap();
        let first: Vec<f32> = mask.flatten_all().unwrap().to_vec1().unwrap();
        assert!(first.iter().all(|&value| value == 0.0));
        assert!(Windows::new((3, 4), 2, 0)
            .mask(0, 1, &Device::Cpu)
            .unwrap()
            .is_none());
    }
}
