//! `Candle::TermIndex`

use base::runtime::shared_lock::SharedLock;
use engine::vector_index::{Bm25, TermIndex, Variant, WeightIndex};
use engine::{CancelToken, Error as EngineError};
use magnus::{function, method, prelude::*, Error, RArray, RModule, RString, Ruby};

use crate::{error, gvl};

/// Words of texts and weights of sparse vectors, by the numbers of their documents.
#[magnus::wrap(class = "Candle::TermIndex", free_immediately, size)]
pub struct RbTermIndex {
    terms: SharedLock<TermIndex>,
    weights: SharedLock<WeightIndex>,
}

fn build(ignored: Vec<String>) -> RbTermIndex {
    RbTermIndex {
        terms: SharedLock::new(TermIndex::new(ignored)),
        weights: SharedLock::new(WeightIndex::default()),
    }
}

fn add(
    ruby: &Ruby,
    this: &RbTermIndex,
    numbers: Vec<u32>,
    texts: Vec<String>,
) -> Result<(), Error> {
    let mut rest: Vec<(u32, String)> = numbers.into_iter().zip(texts).collect();
    // What was added before an interrupt that raised nothing is added; the rest follows.
    rest.reverse();
    gvl::leave_waiting(ruby, |cancel| {
        let mut terms = this.terms.write(cancel)?;
        while let Some((number, text)) = rest.pop() {
            terms.add(number, &text)?;
            cancel.check()?;
        }
        Ok(())
    })
}

fn remove(ruby: &Ruby, this: &RbTermIndex, number: u32, text: String) -> Result<(), Error> {
    gvl::leave_waiting(ruby, |cancel| {
        this.terms.write(cancel)?.remove(number, &text);
        Ok(())
    })
}

fn allowed(flags: Option<RString>) -> Option<Vec<u8>> {
    // SAFETY: the bytes are copied before Ruby can run and change them.
    flags.map(|flags| unsafe { flags.as_slice() }.to_vec())
}

/// Pairs of a number and a score. `settings` are the variant, k1, b and delta; `flags` has a byte for each number.
fn search(
    ruby: &Ruby,
    this: &RbTermIndex,
    text: String,
    most: usize,
    flags: Option<RString>,
    settings: (String, f64, f64, f64),
) -> Result<RArray, Error> {
    let (name, k1, b, delta) = settings;
    let variant = Variant::parse(&name).ok_or_else(|| {
        let message = format!("{name:?} is not a variant of BM25");
        error::to_ruby(ruby, EngineError::InvalidInput(message))
    })?;
    let bm25 = Bm25 {
        variant,
        k1,
        b,
        delta,
    };
    let flags = allowed(flags);
    let found = gvl::leave_waiting(ruby, |cancel: &CancelToken| {
        let terms = this.terms.read(cancel)?;
        terms.search(&text, most, flags.as_deref(), &bm25, cancel)
    })?;
    pairs(ruby, found)
}

fn add_weights(
    ruby: &Ruby,
    this: &RbTermIndex,
    number: u32,
    weights: Vec<(u32, f32)>,
) -> Result<(), Error> {
    gvl::leave_waiting(ruby, |cancel| {
        this.weights.write(cancel)?.add(number, &weights)
    })
}

fn remove_weights(ruby: &Ruby, this: &RbTermIndex, number: u32) -> Result<(), Error> {
    gvl::leave_waiting(ruby, |cancel| {
        this.weights.write(cancel)?.remove(number);
        Ok(())
    })
}

fn search_weights(
    ruby: &Ruby,
    this: &RbTermIndex,
    weights: Vec<(u32, f32)>,
    most: usize,
    flags: Option<RString>,
) -> Result<RArray, Error> {
    let flags = allowed(flags);
    let found = gvl::leave_waiting(ruby, |cancel: &CancelToken| {
        let index = this.weights.read(cancel)?;
        index.search(&weights, most, flags.as_deref(), cancel)
    })?;
    pairs(ruby, found)
}

fn pairs(ruby: &Ruby, found: Vec<(u32, f32)>) -> Result<RArray, Error> {
    let list = ruby.ary_new_capa(found.len());
    for (number, score) in found {
        list.push((number, f64::from(score)))?;
    }
    Ok(list)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("TermIndex", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_build", function!(build, 1))?;
    class.define_private_method("_add", method!(add, 2))?;
    class.define_private_method("_remove", method!(remove, 2))?;
    class.define_private_method("_search", method!(search, 4))?;
    class.define_private_method("_add_weights", method!(add_weights, 2))?;
    class.define_private_method("_remove_weights", method!(remove_weights, 1))?;
    class.define_private_method("_search_weights", method!(search_weights, 3))
}
