//! The table of families, for `Candle.supported_models` and for GGUF files that are written.

use std::path::Path;

use engine::models::families;
use formats::files::raw_config::RawConfig;
use magnus::{function, prelude::*, Error, RArray, RModule, Ruby};

use crate::gvl;

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

/// `[architecture, transposed, [[module, module of a GGUF file]]]` of a `config.json`; nil for types without GGUF files.
fn gguf_names(ruby: &Ruby, config: String) -> Result<Option<RArray>, Error> {
    let names = gvl::leave(ruby, |_| {
        families::gguf_names(&RawConfig::read(Path::new(&config))?)
    })?;
    let Some(names) = names else {
        return Ok(None);
    };
    let modules = ruby.ary_new();
    for pair in names.modules {
        modules.push(pair)?;
    }
    let result = ruby.ary_new();
    result.push(names.architecture)?;
    result.push(names.transposed)?;
    result.push(modules)?;
    Ok(Some(result))
}

pub fn init(candle: RModule) -> Result<(), Error> {
    let module = candle.define_module("SupportedModels")?;
    let class = module.singleton_class()?;
    class.define_private_method("_entries", function!(entries, 0))?;
    class.define_private_method("_gguf_names", function!(gguf_names, 1))
}
