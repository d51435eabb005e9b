//! Models that read images and write texts: an encoder of images, and a decoder that attends to what it made.

mod davit;
mod patches;

use candle_core::{DType, Device, Tensor};

use crate::models::convolutional::{self, Backbone};
use crate::models::encoder::{Encoder, Piece};
use crate::models::families;
use crate::models::modules::Modules;
use crate::models::seq2seq::{self, CrossDecoder, DecoderShape, Memory};
use crate::models::vision::{Blueprint as VisionBlueprint, Tower};
use crate::nn::{FeatureMap, Inventory, Linear};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::image::View;
use formats::weights::WeightSource;
use serde_json::json;

use davit::{Davit, Projector};
use patches::Patches;

/// The `model_type`s that it runs.
pub const TYPES: &[&str] = &["vision-encoder-decoder", "florence2", "pix2struct"];

/// Weights and blueprint; immutable, and free to be shared between threads.
#[derive(Debug)]
pub struct ImageToText {
    images: Images,
    decoder: CrossDecoder,
    shape: DecoderShape,
    family: String,
}

/// What becomes of an image before the decoder.
#[derive(Debug)]
enum Images {
    /// A vision tower, and what leads from its width to the decoder's.
    Tower(Box<(Tower, Option<Linear>)>),
    Swin(Box<Swin>),
    /// Patches of a picture in its own proportions (Pix2Struct).
    Patches(Box<Patches>),
    /// Rows that stand before a text in an encoder of texts (Florence-2).
    BeforeText(Box<(Davit, Projector, Encoder)>),
}

/// Donut's encoder, of which the decoder reads the last map.
#[derive(Debug)]
struct Swin {
    backbone: Backbone,
    /// How many layers each stage has.
    depths: Vec<usize>,
    bridge: Option<Linear>,
    place: (Device, DType),
}

impl Swin {
    fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Tensor> {
        let image = FeatureMap::of_view(view, (&self.place.0, self.place.1))?;
        let maps = self
            .backbone
            .forward(&image, &[self.depths.len()], cancel)?;
        let last = maps.into_iter().next_back().map(|map| map.rows);
        last.ok_or_else(|| Error::Internal("a backbone made no map".into()))
    }
}

impl ImageToText {
    pub fn load(
        raw: &RawConfig,
        source: &dyn WeightSource,
        place: (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Self> {
        match raw.model_type()? {
            Some("vision-encoder-decoder") => Self::load_pair(raw, source, place, cancel),
            Some("florence2") => Self::load_florence(raw, source, place, cancel),
            Some("pix2struct") => Self::load_patches(raw, source, place, cancel),
            found => Err(families::unknown(
                raw.file(),
                ("model_type", found.unwrap_or("(none)")),
                "a model that reads images",
                TYPES,
            )),
        }
    }

    /// Any encoder of images with any decoder (TrOCR, Donut, Nougat).
    fn load_pair(
        raw: &RawConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let (encoder, decoder) = (raw.nested("encoder")?, raw.nested("decoder")?);
        let (shape, names) = families::reading_decoder(&decoder)?;
        let mut tensors = source.names();
        tensors.sort();
        let modules = Modules::new(source, &tensors, (device, dtype), false);
        let outputs = shape.stack.hidden_size;
        let own = shape.stack.mechanisms.memory_size;
        let bridge = |width: usize| -> Result<Option<Linear>> {
            match own {
                Some(read) if read != width => Err(Error::corrupt(
                    raw.file(),
                    format!(
                        "its decoder reads states of {read} numbers, and its encoder makes {width}"
                    ),
                )),
                None if width != outputs => {
                    let bridge = modules.sized_linear("enc_to_dec_proj", width, outputs)?;
                    Ok(Some(bridge))
                }
                _ => Ok(None),
            }
        };
        let images = if encoder.model_type()? == Some("donut-swin") {
            let backbone = Backbone::load(Some(&encoder), &modules.at("encoder"), cancel)?;
            let depths = convolutional::sizes(&encoder, "depths", &[2, 2, 6, 2], None)?;
            Images::Swin(Box::new(Swin {
                bridge: bridge(backbone.channels().last().copied().unwrap_or(0))?,
                backbone,
                depths,
                place: (device.clone(), dtype),
            }))
        } else {
            let blueprint = tower_blueprint(&encoder)?;
            let tower = Tower::load(&blueprint, source, (device, dtype), false, cancel)?;
            let bridge = bridge(tower.config().encoder.hidden_size)?;
            Images::Tower(Box::new((tower, bridge)))
        };
        let place = (device, dtype);
        let mut writer = CrossDecoder::load(shape.clone(), &names, source, place, false, cancel)?;
        writer.load_head(&names, source, place)?;
        Ok(Self {
            images,
            decoder: writer,
            shape,
            family: encoder.model_type()?.unwrap_or_default().to_owned(),
        })
    }

    fn load_patches(
        raw: &RawConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let (shape, names) = families::reading_decoder(&raw.nested("text_config")?)?;
        let mut tensors = source.names();
        tensors.sort();
        let modules = Modules::new(source, &tensors, (device, dtype), false);
        let vision = raw.nested("vision_config")?;
        let patches = Patches::load(&vision, &modules.at("encoder"), cancel)?;
        let (width, wanted) = (patches.width(), shape.stack.hidden_size);
        if width != wanted {
            let reason = format!(
                "its decoder reads states of {wanted} numbers, and its encoder makes {width}"
            );
            return Err(Error::corrupt(raw.file(), reason));
        }
        let place = (device, dtype);
        let mut decoder = CrossDecoder::load(shape.clone(), &names, source, place, false, cancel)?;
        decoder.load_head(&names, source, place)?;
        Ok(Self {
            images: Images::Patches(Box::new(patches)),
            decoder,
            shape,
            family: "pix2struct".to_owned(),
        })
    }

    fn load_florence(
        raw: &RawConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let blueprint = seq2seq::Blueprint::from_config(&raw.nested("text_config")?)?;
        let config = &blueprint.config;
        let mut names = source.names();
        names.sort();
        let modules = Modules::new(source, &names, (device, dtype), false);
        let modules = modules.at("model");
        let vision = raw.nested("vision_config")?;
        let davit = Davit::load(&vision, &modules.at("vision_tower"), cancel)?;
        let width = davit.width();
        let outputs = config.encoder.config.hidden_size;
        let projector = Projector::load(&modules.at("multi_modal_projector"), width, outputs)?;
        let encoder = Encoder::load(&config.encoder, source, device, dtype, false, cancel)?;
        let shape = DecoderShape {
            stack: config.decoder.clone(),
            vocab_size: config.vocab_size,
            output_scale: config.output_scale,
            few_rows: false,
        };
        let place = (device, dtype);
        let names = &blueprint.names;
        let mut decoder = CrossDecoder::load(shape.clone(), names, source, place, false, cancel)?;
        decoder.load_head(names, source, place)?;
        Ok(Self {
            images: Images::BeforeText(Box::new((davit, projector, encoder))),
            decoder,
            shape,
            family: "florence2".to_owned(),
        })
    }

    /// The kind of its encoder.
    pub fn family(&self) -> &str {
        &self.family
    }

    /// Whether a text stands behind the image, which says what to do.
    pub fn reads_text(&self) -> bool {
        matches!(self.images, Images::BeforeText(_))
    }

    pub fn decoder(&self) -> &CrossDecoder {
        &self.decoder
    }

    pub fn shape(&self) -> &DecoderShape {
        &self.shape
    }

    pub fn layer_count(&self) -> usize {
        let encoder = match &self.images {
            Images::Tower(parts) => parts.0.config().encoder.layers.len(),
            Images::Swin(swin) => swin.depths.iter().sum(),
            Images::Patches(patches) => patches.layer_count(),
            Images::BeforeText(parts) => parts.0.layer_count() + parts.2.config().layers.len(),
        };
        encoder + self.shape.stack.layers.len()
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = match &self.images {
            Images::Tower(parts) => parts.0.inventory()?,
            Images::Swin(swin) => {
                let mut inventory = Inventory::default();
                swin.backbone.list(&mut inventory)?;
                inventory
            }
            Images::Patches(patches) => {
                let mut inventory = Inventory::default();
                patches.list(&mut inventory)?;
                inventory
            }
            Images::BeforeText(parts) => {
                let mut inventory = parts.2.inventory()?;
                parts.0.list(&mut inventory)?;
                parts.1.list(&mut inventory)?;
                inventory
            }
        };
        let bridge = match &self.images {
            Images::Tower(parts) => parts.1.as_ref(),
            Images::Swin(swin) => swin.bridge.as_ref(),
            Images::Patches(_) | Images::BeforeText(_) => None,
        };
        bridge.map_or(Ok(()), |bridge| inventory.add_linear(bridge))?;
        self.decoder.list(&mut inventory)?;
        Ok(inventory)
    }

    /// What the decoder reads of a view, behind which a text may stand.
    pub fn read(&self, view: &View, text: &[u32], cancel: &CancelToken) -> Result<Memory> {
        let (states, bridge) = match &self.images {
            Images::Tower(parts) => {
                let seen = parts.0.forward(std::slice::from_ref(view), &[], cancel)?;
                (seen.states, parts.1.as_ref())
            }
            Images::Swin(swin) => (swin.forward(view, cancel)?, swin.bridge.as_ref()),
            Images::Patches(patches) => (patches.forward(view, cancel)?, None),
            Images::BeforeText(parts) => {
                let (davit, projector, encoder) = parts.as_ref();
                let rows = projector.forward(&davit.forward(view, cancel)?)?;
                let pieces = [Piece::Rows(&rows), Piece::Tokens(text)];
                (encoder.forward_mixed(&pieces, cancel)?, None)
            }
        };
        let states: Tensor = match bridge {
            Some(bridge) => bridge.forward(&states)?,
            None => states,
        };
        let count = states.dim(0)? as u32;
        self.decoder.remember(&states, vec![0, count], cancel)
    }
}

/// DeiT's tower is ViT's with another token behind the first.
fn tower_blueprint(raw: &RawConfig) -> Result<VisionBlueprint> {
    if raw.model_type()? != Some("deit") {
        return VisionBlueprint::from_config(raw);
    }
    let mut blueprint =
        VisionBlueprint::from_config(&raw.clone().with(json!({"model_type": "vit"})))?;
    blueprint.names.second_token = "embeddings.distillation_token";
    Ok(blueprint)
}
