//! Files of Hugging Face repositories, fetched into the cache that all of its tools share.

mod cache;
mod checksum;
mod client;
mod disk;
mod download;
mod lock;
mod name;
mod pattern;
mod progress;
mod proxy;
mod remote;
mod settings;
#[cfg(test)]
pub(crate) mod test_support;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub use cache::list_files;
pub use name::{check_file, check_id, is_lower_hex};
pub use settings::{expand_tilde, Access};

use crate::{CancelToken, Error, Result};
use cache::{Cache, Known};
use client::Client;
use download::Download;
use remote::{Description, Entry, Listing, Remote, TRIES};
use settings::Settings;

const DEFAULT_REVISION: &str = "main";

/// A repository at one revision. All files of one `Repo` are of the same commit, even when the
/// branch moves on meanwhile.
pub struct Repo {
    id: String,
    revision: String,
    settings: Settings,
    cache: Cache,
    client: Client,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    commit: Option<String>,
    /// Why the hub cannot be asked, once the cache had to stand in for it.
    unreachable: Option<String>,
    files: Option<Vec<String>>,
}

enum Lookup {
    Found(PathBuf),
    /// The repository has no such file.
    Absent,
    /// The cache does not have it, and nobody else can be asked.
    Uncached,
}

impl Repo {
    /// Reads the environment, which Ruby changes under its lock: best called with that held.
    pub fn open(id: &str, revision: Option<&str>, access: &Access) -> Result<Self> {
        Self::with_settings(id, revision, Settings::for_access(access)?)
    }

    fn with_settings(id: &str, revision: Option<&str>, settings: Settings) -> Result<Self> {
        name::check_id(id)?;
        let revision = revision.unwrap_or(DEFAULT_REVISION);
        name::check_revision(revision)?;
        let commit = name::is_commit(revision).then(|| revision.to_owned());
        Ok(Self {
            id: id.to_owned(),
            revision: revision.to_owned(),
            cache: Cache::new(&settings.cache, id, settings.symlinks),
            client: Client::new(&settings)?,
            settings,
            state: Mutex::new(State {
                commit,
                ..State::default()
            }),
        })
    }

    /// Another repository by the same settings.
    pub fn sibling(&self, id: &str) -> Result<Self> {
        Self::with_settings(id, None, self.settings.clone())
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The local path of `file`, which the repository must have.
    pub fn fetch(&self, file: &str, cancel: &CancelToken) -> Result<PathBuf> {
        match self.look_up(file, cancel)? {
            Lookup::Found(path) => Ok(path),
            Lookup::Absent => Err(Error::ModelNotFound(format!(
                "{} has no file {file} at revision {}",
                self.id, self.revision
            ))),
            Lookup::Uncached => Err(self.uncached(file)),
        }
    }

    /// `fetch`, or nothing when the repository has no such file. Where the hub cannot be asked, a
    /// snapshot in the cache is taken to be complete.
    pub fn try_fetch(&self, file: &str, cancel: &CancelToken) -> Result<Option<PathBuf>> {
        match self.look_up(file, cancel)? {
            Lookup::Found(path) => Ok(Some(path)),
            Lookup::Absent => Ok(None),
            Lookup::Uncached if self.cached_snapshot().is_some() => Ok(None),
            Lookup::Uncached => Err(self.uncached(file)),
        }
    }

    /// The names of all files at this revision.
    pub fn files(&self, cancel: &CancelToken) -> Result<Vec<String>> {
        if let Some(files) = self.state().files.clone() {
            return Ok(files);
        }
        if !self.settings.offline && self.state().unreachable.is_none() {
            let cached = self.cached_snapshot().is_some();
            let tries = if cached { 1 } else { TRIES };
            match self.remote().listing(&self.wanted(), tries, cancel) {
                Ok(Listing { commit, files }) => {
                    let mut state = self.state();
                    state.commit = Some(commit);
                    state.files = Some(files.clone());
                    return Ok(files);
                }
                Err(Error::Download(reason)) if cached => self.fall_back(reason),
                // A plain mirror has no listing, but may have served files.
                Err(Error::ModelNotFound(_)) if cached && self.state().commit.is_some() => {}
                Err(error) => return Err(error),
            }
        }
        let commit = self.known_commit();
        let files = commit.map_or_else(Vec::new, |commit| self.cache.files(&commit));
        if files.is_empty() {
            return Err(self.uncached("the list of files"));
        }
        Ok(files)
    }

    /// The path of `file` if the cache has it, without any network.
    pub fn cached(&self, file: &str) -> Result<Option<PathBuf>> {
        name::check_file(file)?;
        Ok(match self.known(file) {
            Known::Present(path) => Some(path),
            Known::Absent | Known::Nothing => None,
        })
    }

    /// Fetches all files, or those that match one of `patterns` (`*` and `?`), and returns their
    /// common directory. A pattern that is a plain name must exist.
    pub fn snapshot(&self, patterns: Option<&[String]>, cancel: &CancelToken) -> Result<PathBuf> {
        let mut files = self.files(cancel)?;
        if let Some(patterns) = patterns {
            files.retain(|file| {
                patterns
                    .iter()
                    .any(|pattern| pattern::matches(pattern, file))
            });
            for plain in patterns.iter().filter(|pattern| !pattern::is_wild(pattern)) {
                if !files.contains(plain) {
                    files.push(plain.clone());
                }
            }
        }
        if files.is_empty() {
            return Err(Error::ModelNotFound(format!(
                "no file of {} matches {:?}",
                self.id,
                patterns.unwrap_or_default()
            )));
        }
        for file in &files {
            self.fetch(file, cancel)?;
        }
        self.cached_snapshot().ok_or_else(|| {
            Error::Internal(format!(
                "the snapshot of {} is gone from the cache",
                self.id
            ))
        })
    }

    /// Whether only the cache is asked, by the user's will or for want of a network.
    pub fn is_cut_off(&self) -> bool {
        self.settings.offline || self.state().unreachable.is_some()
    }

    /// The error for what is neither cached nor to be had.
    pub fn uncached(&self, what: &str) -> Error {
        let (id, revision) = (&self.id, &self.revision);
        let place = self.cache.repository().display();
        let variable = self.settings.cache_variable;
        if self.settings.offline {
            return Error::Offline(format!(
                "{what} of {id} (revision {revision}) is not in the cache ({place}), and HF_HUB_OFFLINE is set. \
                 Unset it to download, or set {variable} to the cache that has it"
            ));
        }
        let reason = self.state().unreachable.clone().unwrap_or_default();
        Error::Download(format!(
            "{what} of {id} (revision {revision}) is not in the cache ({place}), and the hub can't be asked: {reason}"
        ))
    }

    fn look_up(&self, file: &str, cancel: &CancelToken) -> Result<Lookup> {
        name::check_file(file)?;
        let pinned = self.state().commit.clone();
        match pinned.map_or(Known::Nothing, |commit| self.cache.lookup(&commit, file)) {
            Known::Present(path) => return Ok(Lookup::Found(path)),
            Known::Absent => return Ok(Lookup::Absent),
            Known::Nothing if self.is_cut_off() => return Ok(self.look_up_cached(file)),
            Known::Nothing => {}
        }
        let known = self.known(file) != Known::Nothing;
        let tries = if known { 1 } else { TRIES };
        match self.remote().entry(&self.wanted(), file, tries, cancel) {
            Ok(Entry::Present(description)) => {
                self.obtain(&description, file, cancel).map(Lookup::Found)
            }
            Ok(Entry::Absent { commit }) => {
                if let Some(commit) = commit {
                    self.cache.remember_absence(&commit, file);
                    self.pin(&commit);
                }
                Ok(Lookup::Absent)
            }
            // A file missing from a cached snapshot may be missing from the repository too, such as the
            // config.json of GGUF files.
            Err(Error::Download(reason)) if known || self.cached_snapshot().is_some() => {
                self.fall_back(reason);
                Ok(self.look_up_cached(file))
            }
            Err(error) => Err(error),
        }
    }

    fn look_up_cached(&self, file: &str) -> Lookup {
        match self.known(file) {
            Known::Present(path) => Lookup::Found(path),
            Known::Absent => Lookup::Absent,
            Known::Nothing => Lookup::Uncached,
        }
    }

    /// The file of the snapshot, downloaded if the cache does not have it yet.
    fn obtain(
        &self,
        description: &Description,
        file: &str,
        cancel: &CancelToken,
    ) -> Result<PathBuf> {
        let Description { commit, etag, .. } = description;
        let path = match self.cache.lookup(commit, file) {
            Known::Present(path) => path,
            _ => {
                let lock = self.cache.lock(etag, cancel)?;
                let fresh = !self.cache.blob(etag).is_file();
                // Another process may have done all of it while this one waited.
                match self.cache.lookup(commit, file) {
                    Known::Present(path) => path,
                    _ => {
                        if fresh {
                            let download = Download {
                                remote: &self.remote(),
                                cache: &self.cache,
                                description,
                                file,
                                progress: self.settings.progress,
                            };
                            download.run(lock.is_held(), cancel)?;
                        }
                        self.cache.link(etag, commit, file, fresh)?
                    }
                }
            }
        };
        self.cache.remember_revision(&self.revision, commit);
        self.pin(commit);
        Ok(path)
    }

    /// From now on the cache stands in for the hub.
    fn fall_back(&self, reason: String) {
        base::runtime::log::warn(format!("using the cached files of {}: {reason}", self.id));
        self.state().unreachable = Some(reason);
    }

    fn pin(&self, commit: &str) {
        self.state().commit.get_or_insert_with(|| commit.to_owned());
    }

    fn wanted(&self) -> String {
        self.state()
            .commit
            .clone()
            .unwrap_or_else(|| self.revision.clone())
    }

    fn known_commit(&self) -> Option<String> {
        let pinned = self.state().commit.clone();
        pinned.or_else(|| self.cache.commit_of(&self.revision))
    }

    fn known(&self, file: &str) -> Known {
        self.known_commit()
            .map_or(Known::Nothing, |commit| self.cache.lookup(&commit, file))
    }

    fn cached_snapshot(&self) -> Option<PathBuf> {
        let directory = self.cache.snapshot(&self.known_commit()?);
        directory.is_dir().then_some(directory)
    }

    fn remote(&self) -> Remote<'_> {
        Remote {
            client: &self.client,
            endpoint: &self.settings.endpoint,
            id: &self.id,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Sleeps, unless told to stop.
fn pause(duration: Duration, cancel: &CancelToken) -> Result<()> {
    const SLICE: Duration = Duration::from_millis(20);
    let end = Instant::now() + duration;
    loop {
        cancel.check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(SLICE));
    }
}
