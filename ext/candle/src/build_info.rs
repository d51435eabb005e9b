//! Facts about this build of the extension, for `Candle.build_info`.

use magnus::{function, prelude::*, Error, RHash, RModule, Ruby};

fn facts(ruby: &Ruby) -> Result<RHash, Error> {
    let facts = ruby.hash_new();
    let set = |key: &str, value: bool| facts.aset(ruby.to_symbol(key), value);
    set("cuda", cfg!(feature = "cuda"))?;
    set("cudnn", cfg!(feature = "cudnn"))?;
    set("metal", engine::Device::Metal(0).is_compiled_in())?;
    set("mkl", cfg!(feature = "mkl"))?;
    set("accelerate", cfg!(target_os = "macos"))?;
    set("debug", cfg!(debug_assertions))?;
    facts.aset(
        ruby.to_symbol("target"),
        format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
    )?;
    facts.aset(ruby.to_symbol("engine_version"), engine::VERSION)?;
    Ok(facts)
}

pub fn init(candle: RModule) -> Result<(), Error> {
    let module = candle.define_module("BuildInfo")?;
    module
        .singleton_class()?
        .define_private_method("_facts", function!(facts, 0))
}
