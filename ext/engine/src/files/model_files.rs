//! One view of a model's files, wherever they are: a directory, a GGUF file or the hub.

use std::path::{Path, PathBuf};

use crate::files::hub::{self, Access, Repo};
use crate::files::shard_index;
use crate::{CancelToken, Error, Result};

pub struct ModelFiles {
    id: String,
    place: Place,
}

enum Place {
    Directory(PathBuf),
    GgufFile(PathBuf),
    Hub(Box<Repo>),
}

/// The files that hold a model's tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightFiles {
    Safetensors(Vec<PathBuf>),
    Gguf(PathBuf),
    Pickle(Vec<PathBuf>),
}

/// From the best choice down: small enough for most machines before more precise, then the rest.
const QUANTIZATIONS: [&str; 21] = [
    "Q4_K_M", "Q4_K_S", "Q4_K_L", "Q4_K", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_K", "Q5_0",
    "Q5_1", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "FP16", "F32",
];

const LISTED_FILES: usize = 20;

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
        let place = if !source.is_empty() && path.is_dir() {
            Place::Directory(path)
        } else if path.is_file() {
            if !is_gguf(source) {
                return Err(Error::UnsupportedModel(format!(
                    "{source} is a file but not a .gguf one. Give the directory that holds config.json and the weights"
                )));
            }
            Place::GgufFile(path)
        } else {
            Place::Hub(Box::new(open_repo(source, revision, access)?))
        };
        Ok(Self {
            id: source.to_owned(),
            place,
        })
    }

    /// The source as it was given.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn is_local(&self) -> bool {
        !matches!(self.place, Place::Hub(_))
    }

    /// The path of a file by its name in the repository, such as `1_Pooling/config.json`. A GGUF
    /// file stands for itself: its neighbours are other models.
    pub fn file(&self, name: &str, cancel: &CancelToken) -> Result<Option<PathBuf>> {
        match &self.place {
            Place::Directory(directory) => {
                hub::check_file(name)?;
                let path = directory.join(name);
                Ok(path.is_file().then_some(path))
            }
            Place::GgufFile(path) => Ok((file_name(path) == name).then(|| path.clone())),
            Place::Hub(repo) => repo.try_fetch(name, cancel),
        }
    }

    /// The path of a file of another model that is here already, by the settings that this one was
    /// opened with: neither the network nor the environment is asked.
    pub fn present_in(&self, model: &str, name: &str) -> Option<PathBuf> {
        let directory = Path::new(model);
        if directory.is_dir() {
            return Some(directory.join(name)).filter(|path| path.is_file());
        }
        match &self.place {
            Place::Hub(repo) => repo.sibling(model).ok()?.cached(name).ok().flatten(),
            _ => None,
        }
    }

    pub fn require(&self, name: &str, cancel: &CancelToken) -> Result<PathBuf> {
        if let Place::Hub(repo) = &self.place {
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

    /// Safetensors before GGUF before pickles; `gguf_file` asks for that one file instead.
    pub fn weights(&self, gguf_file: Option<&str>, cancel: &CancelToken) -> Result<WeightFiles> {
        if let Some(name) = gguf_file {
            return self.named_gguf(name, cancel).map(WeightFiles::Gguf);
        }
        if let Place::GgufFile(path) = &self.place {
            return Ok(WeightFiles::Gguf(path.clone()));
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
        Err(self.no_weights(cancel))
    }

    fn all_files(&self, cancel: &CancelToken) -> Result<Vec<String>> {
        match &self.place {
            Place::Directory(directory) => Ok(hub::list_files(directory)),
            Place::GgufFile(path) => Ok(vec![file_name(path)]),
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
        if let (Some(split), false) = (Split::parse(name), self.is_local()) {
            for part in split.parts() {
                self.require(&part, cancel)?;
            }
        }
        self.require(name, cancel)
    }

    fn best_gguf(&self, cancel: &CancelToken) -> Result<Option<String>> {
        let files = self.gguf_files(cancel)?;
        let candidates: Vec<&str> = candidates(&files).collect();
        let Some(best) = pick_gguf(&files) else {
            return Ok(None);
        };
        if candidates.len() > 1 {
            crate::runtime::log::info(format!(
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
            "{} has no weights: neither model.safetensors, model.safetensors.index.json, *.gguf, pytorch_model.bin \
             nor pytorch_model.bin.index.json. Its files: {}",
            self.id,
            listed(&files)
        ))
    }
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

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn is_gguf(name: &str) -> bool {
    name.len() > 5 && name.to_ascii_lowercase().ends_with(".gguf")
}

/// The name of one part of a split GGUF file: `…-00001-of-00003.gguf`.
pub(crate) struct Split<'a> {
    base: &'a str,
    number: usize,
    total: usize,
}

impl<'a> Split<'a> {
    pub fn parse(name: &'a str) -> Option<Self> {
        let stem = name.strip_suffix(".gguf")?;
        let (rest, total) = stem.rsplit_once("-of-")?;
        let (base, number) = rest.rsplit_once('-')?;
        let five_digits = |text: &str| -> Option<usize> {
            let fits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            fits.then(|| text.parse().ok()).flatten()
        };
        Some(Self {
            base,
            number: five_digits(number)?,
            total: five_digits(total)?,
        })
    }

    /// The names of all parts, in order.
    pub fn parts(&self) -> impl Iterator<Item = String> + '_ {
        (1..=self.total)
            .map(|number| format!("{}-{number:05}-of-{:05}.gguf", self.base, self.total))
    }
}

/// Projectors and importance matrices share the format but aren't language models.
fn is_companion(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    name.contains("mmproj") || name.contains("imatrix")
}

/// Language models among the files; a split one is represented by its first part.
fn candidates(files: &[String]) -> impl Iterator<Item = &str> {
    let is_first = |file: &str| Split::parse(file).is_none_or(|split| split.number == 1);
    files
        .iter()
        .map(String::as_str)
        .filter(move |file| is_first(file) && !is_companion(file))
}

/// One file before a split one.
fn pick_gguf(files: &[String]) -> Option<&str> {
    candidates(files)
        .min_by_key(|file| (rank(file), Split::parse(file).is_some(), file.len(), *file))
}

fn rank(name: &str) -> usize {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_uppercase();
    let is_word =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let names = |quantization: &str| {
        name.match_indices(quantization).any(|(start, found)| {
            let bytes = name.as_bytes();
            let before = start.checked_sub(1).and_then(|index| bytes.get(index));
            // `Q4_K` inside `IQ4_K` or `Q4_K_M` is another one; `model_Q4_K` is not.
            let starts = !before.is_some_and(u8::is_ascii_alphanumeric);
            starts && !is_word(bytes.get(start + found.len()))
        })
    };
    QUANTIZATIONS
        .iter()
        .position(|quantization| names(quantization))
        .unwrap_or(if name.contains("IQ") {
            usize::MAX
        } else {
            QUANTIZATIONS.len()
        })
}

fn listed(files: &[String]) -> String {
    if files.is_empty() {
        return "none".to_owned();
    }
    let mut text = files
        .iter()
        .take(LISTED_FILES)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if files.len() > LISTED_FILES {
        text.push_str(&format!(" and {} more", files.len() - LISTED_FILES));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::hub::test_support::{offline_repo, TemporaryDirectory};

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn open(directory: &TemporaryDirectory) -> ModelFiles {
        ModelFiles::open(
            directory.path().to_str().unwrap(),
            None,
            &CancelToken::new(),
        )
        .unwrap()
    }

    #[test]
    fn the_middle_quantization_is_picked() {
        let files = names(&[
            "m.IQ4_XS.gguf",
            "m.Q2_K.gguf",
            "m.Q4_0.gguf",
            "m-q4_k_m.gguf",
            "m.Q4_K_S.gguf",
            "m.Q8_0.gguf",
        ]);
        assert_eq!(pick_gguf(&files), Some("m-q4_k_m.gguf"));
        assert_eq!(
            pick_gguf(&names(&["a.Q8_0.gguf", "a.Q5_K_M.gguf", "a.F16.gguf"])),
            Some("a.Q5_K_M.gguf")
        );
        assert_eq!(
            pick_gguf(&names(&["a.F16.gguf", "a.Q8_0.gguf"])),
            Some("a.Q8_0.gguf")
        );
        assert_eq!(pick_gguf(&names(&["only.gguf"])), Some("only.gguf"));
        assert_eq!(
            pick_gguf(&names(&["x/a-iq3_m.gguf", "x/model.gguf"])),
            Some("x/model.gguf")
        );
    }

    #[test]
    fn first_parts_stand_for_the_whole_and_companions_are_not_picked() {
        let files = names(&[
            "mmproj-Q4_K_M.gguf",
            "big-Q4_K_M-00001-of-00002.gguf",
            "big-Q4_K_M-00002-of-00002.gguf",
            "small-Q8_0.gguf",
        ]);
        assert_eq!(pick_gguf(&files), Some("big-Q4_K_M-00001-of-00002.gguf"));
        assert_eq!(pick_gguf(&files[..1]), None);
        assert_eq!(pick_gguf(&files[2..3]), None);
        let both = names(&["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-whole.gguf"]);
        assert_eq!(pick_gguf(&both), Some("m-Q8_0-whole.gguf"));
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
            place: Place::Hub(Box::new(offline_repo(&root, "owner/name"))),
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
    fn a_cached_repository_serves_like_a_directory() {
        let cancel = CancelToken::new();
        let root = TemporaryDirectory::new();
        let files = ModelFiles {
            id: "owner/name".to_owned(),
            place: Place::Hub(Box::new(offline_repo(&root, "owner/name"))),
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
