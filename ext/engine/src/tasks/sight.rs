//! What a language model sees: images as rows of its own width, which stand in a prompt like tokens.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;
use sha2::{Digest, Sha256};

use crate::files::model_files::ModelFiles;
use crate::files::raw_config::RawConfig;
use crate::image::Image;
use crate::kernels::Activation;
use crate::models::config;
use crate::models::decoder::guests::Guest;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::vision::{self, Seen};
use crate::nn::{Epilogue, Inventory, Linear};
use crate::{CancelToken, Error, Result};

use super::generate::LanguageModel;
use super::loading::{Checkpoint, LoadOptions};
use super::vision::{Eyes, Picture};

/// Images that were looked at last are kept up to this many bytes of rows.
const KEPT_BYTES: usize = 256 << 20;

/// The eyes of a language model: a vision tower and what leads from it into the decoder.
pub struct Sight {
    eyes: Eyes,
    projector: Projector,
    /// After how many layers the tower is read; `None`: after all.
    layers: Option<usize>,
    /// Whether what stands before the patches is read too.
    whole: bool,
    /// What stands in a prompt for an image.
    marker: u32,
    recent: Mutex<Vec<(Key, Arc<Guest>)>>,
    looks: AtomicUsize,
    inventory: Inventory,
}

type Key = [u8; 32];

/// Two products with an activation between them (LLaVA).
struct Projector {
    up: Linear,
    activation: Activation,
    down: Linear,
}

impl Sight {
    /// Whether a checkpoint has eyes.
    pub fn is_in(raw: &RawConfig) -> bool {
        raw.has("vision_config")
    }

    /// The eyes of a model that was loaded from `files`.
    pub fn load(
        language: &LanguageModel,
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let raw = checkpoint.config.as_ref().filter(|raw| Self::is_in(raw));
        let raw = raw.ok_or_else(|| {
            Error::UnsupportedModel(format!(
                "{} has no vision tower: it reads texts only",
                files.id()
            ))
        })?;
        match raw.model_type()? {
            Some("llava") => {}
            found => {
                return Err(Error::unsupported(
                    raw.file(),
                    format!(
                        "images are not read by model_type {:?}; they are by llava",
                        found.unwrap_or("(none)")
                    ),
                ))
            }
        }
        let vision_raw = raw.nested("vision_config")?;
        let eyes = Eyes::load(&vision_raw, &checkpoint, files, cancel)?;
        let names = vision::Blueprint::from_config(&vision_raw)?.names;
        let source = checkpoint.source.as_ref();
        let parameters = Parameters::new(source, &names, &checkpoint.opened, checkpoint.dtype)?;
        let tower = &eyes.tower.config().encoder;
        let width = language.decoder().config().hidden_size;
        let projector = Projector::load(raw, &parameters, tower.hidden_size, width)?;
        let mut inventory = eyes.tower.inventory()?;
        inventory.add_linear(&projector.up)?;
        inventory.add_linear(&projector.down)?;
        let layers = layers_read(raw, tower.layers.len())?;
        Ok(Self {
            eyes,
            projector,
            layers,
            whole: raw.opt_string("vision_feature_select_strategy")? == Some("full"),
            marker: raw.usize(["image_token_index", "image_token_id"])? as u32,
            recent: Mutex::new(Vec::new()),
            looks: AtomicUsize::new(0),
            inventory,
        })
    }

    /// The token that stands for an image in a prompt.
    pub fn marker(&self) -> u32 {
        self.marker
    }

    /// How often the tower ran.
    pub fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// What the model sees of each picture. One that was looked at lately is not looked at again.
    pub fn look(
        &self,
        language: &LanguageModel,
        pictures: &[Picture],
        cancel: &CancelToken,
    ) -> Result<Vec<Arc<Guest>>> {
        let mut guests = Vec::with_capacity(pictures.len());
        for picture in pictures {
            cancel.check()?;
            let image = picture.decode()?;
            let key = key(&image);
            let known = self.recall(&key);
            guests.push(match known {
                Some(guest) => guest,
                None => {
                    let rows = self.rows(&image, cancel)?;
                    let guest = language.decoder().admit(rows)?;
                    self.keep(key, guest.clone());
                    guest
                }
            });
        }
        Ok(guests)
    }

    fn rows(&self, image: &Image, cancel: &CancelToken) -> Result<Tensor> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.eyes.see(image, self.layers, cancel, |seen: &Seen| {
            let states = match self.whole {
                true => seen.states.clone(),
                false => Tensor::cat(&seen.patches()?, 0)?,
            };
            self.projector.forward(&states.contiguous()?)
        })
    }

    fn recall(&self, key: &Key) -> Option<Arc<Guest>> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let found = recent.iter().position(|(known, _)| known == key)?;
        let entry = recent.remove(found);
        let guest = entry.1.clone();
        recent.push(entry);
        Some(guest)
    }

    fn keep(&self, key: Key, guest: Arc<Guest>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push((key, guest));
        let mut bytes: usize = recent.iter().map(|(_, guest)| guest.bytes()).sum();
        while bytes > KEPT_BYTES && recent.len() > 1 {
            bytes -= recent.remove(0).1.bytes();
        }
    }
}

impl Projector {
    fn load(
        raw: &RawConfig,
        parameters: &Parameters<'_>,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self> {
        let inner = parameters.outputs(Part::ProjectorUp)?;
        let activation = raw.opt_string("projector_hidden_act")?.unwrap_or("gelu");
        Ok(Self {
            up: parameters.linear(Part::ProjectorUp, inputs, inner)?,
            activation: config::activation(activation)?,
            down: parameters.linear(Part::ProjectorDown, inner, outputs)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let epilogue = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        self.down.forward(&self.up.forward_with(x, &epilogue)?)
    }
}

/// Layers are counted from the end, where -1 is the last one without its norm.
fn layers_read(raw: &RawConfig, count: usize) -> Result<Option<usize>> {
    let asked = raw
        .opt_integers("vision_feature_layer")?
        .unwrap_or(vec![-2]);
    let [asked] = asked[..] else {
        return Err(Error::unsupported(
            raw.file(),
            "reading several layers of the vision tower (vision_feature_layer) is not supported",
        ));
    };
    let layer = match asked < 0 {
        true => count as i64 + 1 + asked,
        false => asked,
    };
    match usize::try_from(layer) {
        Ok(layer) if layer <= count => Ok(Some(layer)),
        _ => Err(Error::corrupt(
            raw.file(),
            format!("\"vision_feature_layer\" is {asked}, and the vision tower has {count} layers"),
        )),
    }
}

/// The same for the same pixels.
fn key(image: &Image) -> Key {
    let mut hash = Sha256::new();
    hash.update(image.width().to_le_bytes());
    hash.update(image.height().to_le_bytes());
    hash.update(image.pixels());
    hash.finalize().into()
}
