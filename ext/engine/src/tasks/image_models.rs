//! Images alone: to vectors, and to labels.

use candle_core::{DType, Tensor};

use crate::models::convolutional::{self, Backbone};
use crate::models::modules::Modules;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::vision::{Blueprint, Seen};
use crate::nn::{FeatureMap, Inventory, Linear};
use crate::{CancelToken, Error, Result};
use base::runtime::threads;
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

/// A convolutional network and what its checkpoint makes of pictures before.
struct Convolutions {
    backbone: Backbone,
    processor: Processor,
    place: (candle_core::Device, DType),
}

pub struct ImageClassifyModel {
    body: Body,
    head: Linear,
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
            Body::Convolutions(body) => body.rows(pictures, first, cancel, finish)?,
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
        let head = match &body {
            Body::Tower(vision) => tower_head(&checkpoint, vision, info.hidden_size)?,
            Body::Convolutions(_) => convolutional_head(&checkpoint, info.hidden_size)?,
        };
        let outputs = head.outputs();
        info.inventory.add_linear(&head)?;
        let problem = config.opt_string("problem_type")?;
        Ok(Self {
            labels: classify::labels(&checkpoint, outputs)?,
            independent: problem == Some("multi_label_classification") || outputs == 1,
            body,
            head,
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
            Body::Tower(vision) => vision.rows(pictures, first, cancel, |seen| {
                finish(vision.tower.classifier_input(seen)?)
            })?,
            Body::Convolutions(body) => body.rows(pictures, first, cancel, finish)?,
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
    let names = Blueprint::from_config(checkpoint.required_config("images")?)?.names;
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

fn convolutional_head(checkpoint: &Checkpoint, width: usize) -> Result<Linear> {
    const NAMES: [&str; 3] = ["classifier.1", "classifier", "fc"];
    let source = checkpoint.source.as_ref();
    let names = source.names();
    let place = (&checkpoint.opened, checkpoint.dtype);
    let modules = Modules::new(source, &names, place, checkpoint.int8);
    let name = NAMES.into_iter().find(|name| modules.has(name));
    modules.linear(name.ok_or_else(|| no_classifier(checkpoint))?, width)
}

impl Convolutions {
    fn load(
        config: &RawConfig,
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let source = checkpoint.source.as_ref();
        let names = source.names();
        let place = (&checkpoint.opened, checkpoint.dtype);
        let modules = Modules::new(source, &names, place, checkpoint.int8);
        let body = if ["embedder", "embeddings", "encoder"]
            .iter()
            .any(|name| modules.has(name))
        {
            modules
        } else {
            modules.at("resnet|hgnetv2|convnext|convnextv2|segformer")
        };
        Ok(Self {
            backbone: Backbone::load(Some(config), &body, cancel)?,
            processor: vision::processor(files, None, cancel)?,
            place: (checkpoint.opened.clone(), checkpoint.dtype),
        })
    }

    /// What `finish` makes of the mean of all places of each picture, [1, channels]: one row each.
    fn rows(
        &self,
        pictures: &[Picture],
        first: usize,
        cancel: &CancelToken,
        finish: impl Fn(Tensor) -> Result<Tensor> + Sync,
    ) -> Result<Vec<f32>> {
        let single = pictures.len() == 1 && first == 0;
        let mut rows = Vec::new();
        for (index, picture) in pictures.iter().enumerate() {
            cancel.check()?;
            let row = threads::install(|| -> Result<Vec<f32>> {
                let picture = picture.decode()?;
                let view = self.processor.process(&picture, cancel)?;
                let image = FeatureMap::of_view(&view, (&self.place.0, self.place.1))?;
                let row = finish(self.backbone.pooled(&image, cancel)?)?;
                Ok(row.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
            })?;
            rows.extend(row.map_err(|error| vision::named(error, first + index, single))?);
        }
        Ok(rows)
    }
}

fn load(
    checkpoint: &Checkpoint,
    files: &ModelFiles,
    options: &LoadOptions,
    cancel: &CancelToken,
) -> Result<(Body, ModelInfo)> {
    let config = checkpoint.required_config("images")?;
    let known = config.model_type()?;
    let (body, family, sizes) = if known.is_some_and(|name| convolutional::TYPES.contains(&name)) {
        let body = Convolutions::load(config, checkpoint, files, cancel)?;
        let channels = body.backbone.channels();
        let sizes = (channels.last().copied().unwrap_or(0), channels.len(), 0);
        let family = body.backbone.family;
        (Body::Convolutions(body), family, sizes)
    } else {
        let vision = VisionTower::load(config, checkpoint, files, cancel)?;
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
            body.backbone.list(&mut inventory)?;
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
