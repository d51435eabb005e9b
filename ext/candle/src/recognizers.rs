//! `Candle::Gazetteer` and `Candle::TextPattern`

use engine::{CancelToken, Error as EngineError};
use formats::text::recognizers::{Gazetteer, Span, TextPattern};
use magnus::{function, method, prelude::*, Error, RArray, RModule, Ruby};

use crate::{error, gc, gvl};

/// Texts up to this many bytes are searched faster than the GVL is left and taken again.
const SMALL: usize = 1 << 12;

#[magnus::wrap(class = "Candle::Gazetteer", free_immediately, size)]
pub struct RbGazetteer {
    gazetteer: Gazetteer,
    _memory: gc::Tracked,
}

#[magnus::wrap(class = "Candle::TextPattern", free_immediately, size)]
pub struct RbTextPattern(TextPattern);

fn build(ruby: &Ruby, terms: Vec<String>, case_sensitive: bool) -> Result<RbGazetteer, Error> {
    let gazetteer = gvl::leave_waiting(ruby, |cancel| {
        Gazetteer::new(&terms, case_sensitive, cancel)
    })?;
    Ok(RbGazetteer {
        _memory: gc::Tracked::new(ruby, gazetteer.memory()),
        gazetteer,
    })
}

fn compile(ruby: &Ruby, source: String) -> Result<RbTextPattern, Error> {
    let pattern = gvl::leave_waiting(ruby, |_| TextPattern::new(&source))?;
    Ok(RbTextPattern(pattern))
}

fn places_of_terms(ruby: &Ruby, this: &RbGazetteer, text: String) -> Result<RArray, Error> {
    places(ruby, &text, |cancel| this.gazetteer.find(&text, cancel))
}

fn places_of_pattern(ruby: &Ruby, this: &RbTextPattern, text: String) -> Result<RArray, Error> {
    places(ruby, &text, |cancel| this.0.find(&text, cancel))
}

/// Pairs of a start and an end.
fn places(
    ruby: &Ruby,
    text: &str,
    find: impl Fn(&CancelToken) -> Result<Vec<Span>, EngineError> + Send,
) -> Result<RArray, Error> {
    let spans = if text.len() <= SMALL {
        gvl::hold(ruby, || {
            find(&CancelToken::new()).map_err(error::raised(ruby))
        })?
    } else {
        gvl::leave_waiting(ruby, find)?
    };
    let list = ruby.ary_new_capa(spans.len());
    for span in spans {
        list.push((span.start, span.end))?;
    }
    Ok(list)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let gazetteer = candle.define_class("Gazetteer", ruby.class_object())?;
    gazetteer.undef_default_alloc_func();
    gazetteer
        .singleton_class()?
        .define_private_method("_build", function!(build, 2))?;
    gazetteer.define_private_method("_find", method!(places_of_terms, 1))?;
    let pattern = candle.define_class("TextPattern", ruby.class_object())?;
    pattern.undef_default_alloc_func();
    pattern
        .singleton_class()?
        .define_private_method("_compile", function!(compile, 1))?;
    pattern.define_private_method("_find", method!(places_of_pattern, 1))
}
