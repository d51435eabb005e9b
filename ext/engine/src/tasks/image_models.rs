//! Images alone: to vectors, and to labels.

use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::vision::{Blueprint, Seen};
use crate::nn::Linear;
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;

use super::classify::Logits;
use super::embed::Embeddings;
use super::loading::{Checkpoint, LoadOptions, ModelInfo};
use super::vision::{Picture, VisionTower};

/// An image as the hidden state of its first token, or as SigLIP pools it.
pub struct ImageEmbeddingModel {
    vision: VisionTower,
    info: ModelInfo,
}

pub struct ImageClassifyModel {
    vision: VisionTower,
    head: Linear,
    labels: Vec<String>,
    independent: bool,
    info: ModelInfo,
}

impl ImageEmbeddingModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let (vision, info) = load(&checkpoint, files, options, cancel)?;
        Ok(Self { vision, info })
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
        let pool = |seen: &Seen| {
            let pooled = self.vision.tower.pool(seen)?.contiguous()?;
            if normalize {
                kernels::l2_normalize(&pooled)
            } else {
                Ok(pooled)
            }
        };
        let values = self.vision.rows(pictures, first, cancel, pool)?;
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
        let (vision, mut info) = load(&checkpoint, files, options, cancel)?;
        let config = required_config(&checkpoint)?;
        let names = Blueprint::from_config(config)?.names;
        let source = checkpoint.source.as_ref();
        let parameters = Parameters::new(source, &names, &checkpoint.opened, checkpoint.dtype)?;
        if !parameters.has(Part::SequenceOutput) {
            return Err(Error::unsupported(
                &source.file(""),
                "the checkpoint has no classifier for images: use one that was trained for this task, or \
                 ImageEmbeddingModel for vectors",
            ));
        }
        let inputs = parameters
            .shape(Part::SequenceOutput)?
            .last()
            .copied()
            .unwrap_or(0);
        let outputs = parameters.outputs(Part::SequenceOutput)?;
        let hidden = info.hidden_size;
        if inputs != vision.tower.config().classifier.width(hidden) {
            return Err(parameters.misfit(Part::SequenceOutput, &[outputs, hidden]));
        }
        let head = parameters.linear(Part::SequenceOutput, inputs, outputs)?;
        info.inventory.add_linear(&head)?;
        let labels = config.id2label()?.filter(|labels| labels.len() == outputs);
        let problem = config.opt_string("problem_type")?;
        Ok(Self {
            labels: labels.unwrap_or_else(|| {
                let name = |number| format!("LABEL_{number}");
                (0..outputs).map(name).collect()
            }),
            independent: problem == Some("multi_label_classification") || outputs == 1,
            vision,
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
        let values = self.vision.rows(pictures, first, cancel, |seen| {
            let input = self.vision.tower.classifier_input(seen)?;
            self.head.forward(&input.contiguous()?)
        })?;
        self.info.check_numbers(&values)?;
        Ok(Logits {
            values,
            count: pictures.len(),
            labels: self.labels.len(),
            independent: self.independent,
        })
    }
}

fn required_config(checkpoint: &Checkpoint) -> Result<&formats::files::raw_config::RawConfig> {
    checkpoint.config.as_ref().ok_or_else(|| {
        Error::unsupported(
            &checkpoint.source.file(""),
            "models of images are not read from GGUF files",
        )
    })
}

fn load(
    checkpoint: &Checkpoint,
    files: &ModelFiles,
    options: &LoadOptions,
    cancel: &CancelToken,
) -> Result<(VisionTower, ModelInfo)> {
    let config = required_config(checkpoint)?;
    let vision = VisionTower::load(config, checkpoint, files, cancel)?;
    let config = &vision.tower.config().encoder;
    let mut inventory = vision.tower.inventory()?;
    inventory.add_rows("l2_normalize", &checkpoint.opened)?;
    let info = ModelInfo {
        architecture: checkpoint.architecture()?,
        family: config.family.to_owned(),
        parameters: checkpoint.parameters(),
        hidden_size: config.hidden_size,
        layers: config.layers.len(),
        attention_heads: config.head_count,
        vocabulary: 0,
        max_length: usize::MAX,
        device: checkpoint.device,
        dtype: checkpoint.dtype,
        int8: checkpoint.int8,
        files: checkpoint.source.files(),
        inventory,
        verified: options.verifies(),
    };
    Ok((vision, info))
}
