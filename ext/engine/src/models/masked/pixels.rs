//! The pixel decoder of Mask2Former: the three coarsest maps look at each other, and finer ones are added to what comes
//! of it.

use candle_core::Tensor;

use crate::models::config::activation;
use crate::models::detection::attention::{Order, Sizes, TEMPERATURE};
use crate::models::detection::deformable::{Levels, Reach, Settings};
use crate::models::detection::levels::{centres, level_positions, DeformableLayer, Projection};
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{Conv2d, Inventory};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, HEADS, LAYERS, WIDTH};
use kernels::Activation;

/// So many maps look at each other.
pub const LEVELS: usize = 3;
/// Places of each level that a place looks at.
const POINTS: usize = 4;

#[derive(Debug)]
pub struct PixelDecoder {
    /// From coarse to fine.
    projections: Vec<Projection>,
    /// [levels, width]
    levels: Tensor,
    layers: Vec<DeformableLayer>,
    /// For each finer map what it is brought to, and what is made of the sum.
    finer: Vec<(Projection, Projection)>,
    masks: Conv2d,
    width: usize,
}

/// Maps of one picture.
pub struct Pixels {
    /// From coarse to fine.
    pub maps: Vec<FeatureMap>,
    /// What masks are products with.
    pub finest: FeatureMap,
}

impl PixelDecoder {
    /// Of a backbone's maps with so many channels, from fine to coarse.
    pub fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        channels: &[usize],
        cancel: &CancelToken,
    ) -> Result<Self> {
        let width = raw.opt_usize_in("feature_size", WIDTH)?.unwrap_or(256);
        let finer = finer_maps(raw)?;
        if channels.len() < LEVELS || finer > channels.len() {
            let reason = format!("a backbone of {} maps has too few", channels.len());
            return Err(Error::corrupt(raw.file(), reason));
        }
        let coarse = channels.iter().rev().take(LEVELS).enumerate();
        let projections = coarse.map(|(number, &inputs)| {
            let modules = modules.at(format!("input_projections.{number}"));
            Projection::load(&modules, (inputs, width), 1)
        });
        let sizes = Sizes {
            width,
            heads: raw.opt_usize_in("num_attention_heads", HEADS)?.unwrap_or(8),
            // Whatever the configuration calls its activation.
            activation: activation("relu", raw.file())?,
            epsilon: 1e-5,
            order: Order::Post,
        };
        let settings = Settings {
            points: vec![POINTS; LEVELS],
            reach: Reach::Place,
            nearest: false,
        };
        let mut layers = Vec::new();
        for number in 0..raw.opt_usize_in("encoder_layers", LAYERS)?.unwrap_or(6) {
            cancel.check()?;
            let modules = modules.at(format!("encoder.layers.{number}"));
            layers.push(DeformableLayer::load(&modules, sizes, &settings)?);
        }
        let of = || Convolution::new("0", "", None);
        let finer = (0..finer).rev().map(|number| {
            let adapter = modules.at(format!("adapter_{}", number + 1));
            let layer = modules.at(format!("layer_{}", number + 1));
            let relu = Some(Activation::Relu);
            Ok((
                Projection::activated(&adapter, (channels[number], width), of(), None)?,
                Projection::activated(&layer, (width, width), of(), relu)?,
            ))
        });
        Ok(Self {
            projections: projections.collect::<Result<_>>()?,
            levels: modules.shaped("level_embed", &[LEVELS, width])?,
            layers,
            finer: finer.collect::<Result<_>>()?,
            masks: modules.convolution(width, Convolution::new("mask_projection", "", None))?,
            width,
        })
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// How many numbers the places of the finest map have.
    pub fn outputs(&self) -> usize {
        self.masks.outputs()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let finer = self.finer.iter().flat_map(|(one, other)| [one, other]);
        for projection in self.projections.iter().chain(finer) {
            projection.list(inventory)?;
        }
        inventory.add_tensor(&self.levels);
        for layer in &self.layers {
            layer.list(inventory)?;
        }
        self.masks.list(inventory)
    }

    /// `maps` are from fine to coarse.
    pub fn forward(&self, maps: &[FeatureMap], cancel: &CancelToken) -> Result<Pixels> {
        let coarse = maps.iter().rev().zip(&self.projections);
        let coarse = coarse.map(|(map, projection)| projection.forward(map));
        let coarse: Vec<FeatureMap> = coarse.collect::<Result<_>>()?;
        let sizes: Vec<_> = coarse.iter().map(FeatureMap::size).collect();
        let rows: Vec<_> = coarse.iter().map(|map| &map.rows).collect();
        let mut levels = Levels {
            rows: Tensor::cat(&rows, 0)?.contiguous()?,
            sizes: sizes.clone(),
        };
        let positions = level_positions(&sizes, &self.levels, TEMPERATURE)?;
        let centres = centres(&sizes);
        for layer in &self.layers {
            cancel.check()?;
            levels.rows = layer.forward(&levels, &positions, &centres)?;
        }
        let mut start = 0;
        let mut found = Vec::with_capacity(LEVELS);
        for size in sizes {
            let rows = levels.rows.narrow(0, start, size.0 * size.1)?;
            found.push(FeatureMap::new(rows.contiguous()?, size)?);
            start += size.0 * size.1;
        }
        let mut finest = found.last().cloned();
        let finer = maps.iter().take(self.finer.len()).rev();
        for (map, (adapter, layer)) in finer.zip(&self.finer) {
            cancel.check()?;
            let adapted = adapter.forward(map)?;
            if let Some(coarse) = finest {
                finest = Some(layer.forward(&adapted.add(&coarse.stretched(adapted.size())?)?)?);
            }
        }
        let finest =
            finest.ok_or_else(|| Error::Internal("a pixel decoder without maps".into()))?;
        Ok(Pixels {
            finest: self.masks.forward(&finest)?,
            maps: found,
        })
    }
}

/// How many maps are finer than those that look at each other, by the strides of the configuration.
fn finer_maps(raw: &RawConfig) -> Result<usize> {
    let strides = raw
        .opt_integers("feature_strides")?
        .unwrap_or(vec![4, 8, 16, 32]);
    let finest = strides.iter().rev().take(LEVELS).min().copied();
    let common = raw.opt_usize_in("common_stride", 1..=1 << 16)?.unwrap_or(4);
    let finest = finest.and_then(|stride| usize::try_from(stride).ok());
    let finest = finest.filter(|&stride| stride >= common && stride <= 1 << 16);
    let Some(finest) = finest else {
        let reason = "\"feature_strides\" and \"common_stride\" do not fit each other";
        return Err(Error::corrupt(raw.file(), reason));
    };
    Ok((finest.ilog2() - common.ilog2()) as usize)
}
