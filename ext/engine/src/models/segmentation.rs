//! Segmenters: pictures in, and the scores of all labels for places of the picture out.

use candle_core::{DType, Device};

use crate::models::convolutional::Backbone;
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{Conv2d, Inventory, Linear};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::image::View;
use formats::weights::WeightSource;
use kernels::Activation;

/// The `model_type`s of segmenters.
pub const TYPES: &[&str] = &["segformer"];

/// SegFormer: the maps of all stages, brought to one size, say together what is where.
#[derive(Debug)]
pub struct Segmenter {
    backbone: Backbone,
    projections: Vec<Linear>,
    fuse: Conv2d,
    classifier: Conv2d,
    device: Device,
    dtype: DType,
}

impl Segmenter {
    pub fn load(
        raw: &RawConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let found = raw.model_type()?.unwrap_or("(none)");
        if !TYPES.contains(&found) {
            let kind = ("model_type", found);
            let unknown = crate::models::families::unknown;
            return Err(unknown(raw.file(), kind, "a segmenter", TYPES));
        }
        let names = source.names();
        let modules = Modules::new(source, &names, (device, dtype), int8);
        if !modules.has("decode_head") {
            let reason = "the checkpoint has no head for segmentation: use one that was trained for this task";
            return Err(Error::unsupported(&source.file(""), reason));
        }
        let backbone = Backbone::load(Some(raw), &modules.at("segformer"), cancel)?;
        let head = modules.at("decode_head");
        let mut projections: Vec<Linear> = Vec::new();
        for (stage, channels) in backbone.channels().into_iter().enumerate() {
            let inside = head.at("linear_c|linear_projections");
            projections.push(inside.linear(&format!("{stage}.proj"), channels)?);
        }
        let joined = projections.iter().map(Linear::outputs).sum();
        let relu = Some(Activation::Relu);
        let fuse = head.convolution(joined, Convolution::new("linear_fuse", "batch_norm", relu))?;
        let classifier = Convolution::new("classifier", "", None);
        Ok(Self {
            classifier: head.convolution(fuse.outputs(), classifier)?,
            fuse,
            projections,
            backbone,
            device: device.clone(),
            dtype,
        })
    }

    pub fn classes(&self) -> usize {
        self.classifier.outputs()
    }

    pub fn hidden_size(&self) -> usize {
        self.backbone.channels().last().copied().unwrap_or(0)
    }

    pub fn layer_count(&self) -> usize {
        self.projections.len()
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        self.backbone.list(&mut inventory)?;
        for projection in &self.projections {
            inventory.add_linear(projection)?;
        }
        self.fuse.list(&mut inventory)?;
        self.classifier.list(&mut inventory)?;
        Ok(inventory)
    }

    /// [places, labels], of which there are fewer than pixels.
    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<FeatureMap> {
        let image = FeatureMap::of_view(view, (&self.device, self.dtype))?;
        let all: Vec<usize> = (0..self.projections.len()).collect();
        let maps = self.backbone.forward(&image, &all, cancel)?;
        let size = maps.first().map_or((0, 0), FeatureMap::size);
        let mut joined = Vec::with_capacity(maps.len());
        for (map, projection) in maps.iter().zip(&self.projections).rev() {
            let map = map.with(projection.forward(&map.rows)?)?;
            joined.push(map.stretched(size)?);
        }
        cancel.check()?;
        let fused = self.fuse.forward(&FeatureMap::join(&joined)?)?;
        self.classifier.forward(&fused)
    }
}
