//! `Candle::Utils`

use std::io::Write;
use std::path::PathBuf;

use formats::files::replace::replace;
use magnus::{function, prelude::*, Error, RModule, RString, Ruby};

use crate::{error, gvl};

fn set_thread_count(ruby: &Ruby, count: usize) -> Result<(), Error> {
    gvl::hold(ruby, || {
        base::runtime::threads::set_count(count).map_err(error::raised(ruby))
    })
}

/// Writes a file as a whole or not at all; `what` is its name in messages.
fn replace_file(ruby: &Ruby, path: PathBuf, what: String, content: RString) -> Result<(), Error> {
    // SAFETY: the bytes are copied before Ruby can run and change them.
    let content = unsafe { content.as_slice() }.to_vec();
    gvl::leave_waiting(ruby, |_| {
        replace(&path, &what, |mut file, failed| {
            file.write_all(&content).map_err(failed)
        })
    })
}

pub fn init(candle: RModule) -> Result<(), Error> {
    let module = candle.define_module("Utils")?;
    module
        .singleton_class()?
        .define_private_method("_thread_count", function!(base::runtime::threads::count, 0))?;
    module
        .singleton_class()?
        .define_private_method("_set_thread_count", function!(set_thread_count, 1))?;
    module
        .singleton_class()?
        .define_private_method("_replace_file", function!(replace_file, 3))?;
    module.singleton_class()?.define_private_method(
        "_limit_arenas",
        function!(base::runtime::allocator::limit_arenas, 1),
    )
}
