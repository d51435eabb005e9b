//! One view of a model's files, wherever they are: a directory, a file of its own or the hub.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::gguf_choice::{
    candidates, is_gguf, is_mmproj, is_whisper, pick_gguf, pick_mmproj, Split,
};
use crate::files::hub::{self, Access, Repo};
use crate::files::models_lock::{LockedFiles, LockedModel, ModelsLock};
use crate::files::shard_index;
use crate::files::weight_files::{file_name, listed, names_in};
use crate::{CancelToken, Error, Result};

pub use crate::files::weight_files::WeightFiles;

#[derive(Clone)]
pub struct ModelFiles {
    id: String,
    place: Place,
    locked: Option<LockedFiles>,
}

#[derive(Clone)]
enum Place {
    Directory(PathBuf),
    /// A GGUF file, or a Whisper of OpenAI or whisper.cpp.
    File(PathBuf),
    Hub(Arc<Repo>),
}

/// The vocabularies of openai-whisper's package, which its checkpoints do not hold.
const VOCABULARIES: [&str; 2] = ["gpt2.tiktoken", "multilingual.tiktoken"];

impl ModelFiles {
    /// A path that exists wins over the hub. Nothing is fetched yet.
    pub fn open(source: &str, revision: Option<&str>, cancel: &CancelToken) -> Result<Self> {
        Self::open_as(source, revision, &Access::default(), cancel)
    }

    /// `open` with what a call says about the hub.
    pub fn open_as(
        source: &str,
        revision: Option<&str>,
        access: &Access,
        cancel: &CancelToken,
    ) -> Result<Self> {
        cancel.check()?;
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let path = hub::expand_tilde(source, home.as_deref());
        let lock = access.lock.as_ref();
        let required = lock.map(|lock| lock.require(source, revision));
        let mut locked = required.transpose()?;
        let place = if !source.is_empty() && path.is_dir() {
            Place::Directory(path)
        } else if path.is_file() {
            if !is_gguf(source) && !is_whisper(&file_name(&path)) {
                return Err(Error::UnsupportedModel(format!(
                    "{source} is a file but not a .gguf one, nor a Whisper (.pt, ggml-*.bin). Give the directory that \
                     holds config.json and the weights"
                )));
            }
            Place::File(path)
        } else if let Some((pack, own)) = pack(source, revision, access)? {
            locked = locked.or(Some(own));
            Place::Directory(pack.join("model"))
        } else {
            let commit = locked.as_ref().and_then(|model| model.commit.as_deref());
            Place::Hub(Arc::new(open_repo(source, commit.or(revision), access)?))
        };
        Ok(Self {
            id: source.to_owned(),
            place,
            locked: locked.map(LockedFiles::new),
        })
    }

    /// The folder `name` inside this model, which is at `path`, as a model of its own.
    pub fn folder(&self, name: &str, path: PathBuf) -> Self {
        Self {
            id: path.display().to_string(),
            place: Place::Directory(path),
            locked: self.locked.as_ref().map(|locked| locked.inside(name)),
        }
    }

    /// The source as it was given.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn is_local(&self) -> bool {
        !matches!(self.place, Place::Hub(_))
    }

    /// The path of a file by its name in the repository, such as `1_Pooling/config.json`. A single
    /// file stands for itself: its neighbours are other models, or vocabularies that all of them share.
    pub fn file(&self, name: &str, cancel: &CancelToken) -> Result<Option<PathBuf>> {
        let Some(locked) = &self.locked else {
            return self.place_of(name, cancel);
        };
        if !locked.lists(name) {
            return Ok(None);
        }
        let path = self.place_of(name, cancel)?;
        let path = path.ok_or_else(|| locked.missing(name))?;
        locked.compare(name, &path, cancel)?;
        Ok(Some(path))
    }

    fn place_of(&self, name: &str, cancel: &CancelToken) -> Result<Option<PathBuf>> {
        match &self.place {
            Place::Directory(directory) => {
                hub::check_file(name)?;
                let path = directory.join(name);
                Ok(path.is_file().then_some(path))
            }
            Place::File(path) if VOCABULARIES.contains(&name) && !is_gguf(&file_name(path)) => {
                let path = path.with_file_name(name);
                Ok(path.is_file().then_some(path))
            }
            Place::File(path) => Ok((file_name(path) == name).then(|| path.clone())),
            Place::Hub(repo) => repo.try_fetch(name, cancel),
        }
    }

    /// The path of a file of another model that is here already, by the settings that this one was
    /// opened with: neither the network nor the environment is asked. Nothing where files are locked.
    pub fn present_in(&self, model: &str, name: &str) -> Option<PathBuf> {
        if self.locked.is_some() {
            return None;
        }
        let directory = Path::new(model);
        if directory.is_dir() {
            return Some(directory.join(name)).filter(|path| path.is_file());
        }
        match &self.place {
            Place::Hub(repo) => repo.sibling(model).ok()?.cached(name).ok().flatten(),
            _ => None,
        }
    }

    /// Another model that this one names: a directory, or a repository by the same settings.
    pub fn sibling(&self, model: &str) -> Result<Self> {
        let place = match &self.place {
            _ if Path::new(model).is_dir() => Place::Directory(PathBuf::from(model)),
            Place::Hub(repo) if self.locked.is_none() => Place::Hub(Arc::new(repo.sibling(model)?)),
            _ => {
                return Err(Error::ModelNotFound(format!(
                    "{} needs files of {model}, which is not a directory here: save them beside it, or put that model \
                     there",
                    self.id
                )))
            }
        };
        let (id, locked) = (model.to_owned(), None);
        Ok(Self { id, place, locked })
    }

    pub fn require(&self, name: &str, cancel: &CancelToken) -> Result<PathBuf> {
        if let (Place::Hub(repo), None) = (&self.place, &self.locked) {
            return repo.fetch(name, cancel);
        }
        self.file(name, cancel)?.ok_or_else(|| {
            Error::ModelNotFound(format!(
                "{} has no file {name}. Check that it is a model's directory and complete",
                self.id
            ))
        })
    }

    /// The names of all GGUF files, sorted.
    pub fn gguf_files(&self, cancel: &CancelToken) -> Result<Vec<String>> {
        let mut files = self.all_files(cancel)?;
        files.retain(|file| is_gguf(file));
        files.sort();
        Ok(files)
    }

    /// Safetensors before GGUF before pickles before the files that hold a Whisper; `gguf_file` asks for that one
    /// file instead.
    pub fn weights(&self, gguf_file: Option<&str>, cancel: &CancelToken) -> Result<WeightFiles> {
        if let Some(name) = gguf_file {
            return WeightFiles::of_file(self.named_gguf(name, cancel)?);
        }
        if let Place::File(path) = &self.place {
            return WeightFiles::of_file(self.require(&file_name(path), cancel)?);
        }
        if let Some(paths) = self.whole_or_sharded("model.safetensors", cancel)? {
            return Ok(WeightFiles::Safetensors(paths));
        }
        if let Some(name) = self.best_gguf(cancel)? {
            return self.whole_gguf(&name, cancel).map(WeightFiles::Gguf);
        }
        if let Some(paths) = self.whole_or_sharded("pytorch_model.bin", cancel)? {
            return Ok(WeightFiles::Pickle(paths));
        }
        match self.whisper(cancel)? {
            Some(path) => WeightFiles::of_file(path),
            None => Err(self.no_weights(cancel)),
        }
    }

    /// The one file that holds a Whisper.
    fn whisper(&self, cancel: &CancelToken) -> Result<Option<PathBuf>> {
        let mut files = self.all_files(cancel).unwrap_or_default();
        files.retain(|file| !file.contains('/') && is_whisper(file));
        match files.as_slice() {
            [] => Ok(None),
            [name] => self.require(name, cancel).map(Some),
            _ => Err(Error::ModelNotFound(format!(
                "{} holds several models, of which gguf_file: picks one: {}",
                self.id,
                listed(&files)
            ))),
        }
    }

    /// The names of all files.
    pub fn all_files(&self, cancel: &CancelToken) -> Result<Vec<String>> {
        if let Some(locked) = &self.locked {
            return Ok(locked.names());
        }
        match &self.place {
            Place::Directory(directory) => Ok(hub::list_files(directory)),
            Place::File(path) => Ok(vec![file_name(path)]),
            Place::Hub(repo) => repo.files(cancel),
        }
    }

    fn whole_or_sharded(&self, name: &str, cancel: &CancelToken) -> Result<Option<Vec<PathBuf>>> {
        if let Some(path) = self.file(name, cancel)? {
            return Ok(Some(vec![path]));
        }
        let Some(index) = self.file(&format!("{name}.index.json"), cancel)? else {
            return Ok(None);
        };
        let shards = shard_index::read(&index)?;
        let paths = shards.iter().map(|shard| self.require(shard, cancel));
        paths.collect::<Result<Vec<_>>>().map(Some)
    }

    fn named_gguf(&self, name: &str, cancel: &CancelToken) -> Result<PathBuf> {
        if self.file(name, cancel)?.is_some() {
            return self.whole_gguf(name, cancel);
        }
        let known = self.gguf_files(cancel).unwrap_or_default();
        Err(Error::ModelNotFound(format!(
            "{} has no file {name}. Its GGUF files: {}",
            self.id,
            listed(&known)
        )))
    }

    /// A GGUF file with the other parts of it, if it was split.
    fn whole_gguf(&self, name: &str, cancel: &CancelToken) -> Result<PathBuf> {
        let unverified = !self.is_local() || self.locked.is_some();
        if let (Some(split), true) = (Split::parse(name), unverified) {
            for part in split.parts() {
                self.require(&part, cancel)?;
            }
        }
        self.require(name, cancel)
    }

    /// The GGUF file of a vision tower: the one that is asked for, of this model by its name or any by its path,
    /// else the one of this model. A GGUF file alone has those beside it.
    pub fn mmproj(&self, asked: Option<&str>, cancel: &CancelToken) -> Result<PathBuf> {
        if let Some(name) = asked {
            let path = Path::new(name);
            return if self.locked.is_none() && is_gguf(name) && path.is_file() {
                Ok(path.to_owned())
            } else {
                self.named_gguf(name, cancel)
            };
        }
        let beside = match (&self.place, &self.locked) {
            (Place::File(path), None) => path.parent(),
            _ => None,
        };
        let files = match beside {
            Some(directory) => names_in(directory),
            None => self.gguf_files(cancel)?,
        };
        let Some(name) = pick_mmproj(&files) else {
            return Err(Error::UnsupportedModel(format!(
                "{} has no vision tower: no GGUF file with mmproj in its name lies beside it. Name one by mmproj_file:",
                self.id
            )));
        };
        if files.iter().filter(|name| is_mmproj(name)).count() > 1 {
            base::runtime::log::info(format!(
                "{}: using {name} as the vision tower; mmproj_file: picks another",
                self.id
            ));
        }
        match beside {
            Some(directory) => Ok(directory.join(name)),
            None => self.whole_gguf(name, cancel),
        }
    }

    fn best_gguf(&self, cancel: &CancelToken) -> Result<Option<String>> {
        let files = self.gguf_files(cancel)?;
        let candidates: Vec<&str> = candidates(&files).collect();
        let Some(best) = pick_gguf(&files) else {
            return Ok(None);
        };
        if candidates.len() > 1 {
            base::runtime::log::info(format!(
                "{}: using {best} of {} GGUF files; gguf_file: picks another",
                self.id,
                candidates.len()
            ));
        }
        Ok(Some(best.to_owned()))
    }

    fn no_weights(&self, cancel: &CancelToken) -> Error {
        if let Place::Hub(repo) = &self.place {
            if repo.is_cut_off() {
                return repo.uncached("the weights");
            }
        }
        let files = self.all_files(cancel).unwrap_or_default();
        Error::ModelNotFound(format!(
            "{} has no weights: neither model.safetensors, model.safetensors.index.json, *.gguf, pytorch_model.bin, \
             pytorch_model.bin.index.json, nor a Whisper (*.pt, ggml-*.bin). Its files: {}",
            self.id,
            listed(&files)
        ))
    }
}

/// The directory that stands for an id, and what it says of its own files.
fn pack<'a>(
    source: &str,
    revision: Option<&str>,
    access: &'a Access,
) -> Result<Option<(&'a PathBuf, Arc<LockedModel>)>> {
    let Some((_, pack)) = access.packs.iter().find(|(id, _)| id == source) else {
        return Ok(None);
    };
    let own = ModelsLock::read(&pack.join("models.lock"))?.find(source);
    let own = own.ok_or_else(|| {
        Error::ModelNotFound(format!("{} does not hold {source}", pack.display()))
    })?;
    Ok(own.serves(revision).then_some((pack, own)))
}

fn open_repo(source: &str, revision: Option<&str>, access: &Access) -> Result<Repo> {
    let looks_like_path = source.starts_with(['/', '.', '~']) || is_gguf(source);
    if looks_like_path {
        return Err(Error::ModelNotFound(format!(
            "there is no file or directory {source}"
        )));
    }
    let check = hub::check_id(source);
    if let Err(Error::InvalidInput(reason)) = check {
        return Err(Error::ModelNotFound(format!(
            "there is no file or directory {source:?}, and {reason}"
        )));
    }
    Repo::open(source, revision, access)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::hub::test_support::{offline_repo, TemporaryDirectory};

    fn open(directory: &TemporaryDirectory) -> ModelFiles {
        ModelFiles::open(
            directory.path().to_str().unwrap(),
            None,
            &CancelToken::new(),
        )
        .unwrap()
    }

    #[test]
    fn all_parts_of_a_split_file_are_fetched() {
        let cancel = CancelToken::new();
        let root = TemporaryDirectory::new();
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let snapshot = format!("models--owner--name/snapshots/{commit}");
        root.write("models--owner--name/refs/main", commit);
        let first = root.write(&format!("{snapshot}/m-00001-of-00002.gguf"), "");
        let files = ModelFiles {
            id: "owner/name".to_owned(),
            place: Place::Hub(Arc::new(offline_repo(&root, "owner/name"))),
            locked: None,
        };
        let error = files.weights(None, &cancel).unwrap_err();
        assert!(
            matches!(&error, Error::Offline(text) if text.contains("m-00002-of-00002.gguf")),
            "{error}"
        );
        root.write(&format!("{snapshot}/m-00002-of-00002.gguf"), "");
        let found = files.weights(None, &cancel).unwrap();
        assert_eq!(found, WeightFiles::Gguf(first));
    }

    #[test]
    fn weights_are_chosen_in_the_documented_order() {
        let cancel = CancelToken::new();
        let directory = TemporaryDirectory::new();
        let files = open(&directory);
        let error = files.weights(None, &cancel).unwrap_err();
        assert!(matches!(&error, Error::ModelNotFound(text) if text.contains("pytorch_model.bin")));

        let pickle = directory.write("pytorch_model.bin", "");
        assert_eq!(
            files.weights(None, &cancel).unwrap(),
            WeightFiles::Pickle(vec![pickle])
        );
        let gguf = directory.write("m.Q8_0.gguf", "");
        assert_eq!(
            files.weights(None, &cancel).unwrap(),
            WeightFiles::Gguf(gguf.clone())
        );
        let index = r#"{"weight_map": {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}}"#;
        directory.write("model.safetensors.index.json", index);
        let error = files.weights(None, &cancel).unwrap_err();
        assert!(
            matches!(&error, Error::ModelNotFound(text) if text.contains("-of-00002.safetensors"))
        );
        let mut shards = vec![
            directory.write("model-00001-of-00002.safetensors", ""),
            directory.write("model-00002-of-00002.safetensors", ""),
        ];
        let WeightFiles::Safetensors(mut found) = files.weights(None, &cancel).unwrap() else {
            panic!("not safetensors");
        };
        found.sort();
        shards.sort();
        assert_eq!(found, shards);
        let whole = directory.write("model.safetensors", "");
        assert_eq!(
            files.weights(None, &cancel).unwrap(),
            WeightFiles::Safetensors(vec![whole])
        );

        assert_eq!(
            files.weights(Some("m.Q8_0.gguf"), &cancel).unwrap(),
            WeightFiles::Gguf(gguf)
        );
        let error = files
            .weights(Some("m.Q4_0.gguf"), &cancel)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("m.Q4_0.gguf") && error.contains("m.Q8_0.gguf"),
            "{error}"
        );
    }

    #[test]
    fn a_directory_serves_its_files_and_nothing_outside() {
        let cancel = CancelToken::new();
        let directory = TemporaryDirectory::new();
        let pooling = directory.write("1_Pooling/config.json", "{}");
        let files = open(&directory);
        assert!(files.is_local());
        assert_eq!(
            files.file("1_Pooling/config.json", &cancel).unwrap(),
            Some(pooling)
        );
        assert_eq!(files.file("config.json", &cancel).unwrap(), None);
        assert!(files.file("../secret", &cancel).is_err());
        let error = files
            .require("config.json", &cancel)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("config.json") && error.contains(files.id()),
            "{error}"
        );
    }

    #[test]
    fn a_gguf_file_is_a_model_by_itself() {
        let cancel = CancelToken::new();
        let directory = TemporaryDirectory::new();
        let path = directory.write("m.gguf", "");
        directory.write("config.json", "{}");
        let files = ModelFiles::open(path.to_str().unwrap(), None, &cancel).unwrap();
        assert_eq!(
            files.weights(None, &cancel).unwrap(),
            WeightFiles::Gguf(path)
        );
        assert_eq!(files.file("config.json", &cancel).unwrap(), None);
        assert_eq!(files.gguf_files(&cancel).unwrap(), ["m.gguf"]);
        let other = directory.write("notes.txt", "");
        let error = ModelFiles::open(other.to_str().unwrap(), None, &cancel)
            .err()
            .unwrap();
        assert!(matches!(error, Error::UnsupportedModel(_)));
    }

    #[test]
    fn a_vision_tower_lies_beside_its_language_model() {
        let cancel = CancelToken::new();
        let directory = TemporaryDirectory::new();
        let model = directory.write("m-Q8_0.gguf", "");
        let lone = ModelFiles::open(model.to_str().unwrap(), None, &cancel).unwrap();
        for files in [open(&directory), lone] {
            let error = files.mmproj(None, &cancel).unwrap_err();
            assert!(
                matches!(&error, Error::UnsupportedModel(text) if text.contains("mmproj_file:"))
            );
        }
        let exact = directory.write("mmproj-m-f32.gguf", "");
        let usual = directory.write("mmproj-m-f16.gguf", "");
        let lone = ModelFiles::open(model.to_str().unwrap(), None, &cancel).unwrap();
        for files in [open(&directory), lone] {
            assert_eq!(files.mmproj(None, &cancel).unwrap(), usual);
            let path = exact.to_str().unwrap();
            assert_eq!(files.mmproj(Some(path), &cancel).unwrap(), exact);
            let error = files.mmproj(Some("other.gguf"), &cancel).unwrap_err();
            assert!(matches!(&error, Error::ModelNotFound(text) if text.contains("other.gguf")));
        }
        let files = open(&directory);
        assert_eq!(
            files.mmproj(Some("mmproj-m-f32.gguf"), &cancel).unwrap(),
            exact
        );
        assert_eq!(
            files.weights(None, &cancel).unwrap(),
            WeightFiles::Gguf(model)
        );
    }

    #[test]
    fn a_cached_repository_serves_like_a_directory() {
        let cancel = CancelToken::new();
        let root = TemporaryDirectory::new();
        let files = ModelFiles {
            id: "owner/name".to_owned(),
            place: Place::Hub(Arc::new(offline_repo(&root, "owner/name"))),
            locked: None,
        };
        let error = files.file("config.json", &cancel).unwrap_err();
        assert!(matches!(error, Error::Offline(_)), "{error}");

        let commit = "0123456789abcdef0123456789abcdef01234567";
        let snapshot = format!("models--owner--name/snapshots/{commit}");
        root.write("models--owner--name/refs/main", commit);
        let config = root.write(&format!("{snapshot}/config.json"), "{}");
        assert!(!files.is_local());
        assert_eq!(files.require("config.json", &cancel).unwrap(), config);
        assert_eq!(files.file("modules.json", &cancel).unwrap(), None);
        let error = files.weights(None, &cancel).unwrap_err();
        assert!(
            matches!(&error, Error::Offline(text) if text.contains("the weights of owner/name"))
        );
        assert!(matches!(
            files.require("x.json", &cancel),
            Err(Error::Offline(_))
        ));

        let index = r#"{"weight_map": {"a": "model-00001-of-00001.safetensors"}}"#;
        root.write(&format!("{snapshot}/model.safetensors.index.json"), index);
        let shard = root.write(&format!("{snapshot}/model-00001-of-00001.safetensors"), "");
        let found = files.weights(None, &cancel).unwrap();
        assert_eq!(found, WeightFiles::Safetensors(vec![shard]));
    }

    #[test]
    fn what_is_neither_path_nor_id_is_not_found() {
        for source in [
            "/no/such/dir",
            "./nowhere",
            "",
            "a/b/c",
            "model.gguf",
            "a b",
        ] {
            let error = ModelFiles::open(source, None, &CancelToken::new())
                .err()
                .unwrap();
            assert!(
                matches!(error, Error::ModelNotFound(_)),
                "{source}: {error}"
            );
        }
    }
}
