//! GOT-OCR's images: SAM's encoder, and two convolutions that bring its map to rows of a decoder's width.

use candle_core::{DType, Device, Tensor};

use crate::models::modules::{Convolution, Modules};
use crate::models::prompted::encoder::ImageEncoder;
use crate::nn::{Conv2d, FeatureMap, Inventory, Linear};
use crate::{CancelToken, Result};
use formats::files::raw_config::RawConfig;
use formats::image::View;

#[derive(Debug)]
pub struct Windowed {
    images: ImageEncoder,
    smaller: [Conv2d; 2],
    projector: Linear,
    device: Device,
    dtype: DType,
}

impl Windowed {
    /// From the configuration of the tower; rows have `outputs` numbers.
    pub fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        outputs: usize,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let tower = modules.at("model.vision_tower|vision_tower");
        let images = ImageEncoder::load(raw, &tower, cancel)?;
        let leads = modules.at("model.multi_modal_projector|multi_modal_projector");
        let halved = |name: &str, inputs: usize| {
            let of = Convolution {
                stride: 2,
                ..Convolution::new(name, "", None)
            };
            leads.convolution(inputs, of)
        };
        let first = halved("conv_upsampler1", images.channels())?;
        let second = halved("conv_upsampler2", first.outputs())?;
        let projector = leads.sized_linear("multimodal_projector", second.outputs(), outputs)?;
        Ok(Self {
            images,
            smaller: [first, second],
            projector,
            device: modules.device().clone(),
            dtype: modules.dtype(),
        })
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        self.images.list(&mut inventory)?;
        for convolution in &self.smaller {
            convolution.list(&mut inventory)?;
        }
        inventory.add_linear(&self.projector)?;
        inventory.add_rows("activation", &self.device)?;
        Ok(inventory)
    }

    /// What stands for a view: [rows, width].
    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Tensor> {
        let image = FeatureMap::of_view(view, (&self.device, self.dtype))?;
        let mut map = self.images.forward(&image, cancel)?;
        for convolution in &self.smaller {
            map = convolution.forward(&map)?;
        }
        self.projector.forward(&map.rows)
    }
}
