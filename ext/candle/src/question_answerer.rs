//! `Candle::QuestionAnswerer`

use engine::tasks::{Answer, AnswerModel, AnswerOptions};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{gvl, model};

#[magnus::wrap(class = "Candle::QuestionAnswerer", free_immediately, size)]
pub struct RbQuestionAnswerer {
    model: model::Slot<AnswerModel>,
}

model::described!(AnswerModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbQuestionAnswerer, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbQuestionAnswerer {
        model: model::load(ruby, &request, AnswerModel::load)?,
    })
}

fn window(ruby: &Ruby, this: &RbQuestionAnswerer) -> Result<usize, Error> {
    Ok(this.model.get(ruby)?.window())
}

/// `settings` are how many answers, of how many tokens, whether none may be one, and what windows share.
fn answer(
    ruby: &Ruby,
    this: &RbQuestionAnswerer,
    question: String,
    context: String,
    settings: (usize, usize, bool, Option<usize>),
) -> Result<RArray, Error> {
    let (top_k, longest, may_be_none, stride) = settings;
    let options = AnswerOptions {
        top_k,
        longest,
        may_be_none,
        stride,
    };
    let model = this.model.get(ruby)?;
    let found = gvl::leave_waiting(ruby, |cancel| {
        model.answer(&question, &context, &options, cancel)
    })?;
    let answers = ruby.ary_new_capa(found.len());
    for answer in &found {
        answers.push(answer_hash(ruby, answer)?)?;
    }
    Ok(answers)
}

fn answer_hash(ruby: &Ruby, answer: &Answer) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    hash.aset(ruby.to_symbol("text"), answer.text.as_str())?;
    hash.aset(ruby.to_symbol("score"), answer.score)?;
    hash.aset(ruby.to_symbol("start"), answer.start)?;
    hash.aset(ruby.to_symbol("end"), answer.end)?;
    Ok(hash)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("QuestionAnswerer", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_window", method!(window, 0))?;
    class.define_private_method("_answer", method!(answer, 3))?;
    model::define_stats!(class, RbQuestionAnswerer)?;
    model::define_model!(class, RbQuestionAnswerer)
}
