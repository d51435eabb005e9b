//! Gemma 3n's images: MobileNet V5, whose map a product leads to the decoder's width between two norms.

use candle_core::{DType, Device, Tensor};

use crate::models::convolutional::mobilenet5::Joined;
use crate::models::modules::Modules;
use crate::nn::{FeatureMap, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::image::View;

/// No file asks for more places of a picture.
const MOST_PLACES: usize = 1 << 14;

#[derive(Debug)]
pub struct Fused {
    maps: Joined,
    norm: Norm,
    projection: Linear,
    last: Norm,
    /// What the token behind a picture becomes, which the decoder's table does not know: [1, width].
    end: Tensor,
    device: Device,
    dtype: DType,
}

impl Fused {
    /// From the configuration of the whole model; rows have `outputs` numbers.
    pub fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        outputs: usize,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let vision = raw.nested("vision_config")?;
        let architecture = vision.opt_string("architecture")?;
        if architecture.is_some_and(|name| !name.starts_with("mobilenetv5")) {
            let reason = format!("the vision tower {architecture:?} of Gemma 3n is not supported");
            return Err(Error::unsupported(raw.file(), reason));
        }
        let places = raw.opt_usize_in("vision_soft_tokens_per_image", 1..=MOST_PLACES)?;
        let places = places.unwrap_or(256);
        let side = places.isqrt();
        if side * side != places {
            let reason = format!("{places} \"vision_soft_tokens_per_image\" are not a square");
            return Err(Error::corrupt(raw.file(), reason));
        }
        let tower = modules.at("model.vision_tower.timm_model|vision_tower.timm_model");
        let maps = Joined::load(&tower, side, cancel)?;
        let width = maps.channels();
        let epsilon = vision.opt_f64("rms_norm_eps")?.unwrap_or(1e-6) as f32;
        let of = modules.at("model.embed_vision|embed_vision");
        let projection = of.sized_linear("embedding_projection", width, outputs)?;
        let ones = Tensor::ones(outputs, modules.dtype(), modules.device())?;
        let last = Norm::rms(ones, 0.0, epsilon);
        let end = of.rms_norm("hard_embedding_norm", width, epsilon)?;
        let end = end.forward(&end_of(raw, &vision, &of, width)?)?;
        Ok(Self {
            end: last.forward(&projection.forward(&end)?)?,
            // What is normed is √width times as large.
            norm: of.rms_norm("soft_embedding_norm", width, epsilon / width as f32)?,
            maps,
            projection,
            last,
            device: modules.device().clone(),
            dtype: modules.dtype(),
        })
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        self.maps.list(&mut inventory)?;
        inventory.add_norm(&self.norm)?;
        inventory.add_norm(&self.last)?;
        inventory.add_linear(&self.projection)?;
        inventory.add_tensor(&self.end);
        inventory.add_rows("activation", &self.device)?;
        if self.maps.head() > 0 {
            inventory.add_attention(&self.device, self.dtype, self.maps.head())?;
        }
        Ok(inventory)
    }

    /// What stands for a view and for the token behind it: [rows, width].
    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Tensor> {
        let map = FeatureMap::of_view(view, (&self.device, self.dtype))?;
        let rows = self.norm.forward(&self.maps.forward(&map, cancel)?)?;
        let rows = self.last.forward(&self.projection.forward(&rows)?)?;
        Ok(Tensor::cat(&[&rows, &self.end], 0)?)
    }
}

/// The row of the token behind a picture, in the table of the tower.
fn end_of(raw: &RawConfig, vision: &RawConfig, of: &Modules<'_>, width: usize) -> Result<Tensor> {
    let first = vision.opt_usize("vocab_offset")?.unwrap_or(262_144);
    let end = raw.opt_usize("eoi_token_id")?.unwrap_or(262_144);
    let count = of.shape("embedding.weight")?.first().copied().unwrap_or(0);
    match end.checked_sub(first).filter(|&row| row < count) {
        Some(row) => {
            let table = of.shaped("embedding.weight", &[count, width])?;
            Ok(table.narrow(0, row, 1)?.contiguous()?)
        }
        None => Err(Error::unsupported(
            raw.file(),
            format!(
                "\"eoi_token_id\" {end} is not among the {count} tokens of images from {first}"
            ),
        )),
    }
}
