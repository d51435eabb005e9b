//! Audio alone: to vectors, and to labels.

use candle_core::{DType, Tensor};

use crate::models::modules::Modules;
use crate::models::parameters::Parameters;
use crate::models::parts::{Names, Part};
use crate::models::speech::{Blueprint, SpeechModel};
use crate::nn::{Linear, Norm};
use crate::{CancelToken, Device, Error, Result};
use base::runtime::memory;
use formats::audio::Extractor;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;

use super::clap::ClapModel;
use super::classify;
use super::classify::Logits;
use super::embed::Embeddings;
use super::loading::{Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::transcribe::{extractor_of, Sound};
use super::voices::VoiceHead;

/// An audio as the mean of its encoder's states, as what tells voices apart, or as the tokens that stand for it.
pub struct AudioEmbeddingModel {
    body: Body,
    info: ModelInfo,
}

#[allow(clippy::large_enum_variant, reason = "one per model")]
enum Body {
    Listener(Listener),
    Voices(Voices),
    /// Audio and texts (CLAP).
    Shared(ClapModel),
}

/// A model that was trained to tell voices apart.
struct Voices {
    listener: Listener,
    shares: Option<Vec<f32>>,
    head: VoiceHead,
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

    /// What `read` makes of the states of each audio, [states, hidden], one row after the other. It needs at least
    /// so many of them.
    fn rows(
        &self,
        sounds: &[Sound],
        (shares, least): (Option<&[f32]>, usize),
        cancel: &CancelToken,
        read: impl Fn(&Tensor) -> Result<Tensor> + Sync,
    ) -> Result<Vec<f32>> {
        let mut rows = Vec::new();
        for sound in sounds {
            let audio = sound.load(self.extractor.rate(), cancel)?;
            let features = self.extractor.extract(audio.samples(), 0, cancel)?;
            if self.model.states(features.frames) < least {
                return Err(Error::InvalidInput(format!(
                    "an audio of {:.3} seconds is too short for this model",
                    audio.duration()
                )));
            }
            let row = self
                .device
                .compute(|| {
                    let input = [(features.values.as_slice(), features.bins)];
                    let (states, _) = self.model.encode_shared(&input, shares, cancel)?;
                    let row = read(&states)?.to_dtype(DType::F32)?;
                    Ok::<Vec<f32>, Error>(row.flatten_all()?.to_vec1()?)
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
        let names = checkpoint.source.names();
        let modules = checkpoint_modules(&checkpoint, &names);
        if !VoiceHead::is_in(&modules) {
            return Ok(Self {
                body: Body::Listener(listener),
                info,
            });
        }
        let config = checkpoint.required_config("audio")?;
        refuse_adapter(&listener, config, "models that tell voices apart")?;
        let names = Blueprint::from_config(config)?.names;
        let head = VoiceHead::load(&modules, config, info.hidden_size)?;
        head.list(&mut info.inventory)?;
        let shares = optional_shares(&checkpoint, (config, &names), info.layers + 1)?;
        info.hidden_size = head.dimension();
        let body = Body::Voices(Voices {
            listener,
            shares,
            head,
        });
        Ok(Self { body, info })
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
            Body::Listener(listener) | Body::Voices(Voices { listener, .. }) => {
                listener.extractor.rate()
            }
            Body::Shared(model) => model.sample_rate(),
        }
    }

    fn shared(&self) -> Result<&ClapModel> {
        match &self.body {
            Body::Shared(model) => Ok(model),
            Body::Listener(_) | Body::Voices(_) => Err(Error::InvalidInput(
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
        let finish = |vector: Tensor| {
            if normalize {
                kernels::l2_normalize(&vector)
            } else {
                Ok(vector)
            }
        };
        let values = match &self.body {
            Body::Listener(listener) => listener.rows(sounds, (None, 1), cancel, |states| {
                finish(listener.model.pool(states)?)
            })?,
            Body::Voices(voices) => {
                let how = (voices.shares.as_deref(), voices.head.least_states());
                let listener = &voices.listener;
                listener.rows(sounds, how, cancel, |states| {
                    finish(voices.head.forward(states)?)
                })?
            }
            Body::Shared(model) => return model.embed(sounds, normalize, cancel),
        };
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
        refuse_adapter(&listener, config, "classifiers")?;
        let names = Blueprint::from_config(config)?.names;
        let source = checkpoint.source.as_ref();
        let parameters = Parameters::new(source, &names, &checkpoint.opened, checkpoint.dtype)?;
        refuse_other_heads(&checkpoint, &parameters)?;
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
        let shares = optional_shares(&checkpoint, (config, &names), info.layers + 1)?;
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
        let how = (self.shares.as_deref(), 1);
        let values = self.listener.rows(sounds, how, cancel, |states| {
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

fn checkpoint_modules<'a>(checkpoint: &'a Checkpoint, names: &'a [String]) -> Modules<'a> {
    let place = (&checkpoint.opened, checkpoint.dtype);
    Modules::new(checkpoint.source.as_ref(), names, place, checkpoint.int8)
}

fn refuse_adapter(listener: &Listener, config: &RawConfig, of: &str) -> Result<()> {
    if listener.model.config().adapter.is_none() {
        return Ok(());
    }
    Err(Error::unsupported(
        config.file(),
        format!("add_adapter is not supported in {of}"),
    ))
}

/// Checkpoints whose head is not one that labels a whole audio.
fn refuse_other_heads(checkpoint: &Checkpoint, parameters: &Parameters<'_>) -> Result<()> {
    let names = checkpoint.source.names();
    let before = parameters.has(Part::SequenceDense) || parameters.has(Part::SequenceNorm);
    let reason = if VoiceHead::is_in(&checkpoint_modules(checkpoint, &names)) {
        "the checkpoint tells voices apart (ForXVector): use AudioEmbeddingModel and compare vectors"
    } else if before && parameters.has(Part::SequenceOutput) {
        return Ok(());
    } else if parameters.has(Part::SequenceOutput) {
        "the checkpoint labels every frame (ForAudioFrameClassification), which is not supported: use one that \
         labels a whole audio (ForSequenceClassification), or AudioEmbeddingModel for vectors"
    } else {
        "the checkpoint has no classifier for audio: use one that was trained for this task, or \
         AudioEmbeddingModel for vectors"
    };
    Err(Error::unsupported(&checkpoint.source.file(""), reason))
}

/// How much the states of each layer count, where a checkpoint says so.
fn optional_shares(
    checkpoint: &Checkpoint,
    (config, names): (&RawConfig, &Names),
    count: usize,
) -> Result<Option<Vec<f32>>> {
    if config.opt_bool("use_weighted_layer_sum")? != Some(true) {
        return Ok(None);
    }
    let source = checkpoint.source.as_ref();
    let parameters = Parameters::new(source, names, &checkpoint.opened, checkpoint.dtype)?;
    shares(&parameters, count).map(Some)
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
