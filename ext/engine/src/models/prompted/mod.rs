//! Segment Anything: the masks of what points and boxes show.

mod decoder;
mod encoder;

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
pub const TYPES: &[&str] = &["sam"];

#[derive(Debug)]
pub struct Sam {
    images: ImageEncoder,
    masks: MaskDecoder,
    /// [2, half of the width], in f32.
    waves: Vec<f32>,
    /// For no mask beside the prompt: [1, width].
    no_mask: Tensor,
    no_point: Vec<f32>,
    /// Of points outside, points inside, and the corners of boxes.
    points: Vec<Vec<f32>>,
    /// The edge that points are parts of, in pixels.
    image_size: f32,
    width: usize,
    device: Device,
    dtype: DType,
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
    places: Tensor,
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
        let images = ImageEncoder::load(&vision, &modules.at("vision_encoder"), cancel)?;
        let width = images.channels();
        let encoder = modules.at("prompt_encoder");
        let waves = ["shared_image_embedding", "prompt_encoder.shared_embedding"];
        let waves = waves.map(|name| format!("{name}.positional_embedding"));
        let waves = waves.iter().find(|name| modules.has(name));
        let waves =
            waves.ok_or_else(|| modules.corrupt("it has no positional embedding".into()))?;
        modules.shaped(waves, &[2, width / 2])?;
        let row = |name: &str| -> Result<Vec<f32>> {
            encoder.shaped(name, &[1, width])?;
            encoder.values(name)
        };
        let size = prompts
            .opt_usize_in("image_size", 1..=1 << 14)?
            .unwrap_or(1024);
        let patch = prompts.opt_usize_in("patch_size", 1..=1024)?.unwrap_or(16);
        if size / patch != images.edge() || !width.is_multiple_of(2) {
            let reason = "its prompt encoder and its vision encoder have images of two sizes";
            return Err(Error::corrupt(raw.file(), reason));
        }
        let masks = part("mask_decoder_config")?;
        Ok(Self {
            waves: modules.values(waves)?,
            masks: MaskDecoder::load(&masks, &modules.at("mask_decoder"), width)?,
            no_mask: encoder.shaped("no_mask_embed.weight", &[1, width])?,
            no_point: row("not_a_point_embed.weight")?,
            points: (0..4)
                .map(|number| row(&format!("point_embed.{number}.weight")))
                .collect::<Result<_>>()?,
            image_size: size as f32,
            images,
            width,
            device: device.clone(),
            dtype,
        })
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
        let map = self.images.forward(&image, cancel)?;
        let edge = self.images.edge();
        let mut places = Vec::with_capacity(edge * edge * self.width);
        for (y, x) in (0..edge).flat_map(|y| (0..edge).map(move |x| (y, x))) {
            let part = |at: usize| (at as f32 + 0.5) / edge as f32;
            places.extend(self.wave(part(x), part(y)));
        }
        let places = Tensor::from_vec(places, (edge * edge, self.width), &self.device)?;
        Ok(Encoded {
            map: map.with(elementwise::add(&map.rows, &self.no_mask)?)?,
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
            self.wave(part(x), part(y))
        };
        for &(x, y, inside) in &prompt.points {
            rows.push(plus(place(x, y), &self.points[usize::from(inside)]));
        }
        if let Some([left, top, right, bottom]) = prompt.corners {
            rows.push(plus(place(left, top), &self.points[2]));
            rows.push(plus(place(right, bottom), &self.points[3]));
        } else {
            rows.push(self.no_point.clone());
        }
        let shape = (rows.len(), self.width);
        let rows = Tensor::from_vec(rows.concat(), shape, &self.device)?;
        let rows = rows.to_dtype(self.dtype)?;
        self.masks
            .forward(&image.map, &image.places, &rows, several)
    }

    /// Sines and cosines of a place, whose coordinates are parts of the picture.
    fn wave(&self, x: f32, y: f32) -> Vec<f32> {
        let half = self.width / 2;
        let (x, y) = (2.0 * x - 1.0, 2.0 * y - 1.0);
        let around = 2.0 * std::f64::consts::PI;
        let angle = |at: usize| {
            let sum = x * self.waves[at] + y * self.waves[half + at];
            (around * f64::from(sum)) as f32
        };
        let angles: Vec<f32> = (0..half).map(angle).collect();
        let sines = angles.iter().map(|angle| angle.sin());
        sines
            .chain(angles.iter().map(|angle| angle.cos()))
            .collect()
    }
}
