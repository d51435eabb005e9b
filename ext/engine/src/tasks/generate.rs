//! Text generation: a language model, and what it makes of one prompt.

mod adapters;
mod device_map;
mod draft;
#[cfg(test)]
mod failed_steps;
mod importance;
#[cfg(test)]
mod once_per_load;
mod predictions;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use self::adapters::Adapters;
use self::device_map::Placing;
use super::adapter_base;
use super::loading::{together, Checkpoint, LoadOptions, ModelInfo};
use crate::generation::run::{Run, RunText};
use crate::generation::{Constraint, Ending, GenerationConfig, Pattern, Vocabulary};
use crate::models::decoder::{Adapter, Decoder, KvPool};
use crate::nn::Inventory;
use crate::serving::leader::{self, Leader};
use crate::serving::scheduler::{self, too_long, ContextOverflow, RequestState, Scheduler};
use crate::serving::speculation::{DraftModel, Speculation};
use crate::serving::{Served, Stats};
use crate::{CancelToken, Error, Result};
use base::runtime::device::Device;
use base::runtime::memory;
use base::runtime::per_process::PerProcess;
use base::runtime::stats::Reading;
use formats::files::gguf_choice::is_gguf;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;
use kernels::paged::KvType;

pub use device_map::DeviceMap;
pub use predictions::Divergence;

/// A decoder with its tokenizer; immutable, shared by all runs.
pub struct LanguageModel {
    decoder: Arc<Decoder>,
    scheduler: PerProcess<Scheduler>,
    /// What keys and values are stored as, and the bytes they may take.
    cache: (KvType, usize),
    /// Of speculative decoding.
    draft: Option<DraftModel>,
    stats: Arc<Stats>,
    tokenizer: Tokenizer,
    end_ids: Vec<u32>,
    context_length: usize,
    adapters: Adapters,
    info: ModelInfo,
    /// Made for the first constraint.
    vocabulary: OnceLock<Vocabulary>,
}

/// An adapter to be loaded with a model.
pub struct AdapterFiles {
    pub name: String,
    pub files: ModelFiles,
}

/// How much memory keys and values may take, and what they are stored as.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheOptions {
    /// In bytes; `None` takes a share of what is free.
    pub limit: Option<usize>,
    /// `None` is what the model computes in.
    pub kind: Option<KvType>,
}

/// Without a limit keys and values take at most this part of the free memory.
const SHARE: usize = 4;
/// Stands in where a device does not say what it has.
const UNKNOWN_MEMORY: usize = 8 << 30;

/// The bytes for keys and values on a device that has so many left. `context` is what one sequence of the
/// greatest length takes.
fn default_limit(device: Device, free: Option<usize>, context: usize) -> usize {
    let free = free.unwrap_or(UNKNOWN_MEMORY).min(device.most_memory());
    // A whole context should fit where that is possible at all.
    (free / SHARE).max(context.min(free / 2))
}

/// What a language model may be loaded with beside its own files.
#[derive(Clone, Copy, Default)]
pub struct Extras<'a> {
    pub adapters: &'a [AdapterFiles],
    pub cache: CacheOptions,
    /// A smaller model of the same vocabulary, for speculative decoding. It stays its owner's: when it is
    /// closed, requests go on without draft tokens.
    pub draft: Option<&'a Arc<LanguageModel>>,
    /// Where its layers go; `None` is [`DeviceMap::Whole`].
    pub device_map: Option<&'a DeviceMap>,
}

impl LanguageModel {
    pub fn load(
        files: &ModelFiles,
        options: &LoadOptions,
        adapters: &[AdapterFiles],
        cancel: &CancelToken,
    ) -> Result<Self> {
        let extras = Extras {
            adapters,
            ..Extras::default()
        };
        Self::load_with(files, options, &extras, cancel)
    }

    pub fn load_with(
        files: &ModelFiles,
        options: &LoadOptions,
        extras: &Extras<'_>,
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
        let placing = Placing {
            config: &blueprint.config,
            names: &blueprint.names,
            checkpoint: &checkpoint,
            cache: extras.cache,
            context_length,
        };
        let whole = DeviceMap::Whole;
        let (stages, limit) = placing.place(extras.device_map.unwrap_or(&whole))?;
        let (decoder, tokenizer) = together(
            cancel,
            |cancel| {
                let source = checkpoint.source.as_ref();
                Decoder::load_in_stages(&blueprint, source, stages, cancel)
            },
            |cancel| checkpoint.tokenizer(files, options, cancel),
        )?;
        let tokenizer = tokenizer.with_padding(None).with_truncation(None);
        let end_ids = end_ids(files, checkpoint.config.as_ref(), &tokenizer, cancel)?;
        memory::trim();
        // The self-check expands weights of its own.
        let expanded = checkpoint.source.expanded();
        if options.verifies() {
            decoder.verify(checkpoint.source.as_ref(), &blueprint.names, cancel)?;
        }
        let base = adapter_base::Base {
            files: files.clone(),
            family: info.family.clone(),
            class: (!checkpoint.is_gguf()).then(|| info.architecture.clone()),
        };
        let adapters = Adapters::new(base, blueprint.modules);
        for adapter in extras.adapters {
            adapters.add(adapters.read(&decoder, adapter, cancel)?)?;
        }
        info.inventory = decoder.inventory()?;
        info.inventory.add_expanded(&expanded, checkpoint.dtype);
        let decoder = Arc::new(decoder);
        let stats = Arc::new(Stats::new(Served::Decoder));
        let cache = placing.cache(decoder.stages(), limit);
        let draft = extras.draft.map(|draft| draft.as_draft_of(&tokenizer));
        let draft = draft.transpose()?;
        let scheduler = new_scheduler(&decoder, cache, draft.as_ref(), &stats)?;
        Ok(Self {
            scheduler: PerProcess::new(scheduler),
            cache,
            draft,
            stats,
            decoder,
            tokenizer,
            end_ids,
            context_length,
            adapters,
            info,
            vocabulary: OnceLock::new(),
        })
    }

    /// Of this process.
    fn scheduler(&self) -> Result<Arc<Scheduler>> {
        self.scheduler
            .get(|| new_scheduler(&self.decoder, self.cache, self.draft.as_ref(), &self.stats))
    }

    /// Counts and times of what was generated.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.stats.read()
    }

    /// Empties the prefix cache of pages that no request uses, after the running step.
    pub fn forget_idle(&self) -> Result<()> {
        self.scheduler()?.forget_idle();
        Ok(())
    }

    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// How many of its layers are on which device.
    pub fn layers_by_device(&self) -> Vec<(Device, usize)> {
        let mut counts: Vec<(Device, usize)> = Vec::new();
        for stage in self.decoder.stages().all() {
            let (device, count) = (Device::of(&stage.home.device), stage.layers.len());
            match counts.iter_mut().find(|(known, _)| *known == device) {
                Some((_, sum)) => *sum += count,
                None => counts.push((device, count)),
            }
        }
        counts
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

    /// Whether layers keep states, so that it helps to say how long instructions are.
    pub fn keeps_states(&self) -> bool {
        self.decoder.config().state.is_some()
    }

    /// Without its adapters.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn is_gguf(&self) -> bool {
        let mut files = self.info.files.iter();
        files.any(|path| path.to_str().is_some_and(is_gguf))
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

    fn check_length(&self, length: usize) -> Result<()> {
        if length <= self.context_length {
            Ok(())
        } else {
            Err(too_long(length, self.context_length))
        }
    }
}

fn new_scheduler(
    decoder: &Arc<Decoder>,
    (kind, limit): (KvType, usize),
    draft: Option<&DraftModel>,
    stats: &Arc<Stats>,
) -> Result<Scheduler> {
    // Both models have room for the same tokens.
    let token = KvPool::spread_bytes(decoder.config(), kind);
    let drafting = draft.map_or(0, DraftModel::token_bytes);
    let tokens = limit / (token + drafting).max(1);
    let drafter = draft.map(|draft| draft.drafter(tokens.saturating_mul(drafting)));
    let own = match drafting {
        0 => limit,
        _ => tokens * token,
    };
    let pool = KvPool::new(decoder.config(), kind, decoder.stages(), own)?;
    let drafter = drafter.transpose()?.flatten();
    Ok(Scheduler::new(
        decoder.clone(),
        pool,
        drafter,
        stats.clone(),
    ))
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

/// A prompt, and the tokens that a model lets follow it. It is computed together with all others of its
/// model, by the threads that wait for one of them.
///
/// A call of [`Generation::step`] that is interrupted may be repeated; it goes on where it was.
pub struct Generation {
    model: Arc<LanguageModel>,
    scheduler: Arc<Scheduler>,
    request: Arc<scheduler::Request>,
    process: u32,
}

/// What a generation is to do.
pub struct Request {
    pub prompt: Vec<u32>,
    /// How many tokens of the prompt are instructions, with which other prompts begin too: where layers keep states,
    /// that one is saved. A wrong number changes no result.
    pub instructions: usize,
    pub config: GenerationConfig,
    pub overflow: ContextOverflow,
    pub adapter: Option<Arc<Adapter>>,
    pub constraint: Option<Box<dyn Constraint>>,
    /// Empties the prefix cache of pages that no request uses, and prefills the whole prompt.
    pub afresh: bool,
}

impl Generation {
    pub fn new(model: Arc<LanguageModel>, request: Request) -> Result<Self> {
        let Request {
            mut prompt,
            mut instructions,
            config,
            overflow,
            adapter,
            constraint,
            afresh,
        } = request;
        if prompt.is_empty() {
            return Err(Error::InvalidInput(
                "the prompt has no tokens; pass some text".to_owned(),
            ));
        }
        model.decoder.check_tokens(&prompt)?;
        config.logit_bias.check(model.info.vocabulary)?;
        if prompt.len() >= model.context_length {
            match overflow {
                ContextOverflow::Error => model.check_length(prompt.len() + 1)?,
                ContextOverflow::Roll => {
                    prompt.drain(..prompt.len() - model.context_length / 2);
                    instructions = 0;
                }
            }
        }
        let text = match constraint {
            Some(constraint) => RunText::constrained(constraint),
            None => RunText::free(model.tokenizer.stream(true)),
        };
        let scheduler = model.scheduler()?;
        if afresh {
            scheduler.forget_idle();
        }
        let state = RequestState {
            speculation: Speculation::new(config.speculative),
            run: Run::new(&prompt, config, text, model.end_ids.clone())?,
            prompt: prompt.len(),
            instructions,
            ids: prompt,
            sequence: None,
            draft: None,
            adapter,
            overflow,
            afresh,
            context_length: model.context_length,
            cached: None,
            came: Instant::now(),
            latest: None,
        };
        let is_over = state.run.finish_reason().is_some();
        Ok(Self {
            request: scheduler.join(state, is_over),
            scheduler,
            model,
            process: std::process::id(),
        })
    }

    /// A run belongs to the process that began it.
    fn check_process(&self) -> Result<()> {
        leader::check_process(self.process)
    }

    /// Waits for one token; returns the text that became certain, `None` once the run is over.
    pub fn step(&self, cancel: &CancelToken) -> Result<Option<String>> {
        self.check_process()?;
        self.scheduler.next(&self.request, cancel)
    }

    /// Waits for the end of the run.
    pub fn finish(&self, cancel: &CancelToken) -> Result<()> {
        self.check_process()?;
        self.scheduler.finish(&self.request, cancel)
    }

    /// Waits until at least one of several runs of a model is over, and says which are.
    pub fn finish_any(generations: &[&Self], cancel: &CancelToken) -> Result<Vec<usize>> {
        let Some(first) = generations.first() else {
            return Ok(Vec::new());
        };
        let mut requests = Vec::with_capacity(generations.len());
        for generation in generations {
            generation.check_process()?;
            if !Arc::ptr_eq(&generation.scheduler, &first.scheduler) {
                let message = "runs of several models can't be waited for together";
                return Err(Error::InvalidInput(message.to_owned()));
            }
            requests.push(&*generation.request);
        }
        first.scheduler.finish_any(&requests, cancel)
    }

    /// Looks at what was chosen and said so far.
    pub fn read<T>(&self, look: impl FnOnce(&Run) -> T) -> T {
        look(&self.request.state().run)
    }

    /// How much of the prompt had been read in earlier runs.
    pub fn cached_length(&self) -> usize {
        self.request.state().cached.unwrap_or(0)
    }

    pub fn model(&self) -> &Arc<LanguageModel> {
        &self.model
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.scheduler.leave(&self.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_kv_cache_is_a_share_of_what_the_device_has() {
        const GIB: usize = 1 << 30;
        let gpu = |free| default_limit(Device::Cuda(0), free, GIB);
        assert_eq!(gpu(Some(8 * GIB)), 2 * GIB);
        // A whole context where that takes no more than half.
        assert_eq!(gpu(Some(3 * GIB)), GIB);
        assert_eq!(gpu(Some(GIB)), GIB / 2);
        assert_eq!(gpu(Some(140 * GIB)), 35 * GIB);
        assert_eq!(gpu(None), 2 * GIB);
        let host = |free| default_limit(Device::Cpu, Some(free), GIB);
        assert_eq!(host(1024 * GIB), 16 * GIB);
    }
}
