//! Text generation: a language model, and what it makes of one prompt.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use candle_core::DType;

use super::adapter_base;
use super::loading::{Checkpoint, LoadOptions, ModelInfo};
use crate::files::model_files::ModelFiles;
use crate::files::raw_config::RawConfig;
use crate::generation::run::{Run, RunText};
use crate::generation::sampler::log_sum_exp;
use crate::generation::{Constraint, Ending, GenerationConfig, Pattern, Vocabulary};
use crate::models::decoder::model::Logits;
use crate::models::decoder::{peft, Adapter, Decoder, KvCache};
use crate::nn::Inventory;
use crate::text::tokenizer::Tokenizer;
use crate::{
    runtime::{memory, threads},
    CancelToken, Error, Result,
};

/// The logits of this many tokens are held at a time.
const LOGITS_CHUNK: usize = 256;

/// A decoder with its tokenizer; immutable, shared by all runs.
pub struct LanguageModel {
    decoder: Decoder,
    tokenizer: Tokenizer,
    end_ids: Vec<u32>,
    context_length: usize,
    adapters: Vec<Arc<Adapter>>,
    info: ModelInfo,
    /// Made for the first constraint.
    vocabulary: OnceLock<Vocabulary>,
}

/// An adapter to be loaded with a model.
pub struct AdapterFiles {
    pub name: String,
    pub files: ModelFiles,
}

/// What to do when a sequence outgrows the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextOverflow {
    #[default]
    Error,
    /// Forget the older half of what is not needed to go on.
    Roll,
}

impl LanguageModel {
    pub fn load(
        files: &ModelFiles,
        options: &LoadOptions,
        adapters: &[AdapterFiles],
        cancel: &CancelToken,
    ) -> Result<Self> {
        if options.int8 {
            return Err(Error::InvalidInput(
                "language models do not take dtype int8: use a Q8_0 GGUF file, or f32, bf16 or f16"
                    .into(),
            ));
        }
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let blueprint = checkpoint.decoder_blueprint()?;
        let config = &blueprint.config;
        if config.bidirectional {
            return Err(Error::UnsupportedModel(format!(
                "{} reads its texts in both directions and can't generate any: load it with EmbeddingModel",
                files.id()
            )));
        }
        let context_length = options.max_length.map_or(config.max_positions, |asked| {
            asked.min(config.max_positions)
        });
        let mut info = ModelInfo {
            architecture: checkpoint.architecture()?,
            family: config.architecture.clone(),
            parameters: checkpoint.parameters(),
            hidden_size: config.hidden_size,
            layers: config.layer_count,
            attention_heads: config.head_count,
            vocabulary: config.vocab_size,
            max_length: context_length,
            device: checkpoint.device,
            dtype: checkpoint.dtype,
            int8: false,
            files: checkpoint.source.files(),
            inventory: Inventory::default(),
            verified: options.verifies(),
        };
        let (decoder, tokenizer) = together(
            cancel,
            |cancel| {
                let source = checkpoint.source.as_ref();
                let (device, dtype) = (&checkpoint.opened, checkpoint.dtype);
                Decoder::load(&blueprint, source, device, dtype, cancel)
            },
            |cancel| checkpoint.tokenizer(files, options, cancel),
        )?;
        let tokenizer = tokenizer.with_padding(None).with_truncation(None);
        let end_ids = end_ids(files, checkpoint.config.as_ref(), &tokenizer, cancel)?;
        memory::trim();
        if options.verifies() {
            decoder.verify(checkpoint.source.as_ref(), &blueprint.names, cancel)?;
        }
        let base = adapter_base::Base {
            files,
            family: &info.family,
            class: (!checkpoint.is_gguf()).then_some(info.architecture.as_str()),
        };
        let adapters = adapters
            .iter()
            .map(|AdapterFiles { name, files }| {
                adapter_base::check(files, &base, cancel)?;
                peft::load(&decoder, &blueprint.modules, name, files, cancel).map(Arc::new)
            })
            .collect::<Result<Vec<Arc<Adapter>>>>()?;
        info.inventory = decoder.inventory()?;
        for adapter in &adapters {
            adapter.list(&mut info.inventory)?;
        }
        Ok(Self {
            decoder,
            tokenizer,
            end_ids,
            context_length,
            adapters,
            info,
            vocabulary: OnceLock::new(),
        })
    }

    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    pub fn context_length(&self) -> usize {
        self.context_length
    }

    pub fn adapters(&self) -> &[Arc<Adapter>] {
        &self.adapters
    }

    /// A loaded adapter by its name; no name stands for the base model.
    pub fn adapter(&self, name: Option<&str>) -> Result<Option<Arc<Adapter>>> {
        let Some(name) = name else { return Ok(None) };
        let found = self.adapters.iter().find(|adapter| adapter.name == name);
        let Some(adapter) = found else {
            let known: Vec<&str> = self.adapters.iter().map(|a| a.name.as_str()).collect();
            return Err(Error::InvalidInput(format!(
                "there is no adapter {name:?}; loaded are: {}",
                if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                }
            )));
        };
        Ok(Some(adapter.clone()))
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// A pattern that a run of this model shall follow.
    pub fn constraint(
        &self,
        pattern: &Pattern,
        ending: Ending,
        cancel: &CancelToken,
    ) -> Result<Box<dyn Constraint>> {
        let ends = !self.end_ids.is_empty();
        Vocabulary::constraint(
            (&self.vocabulary, &self.tokenizer),
            (pattern, ending),
            ends,
            cancel,
        )
    }

    /// The log probability of each token of `ids` but the first, given those before it.
    pub fn logprobs(
        &self,
        ids: &[u32],
        adapter: Option<&str>,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        self.check_length(ids.len())?;
        let mut cache = self.decoder.new_cache();
        cache.adapt(self.adapter(adapter)?);
        cache.clear(self.decoder.rope_variant(ids.len()));
        let mut logprobs = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(LOGITS_CHUNK) {
            let first = cache.length();
            let logits = self
                .decoder
                .forward(chunk, &mut cache, Logits::All, cancel)?;
            let rows: Vec<Vec<f32>> = logits.to_dtype(DType::F32)?.to_vec2()?;
            for (row, next) in rows.iter().zip(&ids[first + 1..]) {
                logprobs.push(row[*next as usize] - log_sum_exp(row));
            }
        }
        Ok(logprobs)
    }

    fn check_length(&self, length: usize) -> Result<()> {
        if length <= self.context_length {
            return Ok(());
        }
        Err(Error::InvalidInput(format!(
            "{length} tokens do not fit the context of {}; shorten the text, raise context_length: if the \
             model allows it, or pass context_overflow: :roll",
            self.context_length
        )))
    }
}

/// Both at once, the second on whatever thread is free; its failure, the likelier one, stops the first.
fn together<A: Send, B: Send>(
    cancel: &CancelToken,
    first: impl FnOnce(&CancelToken) -> Result<A> + Send,
    second: impl FnOnce(&CancelToken) -> Result<B> + Send,
) -> Result<(A, B)> {
    let part = cancel.part();
    let both = || {
        rayon::join(
            || first(&part),
            || second(cancel).inspect_err(|_| part.cancel()),
        )
    };
    let (first, second) = threads::install(both)?;
    let second = second?;
    Ok((first?, second))
}

/// Every id that ends a text: of the generation config, the config and the tokenizer.
fn end_ids(
    files: &ModelFiles,
    config: Option<&RawConfig>,
    tokenizer: &Tokenizer,
    cancel: &CancelToken,
) -> Result<Vec<u32>> {
    let mut ids: Vec<i64> = Vec::new();
    if let Some(config) = config {
        ids.extend(config.opt_integers("eos_token_id")?.unwrap_or_default());
        if let Some(path) = files.file("generation_config.json", cancel)? {
            let generation = RawConfig::read(&path)?;
            ids.extend(generation.opt_integers("eos_token_id")?.unwrap_or_default());
        }
    }
    let mut ids: Vec<u32> = ids
        .into_iter()
        .filter_map(|id| u32::try_from(id).ok())
        .collect();
    ids.extend(tokenizer.special_tokens().end_ids());
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// A prompt, and the tokens that a model lets follow it.
///
/// A call of [`Generation::step`] that is interrupted may be repeated; it goes on where it was.
pub struct Generation {
    model: Arc<LanguageModel>,
    cache: KvCache,
    ids: Vec<u32>,
    cached_length: usize,
    overflow: ContextOverflow,
    run: Run,
}

impl Generation {
    /// `cache` may hold a part of the prompt from an earlier run; what fits is used.
    pub fn new(
        model: Arc<LanguageModel>,
        mut cache: KvCache,
        prompt: Vec<u32>,
        config: GenerationConfig,
        overflow: ContextOverflow,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Self> {
        if prompt.is_empty() {
            return Err(Error::InvalidInput(
                "the prompt has no tokens; pass some text".to_owned(),
            ));
        }
        let mut prompt = prompt;
        if prompt.len() >= model.context_length {
            match overflow {
                ContextOverflow::Error => model.check_length(prompt.len() + 1)?,
                ContextOverflow::Roll => {
                    prompt.drain(..prompt.len() - model.context_length / 2);
                }
            }
        }
        let rope_variant = model.decoder.rope_variant(prompt.len());
        if cache.rope_variant() != rope_variant {
            cache.clear(rope_variant);
        }
        // The last token is always run, since its logits are needed.
        let cached_length = cache.keep_prefix(&prompt[..prompt.len() - 1]);
        let text = match constraint {
            Some(constraint) => RunText::constrained(constraint),
            None => RunText::free(model.tokenizer.stream(true)),
        };
        Ok(Self {
            run: Run::new(&prompt, config, text, model.end_ids.clone())?,
            ids: prompt,
            model,
            cache,
            cached_length,
            overflow,
        })
    }

    /// Produces one token; returns the text that became certain, `None` once the run is over.
    pub fn step(&mut self, cancel: &CancelToken) -> Result<Option<String>> {
        if self.run.finish_reason().is_some() {
            return Ok(None);
        }
        let started = Instant::now();
        let device = self.model.info.device;
        let logits = device.keeping_awake(|| self.logits(cancel));
        self.run.computed(started.elapsed());
        let started = Instant::now();
        let result = logits.and_then(|logits| self.run.take(&logits, self.has_room()));
        self.run.chose(started.elapsed());
        let (token, text) = result?;
        self.ids.push(token);
        Ok(Some(text))
    }

    /// Whether the context has room for another token after the next.
    fn has_room(&self) -> bool {
        self.overflow == ContextOverflow::Roll || self.ids.len() + 1 < self.model.context_length
    }

    /// Runs what is not cached yet and returns the last token's logits.
    fn logits(&mut self, cancel: &CancelToken) -> Result<Vec<f32>> {
        self.make_room()?;
        loop {
            cancel.check()?;
            let pending = &self.ids[self.cache.length()..];
            let decoder = &self.model.decoder;
            let most = self.model.info.device.prompt_tokens();
            let chunk = &pending[..pending.len().min(most)];
            if chunk.len() < pending.len() {
                decoder.hidden_states(chunk, &mut self.cache, cancel)?;
                continue;
            }
            let logits = decoder.forward(chunk, &mut self.cache, Logits::Last, cancel)?;
            return Ok(logits.flatten_all()?.to_vec1()?);
        }
    }

    /// Takes care of the two events that void the cache: a full context and a change of rotation.
    fn make_room(&mut self) -> Result<()> {
        if self.ids.len() > self.model.context_length {
            match self.overflow {
                ContextOverflow::Error => self.model.check_length(self.ids.len())?,
                ContextOverflow::Roll => {
                    let dropped = self.ids.len() - self.model.context_length / 2;
                    self.ids.drain(..dropped);
                    self.cache.clear(self.cache.rope_variant());
                }
            }
        }
        let rope_variant = self.model.decoder.rope_variant(self.ids.len());
        if self.cache.rope_variant() != rope_variant {
            self.cache.clear(rope_variant);
        }
        Ok(())
    }

    /// What was chosen and said so far.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// How much of the prompt an earlier run had left in the cache.
    pub fn cached_length(&self) -> usize {
        self.cached_length
    }

    /// The cache, for the next run of the same conversation.
    pub fn into_cache(self) -> KvCache {
        self.cache
    }
}
