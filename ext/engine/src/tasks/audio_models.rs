//! Audio alone: to vectors, and to labels.

use candle_core::{DType, Tensor};

use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::speech::{Blueprint, SpeechModel};
use crate::nn::{Linear, Norm};
use crate::{CancelToken, Device, Error, Result};
use base::runtime::{memory, threads};
use formats::audio::Extractor;
use formats::files::model_files::ModelFiles;

use super::clap::ClapModel;
use super::classify;
use super::classify::Logits;
use super::embed::Embeddings;
use super::loading::{Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::transcribe::{extractor_of, Sound};

/// An audio as the mean of its encoder's states, or of the tokens that stand for it.
pub struct AudioEmbeddingModel {
    body: Body,
    info: ModelInfo,
}

#[allow(clippy::large_enum_variant, reason = "one per model")]
enum Body {
    Listener(Listener),
    /// Audio and texts (CLAP).
    Shared(ClapModel),
}

pub struct AudioClassifyModel {
    listener: Listener,
    /// How much the states of each layer count, where not only the last ones do.
    shares: Option<Vec<f32>>,
    norm: Option<Norm>,
    dense: Option<Linear>,
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
        let config = checkpoint.required_config("audio")?;
        let blueprint = Blueprint::from_config(config)?;
        let place = (&checkpoint.opened, checkpoint.dtype);
        let source = checkpoint.source.as_ref();
        let model = SpeechModel::load(&blueprint, source, place, checkpoint.int8, cancel)?;
        memory::trim();
        let shape = model.config();
        let shape = ModelShape {
            family: shape.family,
            hidden_size: shape.width(),
            layers: shape.layer_count(),
            attention_heads: shape.encoder.head_count,
            vocabulary: 0,
        };
        let info = ModelInfo::of(checkpoint, &shape, model.inventory()?, false)?;
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
        if ClapModel::matches(checkpoint.required_config("audio")?)? {
            let model = ClapModel::load(&checkpoint, files, options, cancel)?;
            let info = model.info().clone();
            return Ok(Self {
                body: Body::Shared(model),
                info,
            });
        }
        let (listener, mut info) = Listener::load(&checkpoint, files, cancel)?;
        info.inventory
            .add_rows("l2_normalize", &checkpoint.opened)?;
        Ok(Self {
            body: Body::Listener(listener),
            info,
        })
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
        match &self.body {
            Body::Listener(listener) => listener.extractor.rate(),
            Body::Shared(model) => model.sample_rate(),
        }
    }

    fn shared(&self) -> Result<&ClapModel> {
        match &self.body {
            Body::Shared(model) => Ok(model),
            Body::Listener(_) => Err(Error::InvalidInput(
                "this model does not read texts: use CLAP".to_owned(),
            )),
        }
    }

    /// One vector per text, in their order.
    pub fn embed_texts<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        normalize: bool,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        self.shared()?.embed_texts(texts, normalize, cancel)
    }

    /// For each audio, how well each text fits: one row per audio, in the order of the texts.
    pub fn match_texts<T: AsRef<str> + Sync>(
        &self,
        sounds: &[Sound],
        texts: &[T],
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<f32>>> {
        self.shared()?.match_texts(sounds, texts, cancel)
    }

    /// One vector per audio, in their order.
    pub fn embed(
        &self,
        sounds: &[Sound],
        normalize: bool,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let listener = match &self.body {
            Body::Listener(listener) => listener,
            Body::Shared(model) => return model.embed(sounds, normalize, cancel),
        };
        let values = listener.rows(sounds, None, cancel, |states| {
            let pooled = listener.model.pool(states)?;
            if normalize {
                kernels::l2_normalize(&pooled)
            } else {
                Ok(pooled)
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
        let config = checkpoint.required_config("audio")?;
        if listener.model.config().adapter.is_some() {
            return Err(Error::unsupported(
                config.file(),
                "add_adapter is not supported in classifiers",
            ));
        }
        let names = Blueprint::from_config(config)?.names;
        let source = checkpoint.source.as_ref();
        let parameters = Parameters::new(source, &names, &checkpoint.opened, checkpoint.dtype)?;
        let before = parameters.has(Part::SequenceDense) || parameters.has(Part::SequenceNorm);
        if !before || !parameters.has(Part::SequenceOutput) {
            return Err(Error::unsupported(
                &source.file(""),
                "the checkpoint has no classifier for audio: use one that was trained for this task, or \
                 AudioEmbeddingModel for vectors",
            ));
        }
        let hidden = info.hidden_size;
        let settings = listener.model.config().encoder.norm;
        let norm = parameters.optional_norm(Part::SequenceNorm, &[hidden], settings)?;
        let dense = parameters.optional_linear(Part::SequenceDense, hidden)?;
        let between = dense.as_ref().map_or(hidden, Linear::outputs);
        let outputs = parameters.outputs(Part::SequenceOutput)?;
        let head = parameters.linear(Part::SequenceOutput, between, outputs)?;
        if let Some(norm) = &norm {
            info.inventory.add_norm(norm)?;
        }
        if let Some(dense) = &dense {
            info.inventory.add_linear(dense)?;
        }
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
            norm,
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
            let mut x = self.listener.model.pool(states)?;
            if let Some(norm) = &self.norm {
                x = norm.forward(&x)?;
            }
            if let Some(dense) = &self.dense {
                x = dense.forward(&x)?;
            }
            self.head.forward(&x)
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
