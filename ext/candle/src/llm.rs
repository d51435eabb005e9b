//! `Candle::LLM`, its caches and its runs

use std::sync::{Mutex, MutexGuard};

use engine::files::model_files::ModelFiles;
use engine::generation::{
    Choice, Constraint, Ending, FinishReason, GenerationConfig, Pattern, Timings, WhiteSpace,
};
use engine::models::decoder::KvCache;
use engine::tasks::{AdapterFiles, ContextOverflow, Generation, LanguageModel};
use engine::{CancelToken, Error as EngineError};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{error, gc, gvl, hub, model, tokenizer::RbTokenizer};

#[magnus::wrap(class = "Candle::LLM", free_immediately, size)]
pub struct RbLlm {
    model: model::Slot<LanguageModel>,
}

/// What a conversation leaves for its next turn; empty while a run has it.
#[magnus::wrap(class = "Candle::LLM::Cache", free_immediately, size)]
pub struct RbCache(Mutex<Option<(KvCache, gc::Tracked)>>);

#[magnus::wrap(class = "Candle::LLM::Run", free_immediately, size)]
pub struct RbRun(Mutex<Option<Generation>>);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbLlm, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    let adapters = adapter_files(ruby, settings)?;
    let model = gvl::leave(ruby, |cancel| {
        LanguageModel::load(&request.files, &request.options, &adapters, cancel)
    })?;
    Ok(RbLlm {
        model: model::Slot::new(ruby, model, LanguageModel::info),
    })
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

fn info(ruby: &Ruby, llm: &RbLlm) -> Result<RHash, Error> {
    gvl::hold(ruby, || model::info(ruby, llm.model.get(ruby)?.info()))
}

fn tokenizer(ruby: &Ruby, llm: &RbLlm) -> Result<RbTokenizer, Error> {
    let model = llm.model.get(ruby)?;
    Ok(RbTokenizer::new(ruby, model.tokenizer().clone()))
}

fn end_ids(ruby: &Ruby, llm: &RbLlm) -> Result<Vec<u32>, Error> {
    Ok(llm.model.get(ruby)?.end_ids().to_vec())
}

fn adapters(ruby: &Ruby, llm: &RbLlm) -> Result<Vec<String>, Error> {
    let model = llm.model.get(ruby)?;
    let adapters = model.adapters().iter();
    Ok(adapters.map(|adapter| adapter.name.clone()).collect())
}

fn context_length(ruby: &Ruby, llm: &RbLlm) -> Result<usize, Error> {
    Ok(llm.model.get(ruby)?.context_length())
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

/// An empty one, unless the model is closed.
fn new_cache(ruby: &Ruby, llm: &RbLlm) -> Result<RbCache, Error> {
    llm.model.get(ruby)?;
    Ok(RbCache(Mutex::new(None)))
}

/// Starts a run. A cache that another run has right now is not waited for: this one starts afresh.
fn begin(
    ruby: &Ruby,
    llm: &RbLlm,
    prompt: Vec<u32>,
    settings: RHash,
    cache: Option<&RbCache>,
) -> Result<RbRun, Error> {
    let model = llm.model.get(ruby)?;
    let config = generation_config(ruby, settings)?;
    let roll = model::setting(ruby, settings, "roll")?.unwrap_or(false);
    let adapter: Option<String> = model::setting(ruby, settings, "adapter")?;
    let constraint = constraint(ruby, &model, settings)?;
    gvl::hold(ruby, || {
        let adapter = model.adapter(adapter.as_deref());
        let adapter = adapter.map_err(error::raised(ruby))?;
        let cached = cache.and_then(|cache| lock(&cache.0).take());
        let mut cached = match cached {
            Some((cached, _)) => cached,
            None => model.decoder().new_cache(),
        };
        cached.adapt(adapter);
        let generation = Generation::new(
            model.clone(),
            cached,
            prompt,
            config,
            if roll {
                ContextOverflow::Roll
            } else {
                ContextOverflow::Error
            },
            constraint,
        )
        .map_err(error::raised(ruby))?;
        Ok(RbRun(Mutex::new(Some(generation))))
    })
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
        seed: given!(seed).unwrap_or(default.seed),
        stop_sequences: given!(stop_sequences).unwrap_or_default(),
        logprobs: given!(logprobs),
    })
}

/// The text of one more token, nil at the end.
fn step(ruby: &Ruby, run: &RbRun) -> Result<Option<String>, Error> {
    gvl::leave(ruby, |cancel| match lock(&run.0).as_mut() {
        Some(generation) => generation.step(cancel),
        None => Err(EngineError::Generation("this run is over".to_owned())),
    })
}

/// What the run has come to, as a Hash with Symbol keys.
fn outcome(ruby: &Ruby, run: &RbRun) -> Result<RHash, Error> {
    let guard = lock(&run.0);
    let Some(generation) = guard.as_ref() else {
        return Err(error::to_ruby(
            ruby,
            EngineError::Generation("this run is over".to_owned()),
        ));
    };
    let run = generation.run();
    let chosen = (run.text(), run.choices());
    let hash = self::chosen(ruby, chosen, run.finish_reason(), &run.timings())?;
    hash.aset(ruby.to_symbol("prompt_tokens"), run.prompt_length())?;
    hash.aset(ruby.to_symbol("cached_tokens"), generation.cached_length())?;
    Ok(hash)
}

/// A text and its tokens, why it ended and how long that took, as a Hash with Symbol keys.
pub(crate) fn chosen(
    ruby: &Ruby,
    (text, choices): (&str, &[Choice]),
    reason: Option<FinishReason>,
    timings: &Timings,
) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    let reason = reason.map(|reason| {
        ruby.to_symbol(match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::StopSequence => "stop_sequence",
            FinishReason::Constraint => "constraint",
        })
    });
    let ids: Vec<u32> = choices.iter().map(|choice| choice.token).collect();
    let logprobs = ruby.ary_new();
    for choice in choices {
        if let Some(logprob) = choice.logprob {
            let top = RArray::from_iter(choice.top.iter().map(|&(id, value)| (id, value)));
            logprobs.push((choice.token, logprob, top))?;
        }
    }
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

/// Ends the run and gives its cache to `cache`, if any.
fn release(ruby: &Ruby, run: &RbRun, cache: Option<&RbCache>) {
    let generation = lock(&run.0).take();
    if let (Some(generation), Some(cache)) = (generation, cache) {
        let kept = generation.into_cache();
        let tracked = gc::Tracked::new(ruby, kept.bytes());
        *lock(&cache.0) = Some((kept, tracked));
    }
}

/// Nothing panics while it holds one of these locks half-changed, so poison tells nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("LLM", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_info", method!(info, 0))?;
    class.define_private_method("_tokenizer", method!(tokenizer, 0))?;
    class.define_private_method("_end_ids", method!(end_ids, 0))?;
    class.define_private_method("_adapters", method!(adapters, 0))?;
    class.define_private_method("_context_length", method!(context_length, 0))?;
    class.define_private_method("_logprobs", method!(logprobs, 2))?;
    class.define_private_method("_new_cache", method!(new_cache, 0))?;
    class.define_private_method("_begin", method!(begin, 3))?;
    model::define_closing!(class, RbLlm)?;
    let cache = class.define_class("Cache", ruby.class_object())?;
    cache.undef_default_alloc_func();
    let run = class.define_class("Run", ruby.class_object())?;
    run.undef_default_alloc_func();
    run.define_method("step", method!(step, 0))?;
    run.define_method("outcome", method!(outcome, 0))?;
    run.define_method("release", method!(release, 1))
}
