//! `Candle::LLM`, its caches and its runs

use std::sync::{Mutex, MutexGuard};

use engine::decoder::KvCache;
use engine::generation::GenerationConfig;
use engine::tasks::{ContextOverflow, FinishReason, Generation, LanguageModel};
use engine::Error as EngineError;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{error, gvl, model, tokenizer::RbTokenizer};

#[magnus::wrap(class = "Candle::LLM", free_immediately, size)]
pub struct RbLlm {
    model: model::Slot<LanguageModel>,
}

/// What a conversation leaves for its next turn; empty while a run has it.
#[magnus::wrap(class = "Candle::LLM::Cache", free_immediately, size)]
pub struct RbCache(Mutex<Option<KvCache>>);

#[magnus::wrap(class = "Candle::LLM::Run", free_immediately, size)]
pub struct RbRun(Mutex<Option<Generation>>);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbLlm, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    let model = gvl::leave(ruby, |cancel| {
        LanguageModel::load(&request.files, &request.options, cancel)
    })?;
    Ok(RbLlm {
        model: model::Slot::new(ruby, model, LanguageModel::info),
    })
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

fn context_length(ruby: &Ruby, llm: &RbLlm) -> Result<usize, Error> {
    Ok(llm.model.get(ruby)?.context_length())
}

fn logprobs(ruby: &Ruby, llm: &RbLlm, ids: Vec<u32>) -> Result<Vec<f32>, Error> {
    let model = llm.model.get(ruby)?;
    gvl::leave(ruby, |cancel| model.logprobs(&ids, cancel))
}

fn new_cache(ruby: &Ruby, llm: &RbLlm) -> Result<RbCache, Error> {
    let cache = llm.model.get(ruby)?.decoder().new_cache();
    Ok(RbCache(Mutex::new(Some(cache))))
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
    gvl::hold(ruby, || {
        let cached = cache.and_then(|cache| lock(&cache.0).take());
        let generation = Generation::new(
            model.clone(),
            cached.unwrap_or_else(|| model.decoder().new_cache()),
            prompt,
            config,
            if roll {
                ContextOverflow::Roll
            } else {
                ContextOverflow::Error
            },
            None,
        )
        .map_err(error::raised(ruby))?;
        Ok(RbRun(Mutex::new(Some(generation))))
    })
}

fn generation_config(ruby: &Ruby, settings: RHash) -> Result<GenerationConfig, Error> {
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
    let hash = ruby.hash_new();
    let reason = generation.finish_reason().map(|reason| {
        ruby.to_symbol(match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::StopSequence => "stop_sequence",
            FinishReason::Constraint => "constraint",
        })
    });
    let ids: Vec<u32> = generation
        .choices()
        .iter()
        .map(|choice| choice.token)
        .collect();
    let logprobs = ruby.ary_new();
    for choice in generation.choices() {
        if let Some(logprob) = choice.logprob {
            let top = RArray::from_iter(choice.top.iter().map(|&(id, value)| (id, value)));
            logprobs.push((choice.token, logprob, top))?;
        }
    }
    let timings = generation.timings();
    hash.aset(ruby.to_symbol("text"), generation.text())?;
    hash.aset(ruby.to_symbol("finish_reason"), reason)?;
    hash.aset(ruby.to_symbol("token_ids"), ids)?;
    hash.aset(ruby.to_symbol("logprobs"), logprobs)?;
    hash.aset(ruby.to_symbol("prompt_tokens"), generation.prompt_length())?;
    hash.aset(ruby.to_symbol("cached_tokens"), generation.cached_length())?;
    hash.aset(ruby.to_symbol("prompt_ms"), timings.prompt_ms)?;
    hash.aset(ruby.to_symbol("first_token_ms"), timings.first_token_ms)?;
    hash.aset(
        ruby.to_symbol("tokens_per_second"),
        timings.tokens_per_second,
    )?;
    Ok(hash)
}

/// Ends the run and gives its cache to `cache`, if any.
fn release(run: &RbRun, cache: Option<&RbCache>) {
    let generation = lock(&run.0).take();
    if let (Some(generation), Some(cache)) = (generation, cache) {
        *lock(&cache.0) = Some(generation.into_cache());
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
    class.define_singleton_method("_load", function!(load, 2))?;
    class.define_method("_info", method!(info, 0))?;
    class.define_method("_tokenizer", method!(tokenizer, 0))?;
    class.define_method("_end_ids", method!(end_ids, 0))?;
    class.define_method("_context_length", method!(context_length, 0))?;
    class.define_method("_logprobs", method!(logprobs, 1))?;
    class.define_method("_new_cache", method!(new_cache, 0))?;
    class.define_method("_begin", method!(begin, 3))?;
    model::define_closing!(class, RbLlm)?;
    let cache = class.define_class("Cache", ruby.class_object())?;
    cache.undef_default_alloc_func();
    let run = class.define_class("Run", ruby.class_object())?;
    run.undef_default_alloc_func();
    run.define_method("_step", method!(step, 0))?;
    run.define_method("_outcome", method!(outcome, 0))?;
    run.define_method("_release", method!(release, 1))
}
