//! Speech to text: by models that write (Whisper, Moonshine), and by those that label every moment (CTC).

mod allowed;
mod beams;
mod fallback;
mod labels;
mod languages;
mod original;
mod rules;
mod sequential;
mod settings;
mod sound;
mod tokens;
mod window;
mod words;
mod writer;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::generation;
use crate::models::speech::config::{SpeechOutput, StemConfig};
use crate::models::speech::{Blueprint, SpeechModel};
use crate::{CancelToken, Device, Error, Result};
use base::runtime::memory;
use formats::audio::{Extractor, LogMel, Windows};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;
use serde_json::json;

use super::loading::{Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::seq2seq::GenerationDefaults;

pub use settings::{Segment, Task, Timestamps, TranscribeSettings, Transcript, Word};
pub use sound::Sound;

use allowed::{Allowed, Beyond};
use labels::Vocabulary;
use sequential::Progress;
use tokens::WhisperTokens;
use writer::WriterParts;

/// Windows that are computed together.
const BATCH: usize = 8;
/// The token before a text of models that say of none.
const USUAL_START: u32 = 1;

/// Segments by the number of their audio.
pub type NewSegments = Vec<(usize, Vec<Segment>)>;

/// A speech model with what it needs around it; immutable, shared by all calls.
pub struct TranscribeModel {
    kind: Kind,
    info: ModelInfo,
    /// Made for the first call with a vocabulary.
    words: OnceLock<generation::Vocabulary>,
}

enum Kind {
    Whisper(Box<WhisperParts>),
    Writer(Box<WriterParts>),
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

    fn mel(&self) -> Result<&LogMel> {
        match &self.extractor {
            Extractor::LogMel { mel, .. } => Ok(mel),
            Extractor::Samples { .. } | Extractor::Bank(_) => {
                Err(Error::Internal("Whisper reads bands".to_owned()))
            }
        }
    }

    /// The features of an audio, window by window.
    fn windows(&self, sound: &Sound, cancel: &CancelToken) -> Result<Windows> {
        let open = || sound.stream(self.extractor.rate());
        Windows::new(self.mel()?, &open, self.window * self.hop, cancel)
    }
}

impl LabelParts {
    fn compute<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        compute(&self.device, work)
    }
}

fn compute<T: Send>(device: &Device, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    device.compute(work).and_then(|result| result)
}

impl TranscribeModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open_bare(files, options, cancel)?;
        let (checkpoint, tokenizer) = match original::read(&checkpoint, files, options, cancel)? {
            Some((config, tokenizer)) => (checkpoint.with_config(config), Some(tokenizer)),
            None => original::with_files_beside(checkpoint, files, options, cancel)?,
        };
        let config = checkpoint.required_config("speech")?;
        let blueprint = Blueprint::from_config(config)?;
        let place = (&checkpoint.opened, checkpoint.dtype);
        let source = checkpoint.source.as_ref();
        let model = SpeechModel::load(&blueprint, source, place, checkpoint.int8, cancel)?;
        memory::trim();
        let shape = model.config();
        let sizes = ModelShape {
            family: shape.family,
            hidden_size: shape.encoder.hidden_size,
            layers: shape.layer_count(),
            attention_heads: shape.encoder.head_count,
            vocabulary: shape.vocab_size(),
        };
        let info = ModelInfo::of(&checkpoint, &sizes, model.inventory()?, false)?;
        let kind = match shape.output.clone() {
            SpeechOutput::Text { .. } if matches!(shape.stem, StemConfig::Waves) => {
                let tokenizer = checkpoint.tokenizer(files, options, cancel)?;
                let tokenizer = tokenizer.with_padding(None).with_truncation(None);
                let generation = generation_config(files, cancel)?;
                let (generation, raw) = (generation.as_ref(), Some(config));
                Kind::Writer(Box::new(WriterParts {
                    defaults: GenerationDefaults::read(
                        &[generation, raw],
                        USUAL_START,
                        &tokenizer,
                    )?,
                    extractor: extractor_of(&model, files, config, cancel)?,
                    positions: config.opt_usize("max_position_embeddings")?.unwrap_or(512),
                    device: checkpoint.device,
                    tokenizer,
                    model,
                }))
            }
            SpeechOutput::Text { .. } => {
                let tokenizer = match tokenizer {
                    Some(tokenizer) => tokenizer,
                    None => checkpoint.tokenizer(files, options, cancel)?,
                };
                let settings = extractor_settings(files, config, cancel)?;
                let parts = whisper(model, &checkpoint, tokenizer, &settings, files, cancel)?;
                Kind::Whisper(Box::new(parts))
            }
            SpeechOutput::Labels { blank, .. } if model.has_output() => {
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
            SpeechOutput::Labels { .. } | SpeechOutput::States => {
                return Err(Error::unsupported(
                    &source.file(""),
                    "the checkpoint has no head for CTC: use one that was trained to transcribe, or \
                     AudioEmbeddingModel for vectors",
                ));
            }
        };
        Ok(Self {
            kind,
            info,
            words: OnceLock::new(),
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        match &self.kind {
            Kind::Whisper(parts) => Some(&parts.tokenizer),
            Kind::Writer(parts) => Some(&parts.tokenizer),
            Kind::Labels(parts) => parts.vocabulary.tokenizer(),
        }
    }

    /// Samples per second that it reads.
    pub fn sample_rate(&self) -> u32 {
        match &self.kind {
            Kind::Whisper(parts) => parts.extractor.rate(),
            Kind::Writer(parts) => parts.extractor.rate(),
            Kind::Labels(parts) => parts.extractor.rate(),
        }
    }

    /// The codes of the languages that it has tokens for.
    pub fn languages(&self) -> Vec<String> {
        match &self.kind {
            Kind::Whisper(parts) => parts.tokens.codes(),
            Kind::Writer(_) | Kind::Labels(_) => Vec::new(),
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
            Kind::Writer(parts) => (&parts.extractor, 0),
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
        let mut windows = parts.windows(sound, cancel)?;
        let values = windows.window(parts.mel()?, (0, parts.window), cancel)?;
        let input = [(values.as_slice(), parts.bins)];
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
    let generation = generation_config(files, cancel)?;
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

fn generation_config(files: &ModelFiles, cancel: &CancelToken) -> Result<Option<RawConfig>> {
    let path = files.file("generation_config.json", cancel)?;
    path.map(|path| RawConfig::read(&path)).transpose()
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
        StemConfig::Waves => Extractor::samples(&settings, settings.has("feature_extractor_type")),
        StemConfig::Patches(stem) => {
            let extractor = Extractor::spectrogram(&settings)?;
            if extractor.fixed_shape() == Some((stem.frames, stem.bins)) {
                return Ok(extractor);
            }
            Err(Error::corrupt(
                settings.file(),
                format!(
                    "the feature extractor's max_length and num_mel_bins are not the model's, {} and {}",
                    stem.frames, stem.bins
                ),
            ))
        }
    }
}

/// What the checkpoint says of features, under one of the names that files have had.
pub(super) fn extractor_settings(
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
    let mut usual = json!({ "feature_size": bins, "num_mel_bins": bins });
    if let Some(length) = config.opt_usize("max_length")? {
        usual["max_length"] = length.into();
    }
    RawConfig::parse(config.file(), &usual.to_string())
}

/// A call under way: its audios go on together, window by window.
///
/// A call of [`Transcribing::step`] that is interrupted may be repeated; it goes on where it was.
pub struct Transcribing {
    model: Arc<TranscribeModel>,
    sounds: Vec<Sound>,
    settings: TranscribeSettings,
    progress: Mutex<Vec<Progress>>,
    /// Made in the first step.
    allowed: OnceLock<Arc<Allowed>>,
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
        if let Kind::Writer(_) = &model.kind {
            writer::check(&settings)?;
        }
        allowed::check(&settings.vocabulary)?;
        if let (Kind::Labels(_), false) = (&model.kind, settings.vocabulary.is_empty()) {
            return Err(Error::InvalidInput(
                "vocabulary: needs a model that writes tokens: use Whisper or Moonshine".to_owned(),
            ));
        }
        let progress = sounds.iter().map(|_| Progress::new()).collect();
        Ok(Self {
            model,
            sounds,
            settings,
            progress: Mutex::new(progress),
            allowed: OnceLock::new(),
        })
    }

    /// Computes the next window of each audio that is not over. Returns the new segments by audio, `None` once
    /// all audios are over.
    pub fn step(&self, cancel: &CancelToken) -> Result<Option<NewSegments>> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.iter().all(|one| one.over) {
            return Ok(None);
        }
        let allowed = self.allowed(cancel)?;
        match &self.model.kind {
            Kind::Whisper(parts) => {
                let how = (&self.settings, allowed);
                sequential::step(parts, &self.sounds, &mut progress, how, cancel).map(Some)
            }
            Kind::Writer(parts) => {
                let how = (&self.settings, allowed.map(Arc::as_ref));
                writer::step(parts, &self.sounds, &mut progress, how, cancel).map(Some)
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

    /// What texts are made of, where the call gives words.
    fn allowed(&self, cancel: &CancelToken) -> Result<Option<&Arc<Allowed>>> {
        let words = &self.settings.vocabulary;
        if words.is_empty() {
            return Ok(None);
        }
        if let Some(made) = self.allowed.get() {
            return Ok(Some(made));
        }
        let (tokenizer, ends, beyond) = match &self.model.kind {
            Kind::Whisper(parts) => {
                let tokens = &parts.tokens;
                let beyond = Beyond {
                    first: tokens.first_beyond_text,
                    first_time: tokens.first_timestamp,
                };
                (&parts.tokenizer, vec![tokens.end], beyond)
            }
            Kind::Writer(parts) => {
                let ends = parts.defaults.rules.end_ids.clone();
                (&parts.tokenizer, ends, Beyond::NONE)
            }
            Kind::Labels(_) => return Ok(None),
        };
        let vocabulary = (&self.model.words, tokenizer);
        let made = Allowed::new(words, vocabulary, ends, beyond, cancel)?;
        Ok(Some(self.allowed.get_or_init(|| Arc::new(made))))
    }

    /// How many seconds of the audios are written, and how many there are, as far as they have been decoded.
    pub fn position(&self) -> (f64, f64) {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = match &self.model.kind {
            Kind::Whisper(parts) => parts.hop as f64 / f64::from(parts.extractor.rate()),
            Kind::Writer(parts) => 1.0 / f64::from(parts.extractor.rate()),
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
