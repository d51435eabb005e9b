//! `Candle::Seq2Seq` and its runs

use engine::generation::EarlyStopping;
use engine::tasks::seq2seq::Written;
use engine::tasks::{Seq2SeqModel, Writing, WritingSettings};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{error, gvl, llm, model};

#[magnus::wrap(class = "Candle::Seq2Seq", free_immediately, size)]
pub struct RbSeq2Seq {
    model: model::Slot<Seq2SeqModel>,
}

model::described!(Seq2SeqModel);

#[magnus::wrap(class = "Candle::Seq2Seq::Run", free_immediately, size)]
pub struct RbWriting(model::Underway<Writing>);

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
    let model = this.model.get(ruby)?;
    let defaults = model.defaults();
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
) -> Result<RbWriting, Error> {
    let model = this.model.get(ruby)?;
    let from: Option<String> = model::setting(ruby, settings, "from")?;
    let writing = writing_settings(ruby, &model, settings)?;
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
        let writing = Writing::new(model.clone(), sources, writing, constraint);
        let writing = writing.map_err(error::raised(ruby))?;
        Ok(RbWriting(model::Underway::new(writing)))
    })
}

fn writing_settings(
    ruby: &Ruby,
    model: &Seq2SeqModel,
    settings: RHash,
) -> Result<WritingSettings, Error> {
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
    Ok(WritingSettings {
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
fn step(ruby: &Ruby, run: &RbWriting) -> Result<Option<String>, Error> {
    let writing = run.0.get(ruby)?;
    gvl::leave_waiting(ruby, |cancel| writing.step(cancel))
}

/// Waits for the end of all texts.
fn finish(ruby: &Ruby, run: &RbWriting) -> Result<(), Error> {
    let writing = run.0.get(ruby)?;
    gvl::leave_waiting(ruby, |cancel| writing.finish(cancel))
}

/// What has become of the texts: a Hash with Symbol keys for each.
fn outcomes(ruby: &Ruby, run: &RbWriting) -> Result<RArray, Error> {
    let written = run.0.get(ruby)?.written();
    let list = ruby.ary_new();
    for text in written.map_err(error::raised(ruby))? {
        list.push(outcome(ruby, &text)?)?;
    }
    Ok(list)
}

fn outcome(ruby: &Ruby, written: &Written) -> Result<RHash, Error> {
    let hash = llm::chosen(
        ruby,
        (written.text.as_str(), &written.choices),
        written.finish_reason,
        &written.timings,
    )?;
    hash.aset(ruby.to_symbol("prompt_tokens"), written.source_tokens)?;
    hash.aset(ruby.to_symbol("cached_tokens"), 0)?;
    Ok(hash)
}

/// Ends the run, whether it is over or not.
fn release(run: &RbWriting) {
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
