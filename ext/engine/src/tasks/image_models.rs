//! Images alone: to vectors, and to labels.

use candle_core::{DType, Tensor};

use crate::models::convolutional::{self, Backbone};
use crate::models::modules::Modules;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::towers::{self, Tower};
use crate::models::vision::{Blueprint, Seen};
use crate::nn::{elementwise, FeatureMap, Inventory, Linear};
use crate::{CancelToken, Device, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::Processor;

use super::classify;
use super::classify::Logits;
use super::embed::Embeddings;
use super::loading::{Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::vision::{self, Picture, VisionTower};

/// An image as the hidden state of its first token, as SigLIP pools it, or as the mean of all places.
pub struct ImageEmbeddingModel {
    body: Body,
    info: ModelInfo,
}

#[allow(clippy::large_enum_variant, reason = "one per model")]
enum Body {
    Tower(VisionTower),
    Convolutions(Convolutions),
}

/// A network that reads maps, and what its checkpoint makes of pictures before.
struct Convolutions {
    network: Network,
    processor: Processor,
    place: (candle_core::Device, DType),
    device: Device,
}

#[allow(clippy::large_enum_variant, reason = "one per model")]
enum Network {
    Maps(Backbone),
    Patches(Tower),
}

/// How many of the first tokens a classifier reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Pooled,
    /// Two classifiers, whose logits are averaged (DeiT).
    First(usize),
}

pub struct ImageClassifyModel {
    body: Body,
    head: Linear,
    reads: Reads,
    labels: Vec<String>,
    independent: bool,
    info: ModelInfo,
}

impl ImageEmbeddingModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let (body, info) = load(&checkpoint, files, options, cancel)?;
        Ok(Self { body, info })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The length of a vector.
    pub fn dimension(&self) -> usize {
        self.info.hidden_size
    }

    /// One vector per picture, in their order. `first` is what errors call the first one.
    pub fn embed(
        &self,
        pictures: &[Picture],
        normalize: bool,
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let finish = |pooled: Tensor| {
            let pooled = pooled.contiguous()?;
            if normalize {
                kernels::l2_normalize(&pooled)
            } else {
                Ok(pooled)
            }
        };
        let values = match &self.body {
            Body::Tower(vision) => vision.rows(pictures, first, cancel, |seen: &Seen| {
                finish(vision.tower.pool(seen)?)
            })?,
            Body::Convolutions(body) => {
                body.rows(pictures, first, Reads::Pooled, cancel, finish)?
            }
        };
        self.info.check_numbers(&values)?;
        Ok(Embeddings {
            values,
            count: pictures.len(),
            dimension: self.dimension(),
        })
    }
}

impl ImageClassifyModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let (body, mut info) = load(&checkpoint, files, options, cancel)?;
        let config = checkpoint.required_config("images")?;
        let (head, reads) = match &body {
            Body::Tower(vision) => {
                let head = tower_head(&checkpoint, vision, info.hidden_size)?;
                (head, Reads::Pooled)
            }
            Body::Convolutions(body) => body_head(&checkpoint, body, info.hidden_size)?,
        };
        let outputs = head.outputs();
        info.inventory.add_linear(&head)?;
        let problem = config.opt_string("problem_type")?;
        Ok(Self {
            labels: classify::labels(&checkpoint, outputs)?,
            independent: problem == Some("multi_label_classification") || outputs == 1,
            body,
            head,
            reads,
            info,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// One row of logits per picture, in their order. `first` is what errors call the first one.
    pub fn classify(
        &self,
        pictures: &[Picture],
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Logits> {
        let finish = |input: Tensor| self.head.forward(&input.contiguous()?);
        let values = match &self.body {
            Body::Tower(vision) => {
                let read = vision
                    .tower
                    .config()
                    .classifier
                    .layers(vision.tower.config());
                vision.rows_after(pictures, first, &read, cancel, |seen| {
                    finish(vision.tower.classifier_input(seen)?)
                })?
            }
            Body::Convolutions(body) => body.rows(pictures, first, self.reads, cancel, finish)?,
        };
        self.info.check_numbers(&values)?;
        Ok(Logits {
            values,
            count: pictures.len(),
            labels: self.labels.len(),
            independent: self.independent,
        })
    }
}

fn no_classifier(checkpoint: &Checkpoint) -> Error {
    Error::unsupported(
        &checkpoint.source.file(""),
        "the checkpoint has no classifier for images: use one that was trained for this task, or \
         ImageEmbeddingModel for vectors",
    )
}

fn tower_head(checkpoint: &Checkpoint, vision: &VisionTower, hidden: usize) -> Result<Linear> {
    let config = checkpoint.required_config("images")?;
    if vision::of_pair(config)?.is_some() {
        return classifier(checkpoint, &["classifier"], hidden);
    }
    let names = Blueprint::from_config(config)?.names;
    let source = checkpoint.source.as_ref();
    let parameters = Parameters::new(source, &names, &checkpoint.opened, checkpoint.dtype)?;
    if !parameters.has(Part::SequenceOutput) {
        return Err(no_classifier(checkpoint));
    }
    let shape = parameters.shape(Part::SequenceOutput)?;
    let inputs = shape.last().copied().unwrap_or(0);
    let outputs = parameters.outputs(Part::SequenceOutput)?;
    if inputs != vision.tower.config().classifier.width(hidden) {
        return Err(parameters.misfit(Part::SequenceOutput, &[outputs, hidden]));
    }
    parameters.linear(Part::SequenceOutput, inputs, outputs)
}

fn modules_of<'a>(checkpoint: &'a Checkpoint, names: &'a [String]) -> Modules<'a> {
    let place = (&checkpoint.opened, checkpoint.dtype);
    Modules::new(checkpoint.source.as_ref(), names, place, checkpoint.int8)
}

fn classifier(checkpoint: &Checkpoint, known: &[&str], width: usize) -> Result<Linear> {
    let names = checkpoint.source.names();
    let modules = modules_of(checkpoint, &names);
    let name = known.iter().find(|name| modules.has(name));
    modules.linear(name.ok_or_else(|| no_classifier(checkpoint))?, width)
}

fn body_head(
    checkpoint: &Checkpoint,
    body: &Convolutions,
    width: usize,
) -> Result<(Linear, Reads)> {
    let names = checkpoint.source.names();
    let modules = modules_of(checkpoint, &names);
    let tokens = matches!(body.network, Network::Patches(_));
    if tokens && modules.has("cls_classifier") && modules.has("distillation_classifier") {
        return Ok((averaged(&modules, width)?, Reads::First(2)));
    }
    let known = ["classifier.1", "classifier", "fc"];
    let reads = match &body.network {
        Network::Patches(tower) if tower.family == "deit" => Reads::First(1),
        _ => Reads::Pooled,
    };
    Ok((classifier(checkpoint, &known, width)?, reads))
}

/// Two classifiers of two tokens as one of both: the mean of their logits.
fn averaged(modules: &Modules<'_>, width: usize) -> Result<Linear> {
    let outputs = modules.shape("cls_classifier.weight")?;
    let outputs = outputs.first().copied().unwrap_or(0);
    let both = |name: &str, shape: &[usize]| -> Result<[Tensor; 2]> {
        let half = |whose: &str| -> Result<Tensor> {
            let tensor = modules.shaped(&format!("{whose}_classifier.{name}"), shape)?;
            elementwise::scale(&tensor, 0.5)
        };
        Ok([half("cls")?, half("distillation")?])
    };
    let weights = Tensor::cat(&both("weight", &[outputs, width])?, 1)?.contiguous()?;
    let [one, two] = both("bias", &[outputs])?;
    Linear::new(weights, Some(elementwise::add(&one, &two)?))
}

/// What stands before the names of a network that other heads stand beside.
const PREFIXES: &str =
    "resnet|hgnetv2|convnext|convnextv2|segformer|swin|swinv2|mobilenet_v2|efficientnet|beit|\
                        data2vec_vision|deit";

impl Convolutions {
    fn load(
        config: &RawConfig,
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let names = checkpoint.source.names();
        let modules = modules_of(checkpoint, &names);
        let body = match modules.known(PREFIXES) {
            Some(name) => modules.at(name),
            None => modules,
        };
        let known = config.model_type()?.unwrap_or_default();
        let network = if towers::TYPES.contains(&known) {
            Network::Patches(Tower::load(config, &body, cancel)?)
        } else {
            Network::Maps(Backbone::load(Some(config), &body, cancel)?)
        };
        Ok(Self {
            network,
            processor: vision::processor(files, None, cancel)?,
            place: (checkpoint.opened.clone(), checkpoint.dtype),
            device: checkpoint.device,
        })
    }

    fn family(&self) -> &'static str {
        match &self.network {
            Network::Maps(backbone) => backbone.family,
            Network::Patches(tower) => tower.family,
        }
    }

    /// Width, layers and heads.
    fn sizes(&self) -> (usize, usize, usize) {
        match &self.network {
            Network::Maps(backbone) => {
                let channels = backbone.channels();
                (channels.last().copied().unwrap_or(0), channels.len(), 0)
            }
            Network::Patches(tower) => (tower.width(), tower.layer_count(), tower.heads()),
        }
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match &self.network {
            Network::Maps(backbone) => backbone.list(inventory),
            Network::Patches(tower) => tower.list(inventory),
        }
    }

    fn read(&self, image: &FeatureMap, reads: Reads, cancel: &CancelToken) -> Result<Tensor> {
        match (&self.network, reads) {
            (Network::Maps(backbone), _) => backbone.pooled(image, cancel),
            (Network::Patches(tower), Reads::Pooled) => tower.pooled(image, cancel),
            (Network::Patches(tower), Reads::First(count)) => tower.first(image, count, cancel),
        }
    }

    /// What `finish` makes of the mean of all places of each picture, [1, channels]: one row each.
    fn rows(
        &self,
        pictures: &[Picture],
        first: usize,
        reads: Reads,
        cancel: &CancelToken,
        finish: impl Fn(Tensor) -> Result<Tensor> + Sync,
    ) -> Result<Vec<f32>> {
        let rows = vision::each(pictures, first, cancel, |picture| {
            self.device.compute(|| -> Result<Vec<f32>> {
                let picture = picture.decode()?;
                let view = self.processor.process(&picture, cancel)?;
                let image = FeatureMap::of_view(&view, (&self.place.0, self.place.1))?;
                let row = finish(self.read(&image, reads, cancel)?)?;
                Ok(row.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
            })?
        })?;
        Ok(rows.concat())
    }
}

fn load(
    checkpoint: &Checkpoint,
    files: &ModelFiles,
    options: &LoadOptions,
    cancel: &CancelToken,
) -> Result<(Body, ModelInfo)> {
    let config = checkpoint.required_config("images")?;
    let known = config.model_type()?.unwrap_or_default();
    let (body, family, sizes) =
        if convolutional::TYPES.contains(&known) || towers::TYPES.contains(&known) {
            let body = Convolutions::load(config, checkpoint, files, cancel)?;
            let (family, sizes) = (body.family(), body.sizes());
            (Body::Convolutions(body), family, sizes)
        } else {
            let pair = vision::of_pair(config)?;
            let vision = pair.as_ref().unwrap_or(config);
            let vision = VisionTower::load(vision, checkpoint, files, cancel)?;
            let encoder = &vision.tower.config().encoder;
            let sizes = (
                encoder.hidden_size,
                encoder.layers.len(),
                encoder.head_count,
            );
            let family = encoder.family;
            (Body::Tower(vision), family, sizes)
        };
    let mut inventory = match &body {
        Body::Tower(vision) => vision.tower.inventory()?,
        Body::Convolutions(body) => {
            let mut inventory = Inventory::default();
            body.list(&mut inventory)?;
            inventory
        }
    };
    inventory.add_rows("l2_normalize", &checkpoint.opened)?;
    let (hidden_size, layers, attention_heads) = sizes;
    let shape = ModelShape {
        family,
        hidden_size,
        layers,
        attention_heads,
        vocabulary: 0,
    };
    let info = ModelInfo::of(checkpoint, &shape, inventory, options.verifies())?;
    Ok((body, info))
}
