//! `Candle::Utils`

use magnus::{function, prelude::*, Error, RModule, Ruby};

use crate::{error, gvl};

fn set_thread_count(ruby: &Ruby, count: usize) -> Result<(), Error> {
    gvl::hold(ruby, || {
        engine::runtime::threads::set_count(count).map_err(error::raised(ruby))
    })
}

pub fn init(candle: RModule) -> Result<(), Error> {
    let module = candle.define_module("Utils")?;
    module.singleton_class()?.define_private_method(
        "_thread_count",
        function!(engine::runtime::threads::count, 0),
    )?;
    module
        .singleton_class()?
        .define_private_method("_set_thread_count", function!(set_thread_count, 1))?;
    module.singleton_class()?.define_private_method(
        "_limit_arenas",
        function!(engine::runtime::allocator::limit_arenas, 1),
    )
}
