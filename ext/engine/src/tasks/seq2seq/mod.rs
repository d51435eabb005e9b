//! Texts from texts: translation, summaries, answers, by encoder-decoders.

mod defaults;
mod generation;
mod languages;

use std::sync::{Arc, OnceLock};

use crate::generation::{Constraint, Ending, Pattern, Vocabulary};
use crate::models::seq2seq::Seq2Seq;
use crate::serving::batching;
use crate::serving::seq2seq::{Seq2SeqParts, Seq2SeqScheduler};
use crate::serving::{Served, Stats};
use crate::{CancelToken, Error, Result};
use base::runtime::memory;
use base::runtime::per_process::PerProcess;
use base::runtime::stats::Reading;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::{Detail, Tokenizer, Truncation};

use super::loading::{effective_length, Checkpoint, LoadOptions, ModelInfo};

pub use crate::serving::seq2seq::{Seq2SeqOutput, Seq2SeqSettings};
pub use defaults::GenerationDefaults;
pub use generation::Seq2SeqGeneration;

use languages::Languages;

/// An encoder-decoder with its tokenizer; immutable, shared by all calls.
pub struct Seq2SeqModel {
    parts: Arc<Seq2SeqParts>,
    defaults: GenerationDefaults,
    languages: Languages,
    /// `task_specific_params` of the configuration, as JSON.
    tasks: String,
    max_length: usize,
    info: ModelInfo,
    scheduler: PerProcess<Seq2SeqScheduler>,
    /// Made for the first constraint.
    vocabulary: OnceLock<Vocabulary>,
}

impl Seq2SeqModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        if options.int8 {
            return Err(Error::InvalidInput(
                "generative models do not support dtype int8: use f32, bf16 or f16".into(),
            ));
        }
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let blueprint = checkpoint.seq2seq_blueprint()?;
        let tokenizer = checkpoint.tokenizer(files, options, cancel)?;
        let tokenizer = tokenizer.with_padding(None).with_truncation(None);
        let source = checkpoint.source.as_ref();
        let target = (&checkpoint.opened, checkpoint.dtype);
        let model = Seq2Seq::load(&blueprint, source, target, cancel)?;
        memory::trim();
        if options.verifies() {
            model.verify(&blueprint, source, cancel)?;
        }
        let max_length = effective_length(&[
            options.max_length,
            tokenizer.model_max_length(),
            model.max_source(),
        ])?;
        let (config, encoder) = (model.config(), &model.config().encoder.config);
        let info = ModelInfo {
            architecture: checkpoint.architecture()?,
            family: config.family.to_owned(),
            parameters: checkpoint.parameters(),
            hidden_size: encoder.hidden_size,
            layers: config.layer_count(),
            attention_heads: encoder.head_count,
            vocabulary: config.vocab_size,
            max_length,
            device: checkpoint.device,
            dtype: checkpoint.dtype,
            int8: false,
            files: source.files(),
            inventory: model.inventory()?,
            verified: options.verifies(),
        };
        let raw = checkpoint.config.as_ref();
        let generation = files.file("generation_config.json", cancel)?;
        let generation = generation.map(|path| RawConfig::read(&path)).transpose()?;
        let defaults =
            GenerationDefaults::read(&[generation.as_ref(), raw], config.start, &tokenizer)?;
        let tasks = raw.and_then(|raw| raw.get("task_specific_params"));
        let stats = Arc::new(Stats::new(Served::Seq2Seq));
        Ok(Self {
            languages: Languages::of(config.family, files, &tokenizer, cancel)?,
            tasks: tasks.map_or_else(|| "{}".to_owned(), ToString::to_string),
            scheduler: PerProcess::new(Seq2SeqScheduler::new(stats.clone())),
            parts: Arc::new(Seq2SeqParts {
                model,
                tokenizer,
                start: defaults.start,
                device: info.device,
                stats,
            }),
            defaults,
            max_length,
            info,
            vocabulary: OnceLock::new(),
        })
    }

    pub fn model(&self) -> &Seq2Seq {
        &self.parts.model
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.parts.tokenizer
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.parts.stats.read()
    }

    /// Of this process.
    fn scheduler(&self) -> Result<Arc<Seq2SeqScheduler>> {
        self.scheduler
            .get(|| Ok(Seq2SeqScheduler::new(self.parts.stats.clone())))
    }

    /// What the checkpoint says of generating.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.defaults
    }

    /// `task_specific_params`, as JSON.
    pub fn tasks(&self) -> &str {
        &self.tasks
    }

    /// The codes of the languages that it has tokens for.
    pub fn languages(&self) -> Vec<String> {
        self.languages.codes()
    }

    /// The token that a text in this language begins with.
    pub fn target_language(&self, code: &str) -> Result<u32> {
        self.languages.token(code)
    }

    /// The ids of a text in the language of that code, cut at the maximum length.
    pub fn encode(
        &self,
        text: &str,
        language: Option<&str>,
        cancel: &CancelToken,
    ) -> Result<Vec<u32>> {
        let added = self.languages.around(language)?;
        let tokenizer = &self.parts.tokenizer;
        let text = batching::shorten_text(tokenizer, text, self.max_length, cancel)?;
        let count = added
            .as_ref()
            .map_or(0, |(before, after)| before.len() + after.len());
        let room = Truncation::new(self.max_length.saturating_sub(count));
        let cutting = tokenizer.with_truncation(Some(room));
        let encoding = cutting.encode(text, added.is_none(), Detail::Ids, cancel)?;
        let Some((mut ids, after)) = added else {
            return Ok(encoding.get_ids().to_vec());
        };
        ids.extend_from_slice(encoding.get_ids());
        ids.extend(after);
        Ok(ids)
    }

    /// A pattern that a text of this model shall follow.
    pub fn constraint(
        &self,
        pattern: &Pattern,
        ending: Ending,
        cancel: &CancelToken,
    ) -> Result<Box<dyn Constraint>> {
        let ends = !self.defaults.rules.end_ids.is_empty();
        Vocabulary::constraint(
            (&self.vocabulary, &self.parts.tokenizer),
            (pattern, ending),
            ends,
            cancel,
        )
    }
}
