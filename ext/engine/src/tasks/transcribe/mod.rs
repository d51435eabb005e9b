//! Speech to text: by models that write (Whisper), and by those that label every moment (CTC).

mod beams;
mod labels;
mod languages;
mod original;
mod rules;
mod sequential;
mod settings;
mod tokens;
mod window;
mod words;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::models::speech::config::{SpeechOutput, StemConfig};
use crate::models::speech::{Blueprint, SpeechModel};
use crate::{CancelToken, Device, Error, Result};
use base::runtime::{memory, threads};
use formats::audio::{self, Audio, Extractor};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;

use super::loading::{Checkpoint, LoadOptions, ModelInfo};

pub use settings::{Segment, Task, Timestamps, TranscribeSettings, Transcript, Word};

use labels::Vocabulary;
use sequential::Progress;
use tokens::WhisperTokens;

/// Windows that are computed together.
const BATCH: usize = 8;

/// Audio, decoded or not.
#[derive(Clone, Debug)]
pub enum Sound {
    Decoded(Arc<Audio>),
    Encoded(Vec<u8>),
    File(PathBuf),
}

impl Sound {
    /// At the rate that a model reads.
    pub(super) fn load(&self, rate: u32, cancel: &CancelToken) -> Result<Arc<Audio>> {
        let limits = audio::limits();
        let audio = match self {
            Self::Decoded(audio) if audio.rate() == rate => return Ok(audio.clone()),
            Self::Decoded(audio) => audio.resampled(rate, cancel)?,
            Self::Encoded(bytes) => audio::decode(bytes.clone(), Some(rate), &limits, cancel)?,
            Self::File(path) => audio::read_file(path, Some(rate), &limits, cancel)?,
        };
        Ok(Arc::new(audio))
    }

    /// At its own rate.
    pub fn decode(&self, cancel: &CancelToken) -> Result<Arc<Audio>> {
        let limits = audio::limits();
        match self {
            Self::Decoded(audio) => Ok(audio.clone()),
            Self::Encoded(bytes) => {
                audio::decode(bytes.clone(), None, &limits, cancel).map(Arc::new)
            }
            Self::File(path) => audio::read_file(path, None, &limits, cancel).map(Arc::new),
        }
    }
}

/// Segments by the number of their audio.
pub type NewSegments = Vec<(usize, Vec<Segment>)>;

/// A speech model with what it needs around it; immutable, shared by all calls.
pub struct TranscribeModel {
    kind: Kind,
    info: ModelInfo,
}

enum Kind {
    Whisper(Box<WhisperParts>),
    Labels(Box<LabelParts>),
}

pub(crate) struct WhisperParts {
    model: SpeechModel,
    tokenizer: Tokenizer,
    tokens: WhisperTokens,
    extractor: Extractor,
    /// Frames of a window, numbers of a frame, and samples from one frame to the next.
    window: usize,
    bins: usize,
    hop: usize,
    max_target: usize,
    /// (layer, head) of the cross-attention that follows the audio.
    alignment: Vec<(usize, usize)>,
    batch: usize,
    device: Device,
}

pub(crate) struct LabelParts {
    model: SpeechModel,
    vocabulary: Vocabulary,
    blank: u32,
    extractor: Extractor,
    /// Samples from one state to the next.
    hop: usize,
    device: Device,
}

impl WhisperParts {
    fn compute<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        compute(&self.device, work)
    }
}

impl LabelParts {
    fn compute<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        compute(&self.device, work)
    }
}

fn compute<T: Send>(device: &Device, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    threads::install(|| device.keeping_awake(work)).and_then(|result| result)
}

impl TranscribeModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open_bare(files, options, cancel)?;
        let (checkpoint, tokenizer) = match original::read(&checkpoint, files, options, cancel)? {
            Some((config, tokenizer)) => (checkpoint.with_config(config), Some(tokenizer)),
            None => (checkpoint.checked(files, cancel)?, None),
        };
        let Some(config) = &checkpoint.config else {
            return Err(Error::unsupported(
                &checkpoint.source.file(""),
                "models of speech are not read from GGUF files",
            ));
        };
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
            vocabulary: shape.vocab_size(),
            max_length: usize::MAX,
            device: checkpoint.device,
            dtype: checkpoint.dtype,
            int8: checkpoint.int8,
            files: source.files(),
            inventory: model.inventory()?,
            verified: false,
        };
        let kind = match shape.output.clone() {
            SpeechOutput::Text { .. } => {
                let tokenizer = match tokenizer {
                    Some(tokenizer) => tokenizer,
                    None => checkpoint.tokenizer(files, options, cancel)?,
                };
                let settings = extractor_settings(files, config, cancel)?;
                let parts = whisper(model, &checkpoint, tokenizer, &settings, files, cancel)?;
                Kind::Whisper(Box::new(parts))
            }
            SpeechOutput::Labels { blank, .. } => {
                if !model.has_output() {
                    return Err(Error::unsupported(
                        &source.file(""),
                        "the checkpoint has no head for CTC: use one that was trained to transcribe, or \
                         AudioEmbeddingModel for vectors",
                    ));
                }
                let extractor = extractor_of(&model, files, config, cancel)?;
                Kind::Labels(Box::new(LabelParts {
                    vocabulary: Vocabulary::read(files, cancel)?,
                    blank,
                    hop: extractor.hop() * model.frames_per_state(),
                    extractor,
                    device: checkpoint.device,
                    model,
                }))
            }
        };
        Ok(Self { kind, info })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        match &self.kind {
            Kind::Whisper(parts) => Some(&parts.tokenizer),
            Kind::Labels(parts) => parts.vocabulary.tokenizer(),
        }
    }

    /// Samples per second that it reads.
    pub fn sample_rate(&self) -> u32 {
        match &self.kind {
            Kind::Whisper(parts) => parts.extractor.rate(),
            Kind::Labels(parts) => parts.extractor.rate(),
        }
    }

    /// The codes of the languages that it has tokens for.
    pub fn languages(&self) -> Vec<String> {
        match &self.kind {
            Kind::Whisper(parts) => parts.tokens.codes(),
            Kind::Labels(_) => Vec::new(),
        }
    }

    /// The features of an audio, as its extractor makes them: values, frames and numbers of a frame.
    pub fn features(
        &self,
        sound: &Sound,
        cancel: &CancelToken,
    ) -> Result<formats::audio::Features> {
        let (extractor, length) = match &self.kind {
            Kind::Whisper(parts) => (&parts.extractor, parts.window * parts.hop),
            Kind::Labels(parts) => (&parts.extractor, 0),
        };
        let audio = sound.load(extractor.rate(), cancel)?;
        extractor.extract(audio.samples(), length, cancel)
    }

    /// The likeliest language of the first window, and how likely it is.
    pub fn detect_language(&self, sound: &Sound, cancel: &CancelToken) -> Result<(String, f32)> {
        let Kind::Whisper(parts) = &self.kind else {
            return Err(Error::InvalidInput(
                "this model does not tell languages: use a multilingual Whisper".to_owned(),
            ));
        };
        if !parts.tokens.is_multilingual() {
            return Ok(("en".to_owned(), 1.0));
        }
        let mut features = self.features(sound, cancel)?;
        features.values.truncate(parts.window * parts.bins);
        let input = [(features.values.as_slice(), parts.bins)];
        let memories = parts.compute(|| parts.model.memories(&input, cancel))?;
        sequential::detect(parts, &memories[0], cancel)
    }
}

fn whisper(
    model: SpeechModel,
    checkpoint: &Checkpoint,
    tokenizer: Tokenizer,
    settings: &RawConfig,
    files: &ModelFiles,
    cancel: &CancelToken,
) -> Result<WhisperParts> {
    let config = checkpoint.config.as_ref().unwrap_or(settings);
    let generation = files.file("generation_config.json", cancel)?;
    let generation = generation.map(|path| RawConfig::read(&path)).transpose()?;
    let tokenizer = tokenizer.with_padding(None).with_truncation(None);
    let tokens = WhisperTokens::read(generation.as_ref(), config, &tokenizer)?;
    let extractor = Extractor::log_mel(settings)?;
    let Extractor::LogMel { mel, .. } = &extractor else {
        return Err(Error::Internal("Whisper reads bands".to_owned()));
    };
    let (bins, hop) = (mel.settings().bins, mel.settings().hop);
    let shape = model.config();
    let SpeechOutput::Text { decoder, .. } = &shape.output else {
        return Err(Error::Internal("Whisper writes".to_owned()));
    };
    let (layers, heads) = (decoder.stack.layers.len(), decoder.stack.head_count);
    let known = tokens.alignment_heads.iter().copied();
    let known = known.filter(|&(layer, head)| layer < layers && head < heads);
    let mut alignment: Vec<(usize, usize)> = known.collect();
    if alignment.is_empty() {
        // What follows the audio best stands in the second half.
        let all = (layers / 2..layers).flat_map(|layer| (0..heads).map(move |head| (layer, head)));
        alignment.extend(all);
    }
    let max_target = model.decoder()?.max_target();
    Ok(WhisperParts {
        window: model.window().unwrap_or(0),
        bins,
        hop,
        max_target: max_target.unwrap_or(usize::MAX >> 1),
        alignment,
        batch: BATCH,
        device: checkpoint.device,
        tokens,
        tokenizer,
        extractor,
        model,
    })
}

/// What makes features of samples for a model.
pub(super) fn extractor_of(
    model: &SpeechModel,
    files: &ModelFiles,
    config: &RawConfig,
    cancel: &CancelToken,
) -> Result<Extractor> {
    let settings = extractor_settings(files, config, cancel)?;
    match &model.config().stem {
        StemConfig::Rows { .. } => Extractor::kaldi(&settings),
        StemConfig::Grid(_) => Extractor::nemo(&settings),
        StemConfig::Samples(_) => Extractor::samples(&settings, true),
        StemConfig::Bands { .. } => Extractor::log_mel(&settings),
    }
}

/// What the checkpoint says of features, under one of the names that files have had.
fn extractor_settings(
    files: &ModelFiles,
    config: &RawConfig,
    cancel: &CancelToken,
) -> Result<RawConfig> {
    if let Some(path) = files.file("preprocessor_config.json", cancel)? {
        return RawConfig::read(&path);
    }
    if let Some(path) = files.file("processor_config.json", cancel)? {
        let raw = RawConfig::read(&path)?;
        if let Some(nested) = raw.opt_nested("feature_extractor")? {
            return Ok(nested);
        }
    }
    let bins = config.opt_usize("num_mel_bins")?.unwrap_or(80);
    RawConfig::parse(config.file(), &format!("{{\"feature_size\": {bins}}}"))
}

/// A call under way: its audios go on together, window by window.
///
/// A call of [`Transcribing::step`] that is interrupted may be repeated; it goes on where it was.
pub struct Transcribing {
    model: Arc<TranscribeModel>,
    sounds: Vec<Sound>,
    settings: TranscribeSettings,
    progress: Mutex<Vec<Progress>>,
}

impl Transcribing {
    pub fn new(
        model: Arc<TranscribeModel>,
        sounds: Vec<Sound>,
        settings: TranscribeSettings,
    ) -> Result<Self> {
        if let (Kind::Whisper(parts), Some(language)) = (&model.kind, &settings.language) {
            parts.tokens.language(language)?;
        }
        let progress = sounds.iter().map(|_| Progress::new()).collect();
        Ok(Self {
            model,
            sounds,
            settings,
            progress: Mutex::new(progress),
        })
    }

    /// Computes the next window of each audio that is not over. Returns the new segments by audio, `None` once
    /// all audios are over.
    pub fn step(&self, cancel: &CancelToken) -> Result<Option<NewSegments>> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.iter().all(|one| one.over) {
            return Ok(None);
        }
        match &self.model.kind {
            Kind::Whisper(parts) => {
                sequential::step(parts, &self.sounds, &mut progress, &self.settings, cancel)
                    .map(Some)
            }
            Kind::Labels(parts) => {
                let Some(at) = progress.iter().position(|one| !one.over) else {
                    return Ok(None);
                };
                let found = labels::transcribe(parts, &self.sounds[at], &self.settings, cancel)?;
                let segments = found.segments.clone();
                progress[at].transcript = found;
                progress[at].over = true;
                Ok(Some(vec![(at, segments)]))
            }
        }
    }

    /// How many seconds of the audios are written, and how many there are, as far as they have been decoded.
    pub fn position(&self) -> (f64, f64) {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = match &self.model.kind {
            Kind::Whisper(parts) => parts.hop as f64 / f64::from(parts.extractor.rate()),
            Kind::Labels(_) => 0.0,
        };
        progress.iter().fold((0.0, 0.0), |(done, total), one| {
            let duration = one.transcript.duration;
            (done + one.written(frame).min(duration), total + duration)
        })
    }

    /// What has become of the audios, in their order.
    pub fn transcripts(&self) -> Vec<Transcript> {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.iter().map(|one| one.transcript.clone()).collect()
    }
}
