//! Segment Anything and its second version: the masks of what points and boxes show.

mod block;
mod decoder;
pub mod encoder;
mod hiera;

use candle_core::{DType, Device, Tensor};

use crate::models::modules::Modules;
use crate::nn::feature_map::FeatureMap;
use crate::nn::{elementwise, Inventory};
use crate::{CancelToken, Error, Result};
use decoder::MaskDecoder;
use encoder::ImageEncoder;
use formats::files::raw_config::RawConfig;
use formats::image::View;
use formats::weights::WeightSource;

pub use decoder::Masks;

/// The `model_type`s that take points and boxes.
pub const TYPES: &[&str] = &["sam", "sam2", "sam2_video"];

#[derive(Debug)]
pub struct Sam {
    images: Images,
    masks: MaskDecoder,
    /// For places of the image: [2, half of the width], in f32.
    image_waves: Vec<f32>,
    /// The same for points and corners, which SAM 2 has a table of its own for.
    prompt_waves: Vec<f32>,
    /// For no mask beside the prompt: [1, width].
    no_mask: Tensor,
    no_point: Vec<f32>,
    /// Of points outside, points inside, and the corners of boxes.
    points: Vec<Vec<f32>>,
    /// Rows and columns of the map that masks are found in.
    edge: usize,
    /// The edge that points are parts of, in pixels.
    image_size: f32,
    width: usize,
    device: Device,
    dtype: DType,
}

#[derive(Debug)]
enum Images {
    First(ImageEncoder),
    /// With what is added to the coarsest map: [width].
    Second(hiera::ImageEncoder, Tensor),
}

/// What shows a thing, in pixels of the picture as the model reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// x, y, and whether the thing is there.
    pub points: Vec<(f32, f32, bool)>,
    /// Left, top, right and bottom.
    pub corners: Option<[f32; 4]>,
}

/// A picture as masks are found in.
pub struct Encoded {
    map: FeatureMap,
    /// What masks are made with beside it.
    finer: Vec<FeatureMap>,
    places: Tensor,
}

impl Images {
    fn channels(&self) -> usize {
        match self {
            Self::First(images) => images.channels(),
            Self::Second(images, _) => images.channels(),
        }
    }

    fn layer_count(&self) -> usize {
        match self {
            Self::First(images) => images.layer_count(),
            Self::Second(images, _) => images.layer_count(),
        }
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match self {
            Self::First(images) => images.list(inventory),
            Self::Second(images, added) => {
                inventory.add_tensor(added);
                images.list(inventory)
            }
        }
    }
}

impl Sam {
    pub fn load(
        raw: &RawConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let names = source.names();
        let modules = Modules::new(source, &names, (device, dtype), int8);
        let part = |key: &str| -> Result<RawConfig> {
            let found = raw.opt_nested(key)?;
            found.map_or_else(|| RawConfig::parse(raw.file(), "{}"), Ok)
        };
        let (vision, prompts) = (part("vision_config")?, part("prompt_encoder_config")?);
        let second = raw.model_type()? != Some("sam");
        let inside = modules.at("vision_encoder");
        let images = if second {
            let own = hiera::ImageEncoder::load(&vision, &inside, cancel)?;
            let added = modules.shaped("no_memory_embedding", &[1, 1, own.channels()])?;
            Images::Second(own, added.flatten_all()?)
        } else {
            Images::First(ImageEncoder::load(&vision, &inside, cancel)?)
        };
        let width = images.channels();
        let encoder = modules.at("prompt_encoder");
        let waves = |names: &str| -> Result<Vec<f32>> {
            let modules = modules.at(names);
            modules.shaped("positional_embedding", &[2, width / 2])?;
            modules.values("positional_embedding")
        };
        let image_waves = waves("shared_image_embedding|prompt_encoder.shared_embedding")?;
        let row = |name: &str| -> Result<Vec<f32>> {
            encoder.shaped(name, &[1, width])?;
            encoder.values(name)
        };
        let size = prompts
            .opt_usize_in("image_size", 1..=1 << 14)?
            .unwrap_or(1024);
        let patch = prompts.opt_usize_in("patch_size", 1..=1024)?.unwrap_or(16);
        let edge = size / patch;
        let other = match &images {
            Images::First(images) => edge != images.edge(),
            Images::Second(..) => edge == 0,
        };
        if other || !width.is_multiple_of(2) {
            let reason = "its prompt encoder and its vision encoder have images of two sizes";
            return Err(Error::corrupt(raw.file(), reason));
        }
        let masks = part("mask_decoder_config")?;
        Ok(Self {
            prompt_waves: if second {
                waves("prompt_encoder.shared_embedding|shared_image_embedding")?
            } else {
                image_waves.clone()
            },
            image_waves,
            masks: MaskDecoder::load(&masks, &modules.at("mask_decoder"), width, second)?,
            edge,
            no_mask: encoder.shaped("no_mask_embed.weight", &[1, width])?,
            no_point: row("not_a_point_embed.weight")?,
            points: if second {
                encoder.shaped("point_embed.weight", &[4, width])?;
                let rows = encoder.values("point_embed.weight")?;
                rows.chunks(width).map(<[f32]>::to_vec).collect()
            } else {
                (0..4)
                    .map(|number| row(&format!("point_embed.{number}.weight")))
                    .collect::<Result<_>>()?
            },
            image_size: size as f32,
            images,
            width,
            device: device.clone(),
            dtype,
        })
    }

    /// Whether masks are stretched over the picture itself, not over what the model reads of it.
    pub fn is_second(&self) -> bool {
        matches!(self.images, Images::Second(..))
    }

    pub fn hidden_size(&self) -> usize {
        self.width
    }

    pub fn layer_count(&self) -> usize {
        self.images.layer_count()
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        self.images.list(&mut inventory)?;
        self.masks.list(&mut inventory)?;
        inventory.add_tensor(&self.no_mask);
        inventory.add_rows("activation", &self.device)?;
        Ok(inventory)
    }

    pub fn encode(&self, view: &View, cancel: &CancelToken) -> Result<Encoded> {
        let image = FeatureMap::of_view(view, (&self.device, self.dtype))?;
        let edge = self.edge;
        let (map, finer) = match &self.images {
            Images::First(images) => (images.forward(&image, cancel)?, Vec::new()),
            Images::Second(images, added) => {
                let mut maps = images.forward(&image, cancel)?;
                let map = maps.pop();
                let map = map.ok_or_else(|| Error::Internal("an image without a map".into()))?;
                (
                    map.with(elementwise::add(&map.rows, added)?)?,
                    self.masks.finer(&maps)?,
                )
            }
        };
        if map.size() != (edge, edge) {
            return Err(Error::InvalidInput(format!(
                "the image became {}x{} places, and the model reads {edge}x{edge}: its preprocessor_config.json \
                 belongs to another model",
                map.width, map.height
            )));
        }
        let mut places = Vec::with_capacity(edge * edge * self.width);
        for (y, x) in (0..edge).flat_map(|y| (0..edge).map(move |x| (y, x))) {
            let part = |at: usize| (at as f32 + 0.5) / edge as f32;
            places.extend(wave(&self.image_waves, part(x), part(y)));
        }
        let places = Tensor::from_vec(places, (edge * edge, self.width), &self.device)?;
        Ok(Encoded {
            map: map.with(elementwise::add(&map.rows, &self.no_mask)?)?,
            finer,
            places: places.to_dtype(self.dtype)?,
        })
    }

    pub fn masks(&self, image: &Encoded, prompt: &Prompt, several: bool) -> Result<Masks> {
        let mut rows: Vec<Vec<f32>> = Vec::new();
        let plus = |mut row: Vec<f32>, added: &[f32]| {
            row.iter_mut()
                .zip(added)
                .for_each(|(sum, added)| *sum += added);
            row
        };
        let place = |x: f32, y: f32| {
            let part = |at: f32| (at + 0.5) / self.image_size;
            wave(&self.prompt_waves, part(x), part(y))
        };
        for &(x, y, inside) in &prompt.points {
            rows.push(plus(place(x, y), &self.points[usize::from(inside)]));
        }
        if let Some([left, top, right, bottom]) = prompt.corners {
            rows.push(plus(place(left, top), &self.points[2]));
            rows.push(plus(place(right, bottom), &self.points[3]));
        }
        if prompt.corners.is_none() || self.is_second() {
            rows.push(self.no_point.clone());
        }
        let shape = (rows.len(), self.width);
        let rows = Tensor::from_vec(rows.concat(), shape, &self.device)?;
        let rows = rows.to_dtype(self.dtype)?;
        self.masks
            .forward((&image.map, &image.finer), &image.places, &rows, several)
    }
}

/// Sines and cosines of a place, whose coordinates are parts of the picture; `waves` is [2, half of the width].
fn wave(waves: &[f32], x: f32, y: f32) -> Vec<f32> {
    let half = waves.len() / 2;
    let (x, y) = (2.0 * x - 1.0, 2.0 * y - 1.0);
    let around = 2.0 * std::f64::consts::PI;
    let angle = |at: usize| {
        let sum = x * waves[at] + y * waves[half + at];
        (around * f64::from(sum)) as f32
    };
    let angles: Vec<f32> = (0..half).map(angle).collect();
    let sines = angles.iter().map(|angle| angle.sin());
    sines
        .chain(angles.iter().map(|angle| angle.cos()))
        .collect()
}
