//! How far the things of pictures are: a depth for every pixel.

use candle_core::DType;

use crate::models::depth::DepthNetwork;
use crate::models::vision::positions::cubic;
use crate::nn::feature_map::FeatureMap;
use crate::{CancelToken, Result};
use base::runtime::memory;
use formats::files::model_files::ModelFiles;
use formats::image::{Image, Processor, CHANNELS};

use super::loading::{Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::vision::{self, Picture};

pub struct DepthModel {
    network: DepthNetwork,
    processor: Processor,
    info: ModelInfo,
}

/// The depth of every pixel of a picture, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Depths {
    pub width: usize,
    pub height: usize,
    pub values: Vec<f32>,
}

impl Depths {
    /// The smallest number is black, and the largest white.
    pub fn image(&self) -> Result<Image> {
        let least = self.values.iter().copied().fold(f32::INFINITY, f32::min);
        let most = self
            .values
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        let shade = |&value: &f32| {
            let part = (value - least) / (most - least);
            [(part * 255.0) as u8; CHANNELS]
        };
        let pixels = self.values.iter().flat_map(shade).collect();
        Image::new(self.width, self.height, pixels)
    }
}

impl DepthModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let config = checkpoint.required_config("images")?;
        let place = (&checkpoint.opened, checkpoint.dtype);
        let source = checkpoint.source.as_ref();
        let network = DepthNetwork::load(config, source, place, checkpoint.int8, cancel)?;
        let shape = ModelShape {
            family: network.family,
            hidden_size: network.hidden_size(),
            layers: network.layer_count(),
            attention_heads: 0,
            vocabulary: 0,
        };
        let (inventory, verified) = (network.inventory()?, options.verifies());
        let info = ModelInfo::of(&checkpoint, &shape, inventory, verified)?;
        Ok(Self {
            processor: vision::processor(files, None, cancel)?,
            network,
            info,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The depths of each picture. `first` is what errors call the first one.
    pub fn estimate(
        &self,
        pictures: &[Picture],
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Depths>> {
        vision::each(pictures, first, cancel, |picture| self.one(picture, cancel))
    }

    fn one(&self, picture: &Picture, cancel: &CancelToken) -> Result<Depths> {
        let image = picture.decode()?;
        let view = self.processor.process(&image, cancel)?;
        self.info.device.compute(|| {
            let map = self.network.forward(&view, cancel)?;
            let values: Vec<f32> = map.rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
            self.info.check_numbers(&values)?;
            resized(&map, &values, (image.width(), image.height()))
        })?
    }
}

/// At the size of the picture, by cubic interpolation.
fn resized(map: &FeatureMap, values: &[f32], (width, height): (usize, usize)) -> Result<Depths> {
    memory::ensure_elements(
        &[width, height.max(map.height)],
        4,
        "the depths of an image",
    )?;
    let (across, down) = (cubic(map.width, width), cubic(map.height, height));
    let mut wide = Vec::with_capacity(width * map.height);
    for row in values.chunks_exact(map.width.max(1)) {
        let at =
            |taps: &Vec<(usize, f32)>| taps.iter().map(|&(x, part)| row[x] * part).sum::<f32>();
        wide.extend(across.iter().map(at));
    }
    let mut values = Vec::with_capacity(width * height);
    for taps in &down {
        values.extend((0..width).map(|x| {
            let parts = taps.iter().map(|&(y, part)| wide[y * width + x] * part);
            parts.sum::<f32>()
        }));
    }
    Ok(Depths {
        width,
        height,
        values,
    })
}
