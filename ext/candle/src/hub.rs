//! `Candle::Hub`

use std::path::PathBuf;

use engine::files::hub::Repo;
use magnus::{function, prelude::*, Error, RModule, RString, Ruby};

use crate::{error, gvl};

/// With the GVL held, since this reads the environment, which Ruby may otherwise change meanwhile.
fn open(ruby: &Ruby, id: &str, revision: Option<&str>) -> Result<Repo, Error> {
    gvl::hold(ruby, || {
        Repo::open(id, revision).map_err(error::raised(ruby))
    })
}

fn path(ruby: &Ruby, path: PathBuf) -> RString {
    ruby.str_new(&path.to_string_lossy())
}

fn download(
    ruby: &Ruby,
    id: String,
    file: String,
    revision: Option<String>,
) -> Result<RString, Error> {
    let repo = open(ruby, &id, revision.as_deref())?;
    let found = gvl::leave_waiting(ruby, |cancel| repo.fetch(&file, cancel))?;
    Ok(path(ruby, found))
}

fn files(ruby: &Ruby, id: String, revision: Option<String>) -> Result<Vec<String>, Error> {
    let repo = open(ruby, &id, revision.as_deref())?;
    gvl::leave_waiting(ruby, |cancel| repo.files(cancel))
}

fn cached(ruby: &Ruby, id: String, file: String, revision: Option<String>) -> Result<bool, Error> {
    let repo = open(ruby, &id, revision.as_deref())?;
    gvl::leave_waiting(ruby, |_| repo.cached(&file).map(|found| found.is_some()))
}

fn snapshot(
    ruby: &Ruby,
    id: String,
    revision: Option<String>,
    patterns: Option<Vec<String>>,
) -> Result<RString, Error> {
    let repo = open(ruby, &id, revision.as_deref())?;
    let directory = gvl::leave_waiting(ruby, |cancel| repo.snapshot(patterns.as_deref(), cancel))?;
    Ok(path(ruby, directory))
}

pub fn init(_ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let module = candle.define_module("Hub")?;
    module
        .singleton_class()?
        .define_private_method("_download", function!(download, 3))?;
    module
        .singleton_class()?
        .define_private_method("_files", function!(files, 2))?;
    module
        .singleton_class()?
        .define_private_method("_cached", function!(cached, 3))?;
    module
        .singleton_class()?
        .define_private_method("_snapshot", function!(snapshot, 3))
}
