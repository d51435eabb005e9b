//! `Candle::ModelsLock`

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use engine::CancelToken;
use formats::files::digest;
use formats::files::model_files::ModelFiles;
use formats::files::models_lock::ModelsLock;
use magnus::{function, prelude::*, Error, RHash, RModule, Ruby};

use crate::{error, gvl, hub};

/// What `Candle.models_lock=` named last.
static IN_FORCE: Mutex<Option<Arc<ModelsLock>>> = Mutex::new(None);

fn in_force_slot() -> MutexGuard<'static, Option<Arc<ModelsLock>>> {
    IN_FORCE.lock().unwrap_or_else(|e| e.into_inner())
}

/// The lock that loads obey, if any.
pub fn in_force() -> Option<Arc<ModelsLock>> {
    in_force_slot().clone()
}

fn obey(ruby: &Ruby, path: Option<PathBuf>) -> Result<(), Error> {
    let lock = match path {
        Some(path) => Some(Arc::new(gvl::leave(ruby, |_| ModelsLock::read(&path))?)),
        None => None,
    };
    *in_force_slot() = lock;
    Ok(())
}

fn sha256(ruby: &Ruby, path: PathBuf) -> Result<String, Error> {
    gvl::leave_waiting(ruby, |cancel| digest::sha256(&path, cancel))
}

/// The paths of all files that `lock` has of a model, fetched where they are missing, and compared.
fn fetch(
    ruby: &Ruby,
    lock: PathBuf,
    source: String,
    settings: RHash,
) -> Result<Vec<String>, Error> {
    let mut access = hub::access(ruby, settings)?;
    access.lock = Some(Arc::new(gvl::leave(ruby, |_| ModelsLock::read(&lock))?));
    let files = ModelFiles::open_as(&source, None, &access, &CancelToken::new());
    let files = files.map_err(error::raised(ruby))?;
    gvl::leave_waiting(ruby, |cancel| {
        let names = files.all_files(cancel)?;
        let paths = names.iter().map(|name| files.require(name, cancel));
        paths
            .map(|path| path.map(|path| path.to_string_lossy().into_owned()))
            .collect()
    })
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("ModelsLock", ruby.class_object())?;
    let singleton = class.singleton_class()?;
    singleton.define_private_method("_obey", function!(obey, 1))?;
    singleton.define_private_method("_sha256", function!(sha256, 1))?;
    singleton.define_private_method("_fetch", function!(fetch, 3))
}
