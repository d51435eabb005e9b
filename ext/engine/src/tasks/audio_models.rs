//! Audio alone: to vectors, and to labels.

use candle_core::{DType, Tensor};

use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::speech::{Blueprint, SpeechModel};
use crate::nn::Linear;
use crate::{CancelToken, Device, Error, Result};
use base::runtime::{memory, threads};
use formats::audio::Extractor;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;

use super::classify;
use super::classify::Logits;
use super::embed::Embeddings;
use super::loading::{Checkpoint, LoadOptions, ModelInfo};
use super::transcribe::{extractor_of, Sound};

/// An audio as the mean of its encoder's states.
pub struct AudioEmbeddingModel {
    listener: Listener,
    info: ModelInfo,
}

pub struct AudioClassifyModel {
    listener: Listener,
    /// How much the states of each layer count, where not only the last ones do.
    shares: Option<Vec<f32>>,
    dense: Linear,
    head: Linear,
    labels: Vec<String>,
    independent: bool,
    info: ModelInfo,
}

struct Listener {
    model: SpeechModel,
    extractor: Extractor,
    device: Device,
}

impl Listener {
    fn load(
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        cancel: &CancelToken,
    ) -> Result<(Self, ModelInfo)> {
        let config = required_config(checkpoint)?;
        let blueprint = Blueprint::from_config(config)?;
        let place = (&checkpoint.opened, checkpoint.dtype);
        let source = checkpoint.source.as_ref();
        let model = SpeechModel::load(&blueprint, source, place, checkpoint.int8, cancel)?;
        memory::trim();
        let shape = model.config();
        let info = ModelInfo {
            architecture: checkpoint.architecture()?,
            family: shape.family.to_owned(),
            parameters: checkpoint.parameters(),
            hidden_size: shape.encoder.hidden_size,
            layers: shape.layer_count(),
            attention_heads: shape.encoder.head_count,
            vocabulary: 0,
            max_length: usize::MAX,
            device: checkpoint.device,
            dtype: checkpoint.dtype,
            int8: checkpoint.int8,
            files: source.files(),
            inventory: model.inventory()?,
            verified: false,
        };
        let extractor = extractor_of(&model, files, config, cancel)?;
        let listener = Self {
            model,
            extractor,
            device: checkpoint.device,
        };
        Ok((listener, info))
    }

    /// What `read` makes of the states of each audio, [states, hidden], one row after the other.
    fn rows(
        &self,
        sounds: &[Sound],
        shares: Option<&[f32]>,
        cancel: &CancelToken,
        read: impl Fn(&Tensor) -> Result<Tensor> + Sync,
    ) -> Result<Vec<f32>> {
        let mut rows = Vec::new();
        for sound in sounds {
            let audio = sound.load(self.extractor.rate(), cancel)?;
            let features = self.extractor.extract(audio.samples(), 0, cancel)?;
            if self.model.states(features.frames) == 0 {
                return Err(Error::InvalidInput(format!(
                    "an audio of {:.3} seconds is too short for this model",
                    audio.duration()
                )));
            }
            let row = threads::install(|| {
                self.device.keeping_awake(|| {
                    let input = [(features.values.as_slice(), features.bins)];
                    let (states, _) = self.model.encode_shared(&input, shares, cancel)?;
                    let row = read(&states)?.to_dtype(DType::F32)?;
                    Ok::<Vec<f32>, Error>(row.flatten_all()?.to_vec1()?)
                })
            })
            .and_then(|row| row)?;
            rows.extend(row);
        }
        Ok(rows)
    }
}

impl AudioEmbeddingModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let (listener, mut info) = Listener::load(&checkpoint, files, cancel)?;
        info.inventory
            .add_rows("l2_normalize", &checkpoint.opened)?;
        Ok(Self { listener, info })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The length of a vector.
    pub fn dimension(&self) -> usize {
        self.info.hidden_size
    }

    /// Samples per second that it reads.
    pub fn sample_rate(&self) -> u32 {
        self.listener.extractor.rate()
    }

    /// One vector per audio, in their order.
    pub fn embed(
        &self,
        sounds: &[Sound],
        normalize: bool,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let values = self.listener.rows(sounds, None, cancel, |states| {
            let mean = mean(states)?;
            if normalize {
                kernels::l2_normalize(&mean)
            } else {
                Ok(mean)
            }
        })?;
        self.info.check_numbers(&values)?;
        Ok(Embeddings {
            values,
            count: sounds.len(),
            dimension: self.dimension(),
        })
    }
}

impl AudioClassifyModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let (listener, mut info) = Listener::load(&checkpoint, files, cancel)?;
        let config = required_config(&checkpoint)?;
        let names = Blueprint::from_config(config)?.names;
        let source = checkpoint.source.as_ref();
        let parameters = Parameters::new(source, &names, &checkpoint.opened, checkpoint.dtype)?;
        if !parameters.has(Part::SequenceDense) || !parameters.has(Part::SequenceOutput) {
            return Err(Error::unsupported(
                &source.file(""),
                "the checkpoint has no classifier for audio: use one that was trained for this task, or \
                 AudioEmbeddingModel for vectors",
            ));
        }
        let between = parameters.outputs(Part::SequenceDense)?;
        let outputs = parameters.outputs(Part::SequenceOutput)?;
        let dense = parameters.linear(Part::SequenceDense, info.hidden_size, between)?;
        let head = parameters.linear(Part::SequenceOutput, between, outputs)?;
        info.inventory.add_linear(&dense)?;
        info.inventory.add_linear(&head)?;
        let shares = if config.opt_bool("use_weighted_layer_sum")? == Some(true) {
            Some(shares(&parameters, info.layers + 1)?)
        } else {
            None
        };
        let problem = config.opt_string("problem_type")?;
        Ok(Self {
            labels: classify::labels(&checkpoint, outputs)?,
            independent: problem == Some("multi_label_classification") || outputs == 1,
            listener,
            shares,
            dense,
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

    /// Samples per second that it reads.
    pub fn sample_rate(&self) -> u32 {
        self.listener.extractor.rate()
    }

    /// One row of logits per audio, in their order.
    pub fn classify(&self, sounds: &[Sound], cancel: &CancelToken) -> Result<Logits> {
        let shares = self.shares.as_deref();
        let values = self.listener.rows(sounds, shares, cancel, |states| {
            // The mean of projections is the projection of the mean.
            self.head.forward(&self.dense.forward(&mean(states)?)?)
        })?;
        self.info.check_numbers(&values)?;
        Ok(Logits {
            values,
            count: sounds.len(),
            labels: self.labels.len(),
            independent: self.independent,
        })
    }
}

/// [1, hidden] of [states, hidden].
fn mean(states: &Tensor) -> Result<Tensor> {
    let mean = states.to_dtype(DType::F32)?.mean_keepdim(0)?;
    Ok(mean.to_dtype(states.dtype())?)
}

/// The softmax of what a checkpoint says of its layers.
fn shares(parameters: &Parameters<'_>, count: usize) -> Result<Vec<f32>> {
    let weights = parameters.optional_exact(Part::LayerWeights)?;
    let weights = weights.ok_or_else(|| parameters.missing(Part::LayerWeights))?;
    let weights: Vec<f32> = weights.flatten_all()?.to_vec1()?;
    if weights.len() != count {
        return Err(parameters.misfit(Part::LayerWeights, &[count]));
    }
    let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = weights.iter().map(|weight| (weight - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    Ok(powers.into_iter().map(|power| power / sum).collect())
}

fn required_config(checkpoint: &Checkpoint) -> Result<&RawConfig> {
    checkpoint.config.as_ref().ok_or_else(|| {
        Error::unsupported(
            &checkpoint.source.file(""),
            "models of audio are not read from GGUF files",
        )
    })
}
