//! `Candle::Seq2Seq` and its runs

use engine::generation::EarlyStopping;
use engine::tasks::seq2seq::{GenerationDefaults, Seq2SeqOutput};
use engine::tasks::{Seq2SeqGeneration, Seq2SeqModel, Seq2SeqSettings};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{error, gvl, llm, model};

#[magnus::wrap(class = "Candle::Seq2Seq", free_immediately, size)]
pub struct RbSeq2Seq {
    model: model::Slot<Seq2SeqModel>,
}

model::described!(Seq2SeqModel);

#[magnus::wrap(class = "Candle::Seq2Seq::Run", free_immediately, size)]
pub struct RbRun(model::Underway<Seq2SeqGeneration>);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbSeq2Seq, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbSeq2Seq {
        model: model::load(ruby, &request, Seq2SeqModel::load)?,
    })
}

fn tasks(ruby: &Ruby, this: &RbSeq2Seq) -> Result<String, Error> {
    Ok(this.model.get(ruby)?.tasks().to_owned())
}

fn languages(ruby: &Ruby, this: &RbSeq2Seq) -> Result<Vec<String>, Error> {
    Ok(this.model.get(ruby)?.languages())
}

/// What the checkpoint says of generating, as a Hash with Symbol keys.
fn defaults(ruby: &Ruby, this: &RbSeq2Seq) -> Result<RHash, Error> {
    defaults_of(ruby, this.model.get(ruby)?.defaults())
}

pub fn defaults_of(ruby: &Ruby, defaults: &GenerationDefaults) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    let early_stopping = match defaults.early_stopping {
        EarlyStopping::Always => "always",
        EarlyStopping::Heuristic => "heuristic",
        EarlyStopping::Never => "never",
    };
    hash.aset(ruby.to_symbol("num_beams"), defaults.num_beams)?;
    hash.aset(ruby.to_symbol("length_penalty"), defaults.length_penalty)?;
    hash.aset(ruby.to_symbol("early_stopping"), early_stopping)?;
    hash.aset(
        ruby.to_symbol("repetition_penalty"),
        defaults.repetition_penalty,
    )?;
    let rules = &defaults.rules;
    hash.aset(ruby.to_symbol("min_length"), rules.min_new_tokens)?;
    hash.aset(ruby.to_symbol("max_length"), rules.max_new_tokens)?;
    hash.aset(
        ruby.to_symbol("no_repeat_ngram_size"),
        rules.no_repeat_ngram_size,
    )?;
    Ok(hash)
}

/// Starts to write what becomes of texts.
fn begin(
    ruby: &Ruby,
    this: &RbSeq2Seq,
    texts: Vec<String>,
    settings: RHash,
) -> Result<RbRun, Error> {
    let model = this.model.get(ruby)?;
    let from: Option<String> = model::setting(ruby, settings, "from")?;
    let generation = seq2seq_settings(ruby, &model, settings)?;
    let constraint = match llm::pattern(ruby, settings)? {
        Some((pattern, ending)) => Some(gvl::leave_waiting(ruby, |cancel| {
            model.constraint(&pattern, ending, cancel)
        })?),
        None => None,
    };
    let sources = gvl::leave(ruby, |cancel| {
        let encode = |text: &String| model.encode(text, from.as_deref(), cancel);
        texts.iter().map(encode).collect::<engine::Result<Vec<_>>>()
    })?;
    gvl::hold(ruby, || {
        let generation = Seq2SeqGeneration::new(model.clone(), sources, generation, constraint);
        let generation = generation.map_err(error::raised(ruby))?;
        Ok(RbRun(model::Underway::new(generation)))
    })
}

fn seq2seq_settings(
    ruby: &Ruby,
    model: &Seq2SeqModel,
    settings: RHash,
) -> Result<Seq2SeqSettings, Error> {
    let defaults = model.defaults();
    let mut rules = defaults.rules.clone();
    if let Some(code) = model::setting::<String>(ruby, settings, "to")? {
        rules.forced_begin = Some(model.target_language(&code).map_err(error::raised(ruby))?);
    }
    macro_rules! given {
        ($name:literal, $usual:expr) => {
            model::setting(ruby, settings, $name)?.unwrap_or($usual)
        };
    }
    rules.min_new_tokens = given!("min_length", rules.min_new_tokens);
    rules.no_repeat_ngram_size = given!("no_repeat_ngram_size", rules.no_repeat_ngram_size);
    let early: Option<String> = model::setting(ruby, settings, "early_stopping")?;
    Ok(Seq2SeqSettings {
        config: llm::generation_config(ruby, settings)?,
        num_beams: given!("num_beams", 1),
        length_penalty: given!("length_penalty", defaults.length_penalty),
        early_stopping: match early.as_deref() {
            Some("always") => EarlyStopping::Always,
            Some("heuristic") => EarlyStopping::Heuristic,
            Some("never") => EarlyStopping::Never,
            _ => defaults.early_stopping,
        },
        rules,
    })
}

/// What became certain of the first text with one more token, nil at the end.
fn step(ruby: &Ruby, run: &RbRun) -> Result<Option<String>, Error> {
    let generation = run.0.get(ruby)?;
    gvl::leave_waiting(ruby, |cancel| generation.step(cancel))
}

/// Waits for the end of all texts.
fn finish(ruby: &Ruby, run: &RbRun) -> Result<(), Error> {
    let generation = run.0.get(ruby)?;
    gvl::leave_waiting(ruby, |cancel| generation.finish(cancel))
}

/// What has become of the texts: a Hash with Symbol keys for each.
fn outcomes(ruby: &Ruby, run: &RbRun) -> Result<RArray, Error> {
    let outputs = run.0.get(ruby)?.outputs();
    let list = ruby.ary_new();
    for text in outputs.map_err(error::raised(ruby))? {
        list.push(outcome(ruby, &text)?)?;
    }
    Ok(list)
}

fn outcome(ruby: &Ruby, output: &Seq2SeqOutput) -> Result<RHash, Error> {
    let hash = llm::chosen(
        ruby,
        (output.text.as_str(), &output.choices),
        output.finish_reason,
        &output.timings,
    )?;
    hash.aset(ruby.to_symbol("prompt_tokens"), output.source_tokens)?;
    hash.aset(ruby.to_symbol("cached_tokens"), 0)?;
    Ok(hash)
}

/// Ends the run, whether it is over or not.
fn release(run: &RbRun) {
    run.0.release();
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Seq2Seq", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_tasks", method!(tasks, 0))?;
    class.define_private_method("_languages", method!(languages, 0))?;
    class.define_private_method("_defaults", method!(defaults, 0))?;
    class.define_private_method("_begin", method!(begin, 2))?;
    model::define_stats!(class, RbSeq2Seq)?;
    model::define_model!(class, RbSeq2Seq)?;
    let run = class.define_class("Run", ruby.class_object())?;
    run.undef_default_alloc_func();
    run.define_method("step", method!(step, 0))?;
    run.define_method("finish", method!(finish, 0))?;
    run.define_method("outcomes", method!(outcomes, 0))?;
    run.define_method("release", method!(release, 0))
}
