//! `Candle::LLM` and its runs

use std::sync::{Arc, Mutex};

use base::runtime::device::Device;
use engine::generation::{
    Choice, Constraint, Ending, FinishReason, GenerationConfig, LogitBias, Pattern, Speculative,
    Timings, WhiteSpace,
};
use engine::serving::ContextOverflow;
use engine::tasks::{
    AdapterFiles, CacheOptions, DeviceMap, Extras, Generation, LanguageModel, Request,
};
use engine::{CancelToken, Error as EngineError};
use formats::files::model_files::ModelFiles;
use kernels::paged::KvType;
use magnus::typed_data::Obj;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby, Value};

use crate::token_ids::RbIds;
use crate::{error, gc, gvl, hub, model};

#[magnus::wrap(class = "Candle::LLM", free_immediately, size)]
pub struct RbLlm {
    pub model: model::Slot<LanguageModel>,
    /// What the adapters take.
    adapters: Mutex<gc::Tracked>,
}

impl RbLlm {
    /// Tells the collector what the adapters take now.
    fn track_adapters(&self, ruby: &Ruby, model: &LanguageModel) -> Result<(), Error> {
        let tracked = adapter_memory(ruby, model)?;
        let mut adapters = self.adapters.lock().unwrap_or_else(|e| e.into_inner());
        *adapters = tracked;
        Ok(())
    }
}

fn adapter_memory(ruby: &Ruby, model: &LanguageModel) -> Result<gc::Tracked, Error> {
    let inventory = model.adapter_inventory().map_err(error::raised(ruby))?;
    Ok(gc::Tracked::new(ruby, inventory.bytes()))
}

model::described!(LanguageModel);

#[magnus::wrap(class = "Candle::LLM::Run", free_immediately, size)]
pub struct RbRun(model::Underway<Generation>);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbLlm, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    let adapters = adapter_files(ruby, settings)?;
    let cache = CacheOptions {
        limit: model::setting(ruby, settings, "kv_cache")?,
        kind: model::parsed(ruby, settings, "kv_dtype", KvType::parse)?,
    };
    let draft: Option<Obj<RbLlm>> = model::setting(ruby, settings, "draft")?;
    let draft = draft.map(|draft| draft.model.get(ruby)).transpose()?;
    let map = device_map(ruby, settings)?;
    let model = model::load(ruby, &request, |files, options, cancel| {
        let extras = Extras {
            adapters: &adapters,
            cache,
            draft: draft.as_ref(),
            device_map: Some(&map),
        };
        LanguageModel::load_with(files, options, &extras, cancel)
    })?;
    let loaded = model.get(ruby)?;
    let tracked = adapter_memory(ruby, &loaded)?;
    Ok(RbLlm {
        model,
        adapters: Mutex::new(tracked),
    })
}

/// `device_map` is an Array of devices and numbers of layers, or says that as many layers go to the model's device as fit
/// into `gpu_memory`; else `gpu_layers` is how many do.
fn device_map(ruby: &Ruby, settings: RHash) -> Result<DeviceMap, Error> {
    let counts: Option<Vec<(String, usize)>> = model::setting(ruby, settings, "device_map")?;
    if let Some(counts) = counts {
        let counts = counts.into_iter().map(|(name, count)| {
            let device = Device::parse(&name).map_err(error::raised(ruby))?;
            Ok((device, count))
        });
        return Ok(DeviceMap::Counts(counts.collect::<Result<_, Error>>()?));
    }
    if model::setting(ruby, settings, "fit_layers")?.unwrap_or(false) {
        let memory = model::setting(ruby, settings, "gpu_memory")?;
        return Ok(DeviceMap::Fitting(memory));
    }
    let first: Option<usize> = model::setting(ruby, settings, "gpu_layers")?;
    Ok(first.map_or(DeviceMap::Whole, DeviceMap::First))
}

/// `adapters` is an Array of names and sources.
fn adapter_files(ruby: &Ruby, settings: RHash) -> Result<Vec<AdapterFiles>, Error> {
    let given: Vec<(String, String)> =
        model::setting(ruby, settings, "adapters")?.unwrap_or_default();
    let access = hub::access(ruby, settings)?;
    given
        .into_iter()
        .map(|(name, source)| {
            let files = ModelFiles::open_as(&source, None, &access, &CancelToken::new());
            let files = files.map_err(error::raised(ruby))?;
            Ok(AdapterFiles { name, files })
        })
        .collect()
}

fn end_ids(ruby: &Ruby, llm: &RbLlm) -> Result<Vec<u32>, Error> {
    Ok(llm.model.get(ruby)?.end_ids().to_vec())
}

fn adapters(ruby: &Ruby, llm: &RbLlm) -> Result<Vec<String>, Error> {
    let adapters = llm.model.get(ruby)?.adapters();
    let names = adapters.iter().map(|adapter| adapter.name.clone());
    Ok(names.collect())
}

/// Reads an adapter off the GVL. It is attached with the GVL held, so that a fork never meets that halfway.
fn load_adapter(
    ruby: &Ruby,
    llm: &RbLlm,
    name: String,
    source: String,
    settings: RHash,
) -> Result<(), Error> {
    let model = llm.model.get(ruby)?;
    let access = hub::access(ruby, settings)?;
    let files = ModelFiles::open_as(&source, None, &access, &CancelToken::new());
    let files = files.map_err(error::raised(ruby))?;
    let given = AdapterFiles { name, files };
    // What has to be fetched comes before a worker of the pool is taken.
    gvl::leave_waiting(ruby, |cancel| given.fetch(cancel))?;
    let adapter = gvl::leave(ruby, |cancel| model.read_adapter(&given, cancel))?;
    gvl::hold(ruby, || {
        model.attach_adapter(adapter).map_err(error::raised(ruby))?;
        llm.track_adapters(ruby, &model)
    })
}

fn unload_adapter(ruby: &Ruby, llm: &RbLlm, name: String) -> Result<(), Error> {
    let model = llm.model.get(ruby)?;
    gvl::hold(ruby, || {
        let detached = model.detach_adapter(&name).map_err(error::raised(ruby))?;
        drop(detached);
        llm.track_adapters(ruby, &model)
    })
}

/// Adds where the layers are, and corrects what counts the weights by the adapters that are loaded now.
fn more_info(ruby: &Ruby, model: &LanguageModel, hash: RHash) -> Result<(), Error> {
    let layers = ruby.hash_new();
    for (device, count) in model.layers_by_device() {
        layers.aset(device.to_string(), count)?;
    }
    layers.freeze();
    hash.aset(ruby.to_symbol("layers_by_device"), layers)?;
    let mut inventory = model.info().inventory.clone();
    inventory.merge(model.adapter_inventory().map_err(error::raised(ruby))?);
    model::set_inventory(ruby, hash, &inventory)
}

fn context_length(ruby: &Ruby, llm: &RbLlm) -> Result<usize, Error> {
    Ok(llm.model.get(ruby)?.context_length())
}

fn keeps_states(ruby: &Ruby, llm: &RbLlm) -> Result<bool, Error> {
    Ok(llm.model.get(ruby)?.keeps_states())
}

fn logprobs(
    ruby: &Ruby,
    llm: &RbLlm,
    ids: Vec<u32>,
    adapter: Option<String>,
) -> Result<Vec<f32>, Error> {
    let model = llm.model.get(ruby)?;
    gvl::leave(ruby, |cancel| {
        model.logprobs(&ids, adapter.as_deref(), cancel)
    })
}

/// `[kl, whether the likeliest token is the same]` of each prediction but the last.
fn divergence(
    ruby: &Ruby,
    llm: &RbLlm,
    reference: Obj<RbLlm>,
    ids: Vec<u32>,
    adapter: Option<String>,
) -> Result<Vec<(f32, bool)>, Error> {
    let model = llm.model.get(ruby)?;
    let reference = reference.model.get(ruby)?;
    let found = gvl::leave(ruby, |cancel| {
        model.divergence(&reference, &ids, adapter.as_deref(), cancel)
    })?;
    Ok(found.iter().map(|one| (one.kl, one.same_token)).collect())
}

/// `[names, sums of squared inputs as packed doubles, count of inputs]` of each module, after reading each text.
fn module_inputs(ruby: &Ruby, llm: &RbLlm, texts: Vec<Vec<u32>>) -> Result<RArray, Error> {
    let model = llm.model.get(ruby)?;
    let found = gvl::leave(ruby, |cancel| model.module_inputs(&texts, cancel))?;
    let rows = ruby.ary_new_capa(found.len());
    for module in found {
        let squares = module.sums.squares.iter();
        let bytes: Vec<u8> = squares.flat_map(|sum| sum.to_le_bytes()).collect();
        let sums = ruby.str_from_slice(&bytes);
        rows.push((module.names, sums, module.sums.rows))?;
    }
    Ok(rows)
}

/// Begins a run, which is computed with all others from now on. `prompt` is `Ids` or an Array of them.
fn begin(ruby: &Ruby, llm: &RbLlm, prompt: Value, settings: RHash) -> Result<RbRun, Error> {
    let model = llm.model.get(ruby)?;
    let prompt = RbIds::of(prompt)?;
    let config = generation_config(ruby, settings)?;
    let roll = model::setting(ruby, settings, "roll")?.unwrap_or(false);
    let afresh = model::setting(ruby, settings, "afresh")?.unwrap_or(false);
    let instructions = model::setting(ruby, settings, "instruction_tokens")?.unwrap_or(0);
    let adapter: Option<String> = model::setting(ruby, settings, "adapter")?;
    let constraint = constraint(ruby, &model, settings)?;
    gvl::hold(ruby, || {
        let adapter = model.adapter(adapter.as_deref());
        let request = Request {
            prompt,
            instructions,
            config,
            overflow: if roll {
                ContextOverflow::Roll
            } else {
                ContextOverflow::Error
            },
            adapter: adapter.map_err(error::raised(ruby))?,
            constraint,
            afresh,
        };
        let generation = Generation::new(model.clone(), request).map_err(error::raised(ruby))?;
        Ok(RbRun(model::Underway::new(generation)))
    })
}

fn clear_cache(ruby: &Ruby, llm: &RbLlm) -> Result<(), Error> {
    let model = llm.model.get(ruby)?;
    model.forget_idle().map_err(error::raised(ruby))
}

/// What the text must match, from `constraint: [kind, source]` and `ending:`.
pub(crate) fn pattern(ruby: &Ruby, settings: RHash) -> Result<Option<(Pattern, Ending)>, Error> {
    let given: Option<(String, String)> = model::setting(ruby, settings, "constraint")?;
    let Some((kind, source)) = given else {
        return Ok(None);
    };
    let ending: Option<String> = model::setting(ruby, settings, "ending")?;
    let invalid = |message: String| error::to_ruby(ruby, EngineError::InvalidInput(message));
    let pattern = match kind.as_str() {
        "schema" => Pattern::Schema(source, WhiteSpace::Compact),
        "flexible_schema" => Pattern::Schema(source, WhiteSpace::Flexible),
        "regex" => Pattern::Regex(source),
        "lark" => Pattern::Lark(source),
        other => return Err(invalid(format!("there is no constraint of kind {other}"))),
    };
    let ending = match ending.as_deref() {
        Some("match") => Ending::Match,
        Some("complete") | None => Ending::Complete,
        Some("model") => Ending::Model,
        Some(other) => return Err(invalid(format!("there is no ending {other}"))),
    };
    Ok(Some((pattern, ending)))
}

fn constraint(
    ruby: &Ruby,
    model: &LanguageModel,
    settings: RHash,
) -> Result<Option<Box<dyn Constraint>>, Error> {
    let Some((pattern, ending)) = pattern(ruby, settings)? else {
        return Ok(None);
    };
    gvl::leave_waiting(ruby, |cancel| model.constraint(&pattern, ending, cancel)).map(Some)
}

pub(crate) fn generation_config(ruby: &Ruby, settings: RHash) -> Result<GenerationConfig, Error> {
    let default = GenerationConfig::default();
    macro_rules! given {
        ($name:ident) => {
            model::setting(ruby, settings, stringify!($name))?
        };
    }
    Ok(GenerationConfig {
        max_new_tokens: given!(max_new_tokens).unwrap_or(default.max_new_tokens),
        temperature: given!(temperature).unwrap_or(default.temperature),
        top_k: given!(top_k),
        top_p: given!(top_p),
        min_p: given!(min_p),
        repetition_penalty: given!(repetition_penalty).unwrap_or(default.repetition_penalty),
        repetition_penalty_last_n: given!(repetition_penalty_last_n),
        presence_penalty: given!(presence_penalty).unwrap_or(default.presence_penalty),
        frequency_penalty: given!(frequency_penalty).unwrap_or(default.frequency_penalty),
        logit_bias: LogitBias::from(given!(logit_bias).unwrap_or_else(Vec::<(u32, f32)>::new)),
        seed: given!(seed).unwrap_or(default.seed),
        stop_sequences: given!(stop_sequences).unwrap_or_default(),
        logprobs: given!(logprobs),
        speculative: model::parsed(ruby, settings, "speculative", Speculative::parse)?
            .unwrap_or_default(),
    })
}

/// The text of one more token, nil at the end.
fn step(ruby: &Ruby, run: &RbRun) -> Result<Option<String>, Error> {
    let generation = run.0.get(ruby)?;
    gvl::leave_waiting(ruby, |cancel| generation.step(cancel))
}

/// Waits for the end of the run.
fn finish(ruby: &Ruby, run: &RbRun) -> Result<(), Error> {
    let generation = run.0.get(ruby)?;
    gvl::leave_waiting(ruby, |cancel| generation.finish(cancel))
}

/// Waits until one of several runs is over, and gives its index; nil without any.
fn finish_any(ruby: &Ruby, runs: RArray) -> Result<Vec<usize>, Error> {
    let generations: Vec<Arc<Generation>> = runs
        .into_iter()
        .map(|run| Obj::<RbRun>::try_convert(run)?.0.get(ruby))
        .collect::<Result<_, Error>>()?;
    let generations: Vec<&Generation> = generations.iter().map(Arc::as_ref).collect();
    gvl::leave_waiting(ruby, |cancel| Generation::finish_any(&generations, cancel))
}

/// What the run has come to, as a Hash with Symbol keys.
fn outcome(ruby: &Ruby, run: &RbRun) -> Result<RHash, Error> {
    let generation = run.0.get(ruby)?;
    let cached = generation.cached_length();
    generation.read(|run| {
        let chosen = (run.text(), run.choices());
        let hash = self::chosen(ruby, chosen, run.finish_reason(), &run.timings())?;
        hash.aset(ruby.to_symbol("prompt_tokens"), run.prompt_length())?;
        hash.aset(ruby.to_symbol("cached_tokens"), cached)?;
        Ok(hash)
    })
}

/// A text and its tokens, why it ended and how long that took, as a Hash with Symbol keys.
pub(crate) fn chosen(
    ruby: &Ruby,
    (text, choices): (&str, &[Choice]),
    reason: Option<FinishReason>,
    timings: &Timings,
) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    let reason = reason.map(|reason| ruby.to_symbol(reason_name(reason)));
    let ids: Vec<u32> = choices.iter().map(|choice| choice.token).collect();
    let logprobs = likelihoods(ruby, choices)?;
    hash.aset(ruby.to_symbol("text"), text)?;
    hash.aset(ruby.to_symbol("finish_reason"), reason)?;
    hash.aset(ruby.to_symbol("token_ids"), ids)?;
    hash.aset(ruby.to_symbol("logprobs"), logprobs)?;
    hash.aset(ruby.to_symbol("prompt_ms"), timings.prompt_ms)?;
    hash.aset(ruby.to_symbol("first_token_ms"), timings.first_token_ms)?;
    hash.aset(
        ruby.to_symbol("tokens_per_second"),
        timings.tokens_per_second,
    )?;
    Ok(hash)
}

/// Why a text ended, as Ruby calls it.
pub(crate) fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::StopSequence => "stop_sequence",
        FinishReason::Constraint => "constraint",
    }
}

/// The log probabilities of some of the tokens, as far as they were chosen.
fn likelihoods_between(
    ruby: &Ruby,
    run: &RbRun,
    first: usize,
    end: usize,
) -> Result<RArray, Error> {
    let generation = run.0.get(ruby)?;
    generation.read(|run| {
        let choices = run.choices();
        let end = end.min(choices.len());
        likelihoods(ruby, &choices[first.min(end)..end])
    })
}

fn likelihoods(ruby: &Ruby, choices: &[Choice]) -> Result<RArray, Error> {
    let list = ruby.ary_new();
    for choice in choices {
        if let Some(logprob) = choice.logprob {
            let top = RArray::from_iter(choice.top.iter().map(|&(id, value)| (id, value)));
            list.push((choice.token, logprob, top))?;
        }
    }
    Ok(list)
}

/// What each token so far has added to the text.
fn pieces(ruby: &Ruby, run: &RbRun) -> Result<Vec<String>, Error> {
    let generation = run.0.get(ruby)?;
    generation.read(|run| Ok(run.pieces().map(str::to_owned).collect()))
}

/// Ends the run, whether it is over or not.
fn release(run: &RbRun) {
    run.0.release();
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("LLM", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_end_ids", method!(end_ids, 0))?;
    class.define_private_method("_adapters", method!(adapters, 0))?;
    class.define_private_method("_load_adapter", method!(load_adapter, 3))?;
    class.define_private_method("_unload_adapter", method!(unload_adapter, 1))?;
    class.define_private_method("_context_length", method!(context_length, 0))?;
    class.define_private_method("_keeps_states", method!(keeps_states, 0))?;
    class.define_private_method("_logprobs", method!(logprobs, 2))?;
    class.define_private_method("_divergence", method!(divergence, 3))?;
    class.define_private_method("_module_inputs", method!(module_inputs, 1))?;
    class.define_private_method("_begin", method!(begin, 2))?;
    class.define_private_method("_clear_cache", method!(clear_cache, 0))?;
    model::define_stats!(class, RbLlm)?;
    model::define_model!(class, RbLlm, more_info)?;
    let run = class.define_class("Run", ruby.class_object())?;
    run.undef_default_alloc_func();
    run.define_method("step", method!(step, 0))?;
    run.define_singleton_method("finish_any", function!(finish_any, 1))?;
    run.define_method("finish", method!(finish, 0))?;
    run.define_method("outcome", method!(outcome, 0))?;
    run.define_method("pieces", method!(pieces, 0))?;
    run.define_method("likelihoods", method!(likelihoods_between, 2))?;
    run.define_method("release", method!(release, 0))
}
