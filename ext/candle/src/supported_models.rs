//! The table of families, for `Candle.supported_models`.

use engine::models::families;
use magnus::{function, prelude::*, Error, RArray, RModule, Ruby};

/// `[model_type, tasks, GGUF architectures]` of every entry.
fn entries(ruby: &Ruby) -> Result<RArray, Error> {
    let entries = ruby.ary_new();
    for entry in families::supported() {
        entries.push((
            entry.model_type,
            ruby.ary_from_vec(entry.tasks),
            ruby.ary_from_vec(entry.architectures),
        ))?;
    }
    Ok(entries)
}

pub fn init(candle: RModule) -> Result<(), Error> {
    let module = candle.define_module("SupportedModels")?;
    module
        .singleton_class()?
        .define_private_method("_entries", function!(entries, 0))
}
