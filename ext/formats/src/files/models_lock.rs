//! `models.lock`: the bytes that models are made of. What is loaded by one is what it lists, or nothing.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::Deserialize;

use crate::files::{digest, hub, json};
use crate::{CancelToken, Error, Result};

/// The form of the file that is written and read.
const FORM: u64 = 1;

/// All models of one file.
#[derive(Debug)]
pub struct ModelsLock {
    path: PathBuf,
    models: Vec<Arc<LockedModel>>,
}

/// One model: where it comes from, and its files.
#[derive(Debug)]
pub struct LockedModel {
    id: String,
    /// Where a local one is; without it the id is the hub's.
    path: Option<PathBuf>,
    revision: Option<String>,
    pub commit: Option<String>,
    files: BTreeMap<String, Fingerprint>,
    /// The file that says all this.
    named_by: PathBuf,
}

#[derive(Debug)]
struct Fingerprint {
    size: u64,
    sha256: String,
}

#[derive(Deserialize)]
struct Document {
    red_candle_models: u64,
    models: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    path: Option<PathBuf>,
    revision: Option<String>,
    commit: Option<String>,
    files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    name: String,
    size: u64,
    sha256: String,
}

impl ModelsLock {
    pub fn read(path: &Path) -> Result<Self> {
        if !path.is_file() {
            return Err(Error::ModelNotFound(format!(
                "there is no file {}: write it with `red-candle lock SOURCE...`",
                path.display()
            )));
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let wrong = |reason: String| {
            Error::CorruptModel(format!(
                "{} is not a list of locked models: {reason}. Write it again with `red-candle lock SOURCE...`",
                path.display()
            ))
        };
        let document: Document =
            serde_json::from_value(json::read(&path)?).map_err(|error| wrong(error.to_string()))?;
        if document.red_candle_models != FORM {
            return Err(wrong(format!(
                "its form is {}, and this version of red-candle reads form {FORM}",
                document.red_candle_models
            )));
        }
        let models = document
            .models
            .into_iter()
            .map(|entry| entry.checked(&path).map(Arc::new).map_err(wrong))
            .collect::<Result<_>>()?;
        Ok(Self { path, models })
    }

    /// The model that `source` names, by its id or by where it is.
    pub fn find(&self, source: &str) -> Option<Arc<LockedModel>> {
        let place = Path::new(source).canonicalize().ok();
        let named = |model: &&Arc<LockedModel>| match &model.path {
            Some(path) => place.is_some() && path.canonicalize().ok() == place,
            None => place.is_none() && model.id == source,
        };
        self.models.iter().find(named).cloned()
    }

    /// `find` for a load, which takes what is locked or fails.
    pub fn require(&self, source: &str, revision: Option<&str>) -> Result<Arc<LockedModel>> {
        let model = self.find(source).ok_or_else(|| {
            Error::ModelNotFound(format!(
                "{} does not name {source}: add it with `red-candle lock {source}`",
                self.path.display()
            ))
        })?;
        if model.serves(revision) {
            return Ok(model);
        }
        Err(Error::ModelNotFound(format!(
            "{} has {source} at commit {}, not at revision {}: leave the revision out, or lock it with \
             `red-candle lock {source} --revision {}`",
            self.path.display(),
            model.commit.as_deref().unwrap_or("unknown"),
            revision.unwrap_or_default(),
            revision.unwrap_or_default()
        )))
    }
}

impl LockedModel {
    /// Whether it is what a load of `revision` means.
    pub fn serves(&self, revision: Option<&str>) -> bool {
        let names = [self.revision.as_deref(), self.commit.as_deref()];
        revision.is_none_or(|revision| names.contains(&Some(revision)))
    }
}

impl Entry {
    fn checked(self, lock: &Path) -> std::result::Result<LockedModel, String> {
        let id = &self.id;
        if self.path.is_none() && self.commit.is_none() {
            return Err(format!("{id} has neither a commit nor a path"));
        }
        let mut files = BTreeMap::new();
        for File { name, size, sha256 } in self.files {
            hub::check_file(&name).map_err(|error| format!("{id}: {error}"))?;
            if sha256.len() != 64 || !hub::is_lower_hex(&sha256) {
                return Err(format!("the sha256 of {name} of {id} is {sha256:?}"));
            }
            files.insert(name, Fingerprint { size, sha256 });
        }
        let folder = lock.parent().unwrap_or(lock);
        Ok(LockedModel {
            path: self.path.map(|path| folder.join(path)),
            revision: self.revision,
            commit: self.commit,
            files,
            named_by: lock.to_owned(),
            id: self.id,
        })
    }
}

/// The locked files of one load, or of a folder inside a model. Each is compared once.
#[derive(Clone)]
pub struct LockedFiles {
    model: Arc<LockedModel>,
    /// Before each name, for a folder.
    prefix: String,
    compared: Arc<Mutex<HashSet<String>>>,
}

impl LockedFiles {
    pub fn new(model: Arc<LockedModel>) -> Self {
        Self::with_prefix(model, String::new())
    }

    fn with_prefix(model: Arc<LockedModel>, prefix: String) -> Self {
        Self {
            model,
            prefix,
            compared: Arc::default(),
        }
    }

    /// Those in a folder, by their names there.
    pub fn inside(&self, folder: &str) -> Self {
        Self::with_prefix(self.model.clone(), format!("{}{folder}/", self.prefix))
    }

    pub fn names(&self) -> Vec<String> {
        let names = self.model.files.keys();
        names
            .filter_map(|name| name.strip_prefix(&self.prefix))
            .map(str::to_owned)
            .collect()
    }

    pub fn lists(&self, name: &str) -> bool {
        self.model.files.contains_key(&self.full_name(name))
    }

    /// The error for a file that is listed but not there.
    pub fn missing(&self, name: &str) -> Error {
        Error::ModelNotFound(format!(
            "{} of {} is missing, which {} lists. Put it back, or lock what there is with `red-candle lock {}`",
            self.full_name(name),
            self.model.id,
            self.model.named_by.display(),
            self.model.id
        ))
    }

    /// Compares a file with what is listed under its name.
    pub fn compare(&self, name: &str, path: &Path, cancel: &CancelToken) -> Result<()> {
        let name = self.full_name(name);
        let Some(wanted) = self.model.files.get(&name) else {
            return Err(self.missing(&name));
        };
        if self.lock_compared().contains(&name) {
            return Ok(());
        }
        let size = path.metadata().map(|facts| facts.len()).unwrap_or_default();
        let found = if size == wanted.size {
            digest::sha256(path, cancel)?
        } else {
            format!("of {size} bytes instead of {}", wanted.size)
        };
        if found != wanted.sha256 {
            return Err(Error::CorruptModel(format!(
                "{} is not the {name} of {} that {} lists: its sha256 is {found}, not {}. Delete it and fetch it \
                 again with `red-candle pull --locked`, or lock what there is with `red-candle lock {}`",
                path.display(),
                self.model.id,
                self.model.named_by.display(),
                wanted.sha256,
                self.model.id
            )));
        }
        self.lock_compared().insert(name);
        Ok(())
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn lock_compared(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.compared
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::hub::test_support::TemporaryDirectory;

    /// That of `hello`.
    const SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn write(directory: &TemporaryDirectory, models: &str) -> PathBuf {
        let text = format!(r#"{{"red_candle_models": 1, "models": [{models}]}}"#);
        directory.write("models.lock", text)
    }

    #[test]
    fn files_are_compared_by_their_bytes() {
        let directory = TemporaryDirectory::new();
        let model = format!(
            r#"{{"id": "here", "path": "model", "files": [{{"name": "a/x.txt", "size": 5, "sha256": "{SHA256}"}}]}}"#
        );
        let lock = ModelsLock::read(&write(&directory, &model)).unwrap();
        let path = directory.write("model/a/x.txt", "hello");
        let source = directory.path().join("model");
        let model = lock.require(source.to_str().unwrap(), None).unwrap();
        let cancel = CancelToken::new();
        let files = LockedFiles::new(model.clone());
        assert_eq!(files.names(), ["a/x.txt"]);
        assert!(files.lists("a/x.txt") && !files.lists("x.txt"));
        assert!(files.inside("a").lists("x.txt"));
        files.inside("a").compare("x.txt", &path, &cancel).unwrap();
        for tampered in ["hellO", "hello\n"] {
            directory.write("model/a/x.txt", tampered);
            let error = LockedFiles::new(model.clone()).compare("a/x.txt", &path, &cancel);
            assert!(
                matches!(&error, Err(Error::CorruptModel(text)) if text.contains("a/x.txt")),
                "{error:?}"
            );
        }
    }

    #[test]
    fn ids_are_served_at_the_locked_commit() {
        let directory = TemporaryDirectory::new();
        let model =
            format!(r#"{{"id": "a/b", "revision": "main", "commit": "{COMMIT}", "files": []}}"#);
        let lock = ModelsLock::read(&write(&directory, &model)).unwrap();
        for revision in [None, Some("main"), Some(COMMIT)] {
            assert!(lock.require("a/b", revision).is_ok(), "{revision:?}");
        }
        for (source, revision) in [("a/b", Some("v2")), ("a/c", None)] {
            let error = lock.require(source, revision).unwrap_err().to_string();
            assert!(error.contains("models.lock") && error.contains(source));
        }
    }

    #[test]
    fn what_is_not_such_a_list_is_refused() {
        let directory = TemporaryDirectory::new();
        let outside = format!(
            r#"{{"id": "x", "path": "m", "files": [{{"name": "../x", "size": 1, "sha256": "{SHA256}"}}]}}"#
        );
        for model in [
            r#"{"id": "x"}"#,
            r#"{"id": "x", "files": []}"#,
            r#"{"id": "x", "path": "m", "files": [{"name": "a", "size": 1, "sha256": "12"}]}"#,
            &outside,
        ] {
            let error = ModelsLock::read(&write(&directory, model)).unwrap_err();
            assert!(matches!(&error, Error::CorruptModel(_)), "{model}: {error}");
        }
        let text = r#"{"red_candle_models": 2, "models": []}"#;
        let error = ModelsLock::read(&directory.write("models.lock", text)).unwrap_err();
        assert!(error.to_string().contains("form"), "{error}");
        assert!(ModelsLock::read(&directory.path().join("none")).is_err());
    }
}
