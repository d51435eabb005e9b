//! `Candle::Hub`

use std::path::PathBuf;

use formats::files::hub::{Access, Repo};
use magnus::{function, prelude::*, Error, RHash, RModule, RString, Ruby};

use crate::{error, gvl, model, models_lock};

/// With the GVL held, since this reads the environment, which Ruby may otherwise change meanwhile.
fn open(ruby: &Ruby, id: &str, settings: RHash) -> Result<Repo, Error> {
    let revision: Option<String> = model::setting(ruby, settings, "revision")?;
    let access = access(ruby, settings)?;
    gvl::hold(ruby, || {
        Repo::open(id, revision.as_deref(), &access).map_err(error::raised(ruby))
    })
}

/// `token`, `cache_dir` and `packs` of a call's settings, and the lock in force.
pub fn access(ruby: &Ruby, settings: RHash) -> Result<Access, Error> {
    let cache: Option<String> = model::setting(ruby, settings, "cache_dir")?;
    Ok(Access {
        token: model::setting(ruby, settings, "token")?,
        cache: cache.map(PathBuf::from),
        lock: models_lock::in_force(),
        packs: model::setting(ruby, settings, "packs")?.unwrap_or_default(),
    })
}

fn path(ruby: &Ruby, path: PathBuf) -> RString {
    ruby.str_new(&path.to_string_lossy())
}

fn download(ruby: &Ruby, id: String, file: String, settings: RHash) -> Result<RString, Error> {
    let repo = open(ruby, &id, settings)?;
    let found = gvl::leave_waiting(ruby, |cancel| repo.fetch(&file, cancel))?;
    Ok(path(ruby, found))
}

fn files(ruby: &Ruby, id: String, settings: RHash) -> Result<Vec<String>, Error> {
    let repo = open(ruby, &id, settings)?;
    gvl::leave_waiting(ruby, |cancel| repo.files(cancel))
}

fn cached(ruby: &Ruby, id: String, file: String, settings: RHash) -> Result<bool, Error> {
    let repo = open(ruby, &id, settings)?;
    gvl::leave_waiting(ruby, |_| repo.cached(&file).map(|found| found.is_some()))
}

fn snapshot(
    ruby: &Ruby,
    id: String,
    patterns: Option<Vec<String>>,
    settings: RHash,
) -> Result<RString, Error> {
    let repo = open(ruby, &id, settings)?;
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
