//! RT-DETR's encoder: attention on the coarsest map, then maps joined from coarse to fine and back.

use candle_core::Tensor;

use super::attention::{counted_sines, EncoderLayer, Order, Sizes};
use super::{layers, size};
use crate::models::config::activation;
use crate::models::convolutional::Layer;
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::FeatureMap;
use crate::nn::Inventory;
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, HEADS, WIDTH};
use kernels::Activation;

#[derive(Debug)]
pub struct Pyramid {
    /// The level that each stack of layers reads.
    attention: Vec<(usize, Vec<EncoderLayer>)>,
    laterals: Vec<Layer>,
    down: Vec<Layer>,
    reductions: Vec<Layer>,
    up: Vec<Layer>,
    width: usize,
    temperature: f64,
    /// Positions are added unless the model was made for one size only.
    positions: bool,
}

/// Reads a convolution with its norm.
struct Reader<'a> {
    modules: Modules<'a>,
    epsilon: f64,
    activation: Activation,
}

impl<'a> Reader<'a> {
    fn at(&self, name: impl AsRef<str>) -> Self {
        Self {
            modules: self.modules.at(name),
            ..*self
        }
    }

    fn read(
        &self,
        name: &str,
        inputs: usize,
        activation: Option<Activation>,
    ) -> Result<(Layer, usize)> {
        self.shaped(name, inputs, activation, (1, 1))
    }

    fn shaped(
        &self,
        name: &str,
        inputs: usize,
        activation: Option<Activation>,
        (stride, groups): (usize, usize),
    ) -> Result<(Layer, usize)> {
        let of = Convolution {
            epsilon: self.epsilon,
            stride,
            groups,
            ..Convolution::new("conv", "norm", activation)
        };
        let modules = self.modules.at(name);
        Layer::load(&modules, inputs, of)
    }

    /// Blocks of two convolutions whose sum is activated, beside one that leads around them.
    fn partial(&self, inputs: usize) -> Result<(Layer, usize)> {
        let own = Some(self.activation);
        let (first, mut channels) = self.read("conv1", inputs, own)?;
        let mut chain = vec![first];
        let mut number = 0;
        while self.modules.has(&format!("bottlenecks.{number}")) {
            let block = self.at(format!("bottlenecks.{number}"));
            let (wide, outputs) = block.read("conv1", channels, None)?;
            let (narrow, _) = block.read("conv2", channels, None)?;
            chain.push(Layer::Sum(vec![wide, narrow], own));
            channels = outputs;
            number += 1;
        }
        let (beside, _) = self.read("conv2", inputs, own)?;
        let sum = Layer::Sum(vec![Layer::Chain(chain), beside], None);
        if !self.modules.has("conv3") {
            return Ok((sum, channels));
        }
        let (last, channels) = self.read("conv3", channels, own)?;
        Ok((Layer::Chain(vec![sum, last]), channels))
    }

    /// D-FINE's: one half goes through two such layers, and all that is made on the way is joined.
    fn aggregated(&self, inputs: usize) -> Result<(Layer, usize)> {
        let silu = Some(Activation::Silu);
        let (first, channels) = self.read("conv1", inputs, silu)?;
        let half = channels / 2;
        let (partial, narrow) = self.at("csp_rep1").partial(half)?;
        let (second, narrow) = self.read("conv2", narrow, silu)?;
        let one = Layer::Chain(vec![Layer::Channels(half, half), partial, second]);
        let (partial, more) = self.at("csp_rep2").partial(narrow)?;
        let (third, more) = self.read("conv3", more, silu)?;
        let two = Layer::Chain(vec![partial, third]);
        let (last, outputs) = self.read("conv4", channels + narrow + more, silu)?;
        let chain = vec![first, Layer::Dense(vec![one, two]), last];
        Ok((Layer::Chain(chain), outputs))
    }

    fn fusion(&self, inputs: usize) -> Result<Layer> {
        let (layer, channels) = if self.modules.has("csp_rep1") {
            self.aggregated(inputs)?
        } else {
            self.partial(inputs)?
        };
        if 2 * channels != inputs {
            return Err(self.modules.corrupt(format!(
                "{} makes {channels} channels of {inputs}",
                self.modules.path()
            )));
        }
        Ok(layer)
    }

    /// A map of half the size.
    fn reduction(&self, name: String, width: usize) -> Result<Layer> {
        let inside = self.at(name);
        if inside.modules.has("conv1") {
            let (mixed, width) = inside.read("conv1", width, None)?;
            let (halved, _) = inside.shaped("conv2", width, None, (2, width))?;
            return Ok(Layer::Chain(vec![mixed, halved]));
        }
        let own = Some(self.activation);
        Ok(inside.shaped("", width, own, (2, 1))?.0)
    }
}

impl Pyramid {
    /// Of maps with `width` channels, on so many levels.
    pub fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        count: usize,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let width = size(raw, "encoder_hidden_dim", 256, WIDTH)?;
        let named = |key: &str, usual: &str| -> Result<Activation> {
            activation(raw.opt_string(key)?.unwrap_or(usual), raw.file())
        };
        let sizes = Sizes {
            width,
            heads: size(raw, "encoder_attention_heads", 8, HEADS)?,
            activation: named("encoder_activation_function", "gelu")?,
            epsilon: raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32,
            order: if raw.opt_bool("normalize_before")?.unwrap_or(false) {
                Order::PreReplaced
            } else {
                Order::Post
            },
        };
        let read = raw.opt_integers("encode_proj_layers")?.unwrap_or(vec![2]);
        let mut attention = Vec::new();
        for (number, &level) in read.iter().enumerate() {
            let level = usize::try_from(level).ok().filter(|&level| level < count);
            let level = level.ok_or_else(|| {
                let reason = format!("\"encode_proj_layers\" are beyond its {count} levels");
                Error::corrupt(raw.file(), reason)
            })?;
            let modules = modules.at("aifi|encoder").at(number.to_string());
            let stack = layers(raw, "encoder_layers", 1, cancel, |number| {
                EncoderLayer::load(&modules.at(format!("layers.{number}")), sizes)
            })?;
            attention.push((level, stack));
        }
        let reader = Reader {
            modules: modules.clone(),
            epsilon: raw.opt_f64("batch_norm_eps")?.unwrap_or(1e-5),
            activation: named("activation_function", "silu")?,
        };
        // D-FINE's lateral convolutions have no activation.
        let fine = modules.has("fpn_blocks.0.csp_rep1");
        let lateral = (!fine).then_some(reader.activation);
        let steps = 0..count.saturating_sub(1);
        let each = |make: &dyn Fn(usize) -> Result<Layer>| -> Result<Vec<Layer>> {
            steps.clone().map(make).collect()
        };
        Ok(Self {
            attention,
            laterals: each(&|step| {
                let name = format!("lateral_convs.{step}");
                Ok(reader.read(&name, width, lateral)?.0)
            })?,
            down: each(&|step| reader.at(format!("fpn_blocks.{step}")).fusion(2 * width))?,
            reductions: each(&|step| reader.reduction(format!("downsample_convs.{step}"), width))?,
            up: each(&|step| reader.at(format!("pan_blocks.{step}")).fusion(2 * width))?,
            width,
            temperature: raw
                .opt_f64("positional_encoding_temperature")?
                .unwrap_or(10_000.0),
            positions: !raw.has("eval_size"),
        })
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let attention = self.attention.iter().flat_map(|(_, stack)| stack);
        attention
            .into_iter()
            .try_for_each(|layer| layer.list(inventory))?;
        [&self.laterals, &self.down, &self.reductions, &self.up]
            .into_iter()
            .flatten()
            .try_for_each(|layer| layer.list(inventory))
    }

    /// Maps from fine to coarse, and the same again.
    pub fn forward(&self, maps: &[FeatureMap], cancel: &CancelToken) -> Result<Vec<FeatureMap>> {
        let mut maps = maps.to_vec();
        for (level, stack) in &self.attention {
            let Some(map) = maps.get_mut(*level) else {
                continue;
            };
            *map = self.attended(map, stack, cancel)?;
        }
        let mut coarse_to_fine: Vec<FeatureMap> = maps.last().cloned().into_iter().collect();
        let rest = maps.iter().rev().skip(1);
        for ((lateral, block), map) in self.laterals.iter().zip(&self.down).zip(rest) {
            cancel.check()?;
            let Some(coarse) = coarse_to_fine.last_mut() else {
                break;
            };
            *coarse = lateral.forward(coarse)?;
            let joined = FeatureMap::join(&[coarse.doubled()?, map.clone()])?;
            coarse_to_fine.push(block.forward(&joined)?);
        }
        let mut fine_to_coarse: Vec<FeatureMap> =
            coarse_to_fine.last().cloned().into_iter().collect();
        let rest = coarse_to_fine.iter().rev().skip(1);
        for ((reduction, block), map) in self.reductions.iter().zip(&self.up).zip(rest) {
            cancel.check()?;
            let Some(fine) = fine_to_coarse.last() else {
                break;
            };
            let joined = FeatureMap::join(&[reduction.forward(fine)?, map.clone()])?;
            fine_to_coarse.push(block.forward(&joined)?);
        }
        Ok(fine_to_coarse)
    }

    fn attended(
        &self,
        map: &FeatureMap,
        stack: &[EncoderLayer],
        cancel: &CancelToken,
    ) -> Result<FeatureMap> {
        let mut rows = map.rows.clone();
        let positions = if self.positions {
            let sines = counted_sines(map.size(), self.width, self.temperature)?;
            let sines = Tensor::from_vec(sines, rows.shape(), rows.device())?;
            Some(sines.to_dtype(rows.dtype())?)
        } else {
            None
        };
        for layer in stack {
            cancel.check()?;
            rows = layer.forward(&rows, positions.as_ref())?;
        }
        FeatureMap::new(rows, map.size())
    }
}
