//! Mask2Former: queries that are each a class and a mask.

mod decoder;
mod pixels;

use candle_core::{DType, Device};

use crate::models::convolutional::Backbone;
use crate::models::detection::numbers;
use crate::models::modules::Modules;
use crate::nn::feature_map::FeatureMap;
use crate::nn::{Inventory, Linear};
use crate::{CancelToken, Result};
use decoder::MaskDecoder;
use formats::files::raw_config::RawConfig;
use formats::image::View;
use formats::weights::WeightSource;
use pixels::PixelDecoder;

/// The `model_type`s of segmenters whose queries are masks.
pub const TYPES: &[&str] = &["mask2former"];

#[derive(Debug)]
pub struct Mask2Former {
    backbone: Backbone,
    wanted: Vec<usize>,
    pixels: PixelDecoder,
    decoder: MaskDecoder,
    /// The last class stands for nothing.
    classes: Linear,
    device: Device,
    dtype: DType,
}

/// What queries found in a picture.
pub struct Found {
    /// [queries, classes + 1], before the softmax; the last one stands for nothing.
    pub logits: Vec<f32>,
    /// Its channels are the masks of queries, before the sigmoid.
    pub masks: FeatureMap,
}

impl Mask2Former {
    pub fn load(
        raw: &RawConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let names = source.names();
        let modules = Modules::new(source, &names, (device, dtype), int8);
        let body = modules.at("model");
        let level = body.at("pixel_level_module");
        let config = raw.nested("backbone_config")?;
        let backbone = Backbone::load(Some(&config), &level.at("encoder"), cancel)?;
        let wanted = backbone.wanted(Some(&config))?;
        let all = backbone.channels();
        let channels: Vec<usize> = wanted.iter().map(|&stage| all[stage]).collect();
        let pixels = PixelDecoder::load(raw, &level.at("decoder"), &channels, cancel)?;
        let widths = (pixels.width(), pixels.outputs());
        let decoder = MaskDecoder::load(raw, &body.at("transformer_module"), widths, cancel)?;
        Ok(Self {
            classes: modules.linear("class_predictor", decoder.width())?,
            backbone,
            wanted,
            pixels,
            decoder,
            device: device.clone(),
            dtype,
        })
    }

    /// Without the one that stands for nothing.
    pub fn classes(&self) -> usize {
        self.classes.outputs().saturating_sub(1)
    }

    pub fn hidden_size(&self) -> usize {
        self.decoder.width()
    }

    pub fn layer_count(&self) -> usize {
        self.decoder.layer_count()
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        self.backbone.list(&mut inventory)?;
        self.pixels.list(&mut inventory)?;
        self.decoder.list(&mut inventory)?;
        inventory.add_linear(&self.classes)?;
        inventory.add_rows("activation", &self.device)?;
        Ok(inventory)
    }

    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Found> {
        let image = FeatureMap::of_view(view, (&self.device, self.dtype))?;
        let maps = self.backbone.forward(&image, &self.wanted, cancel)?;
        let pixels = self.pixels.forward(&maps, cancel)?;
        let decoded = self.decoder.forward(&pixels, cancel)?;
        Ok(Found {
            logits: numbers(&self.classes.forward(&decoded.queries)?)?,
            masks: decoded.masks,
        })
    }
}
