//! The cache on disk, laid out as Python's huggingface_hub and hf-hub do it, so that all share one.
//!
//! ```text
//! models--owner--name/
//!   blobs/<etag>                 the bytes, once; <etag>.incomplete while they arrive
//!   snapshots/<commit>/<file>    relative links to blobs
//!   refs/<revision>              the commit of a branch or tag
//!   .no_exist/<commit>/<file>    files known to be absent
//! .locks/models--owner--name/<etag>.lock
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use hf_hub::{CacheRepo, Repo};

use super::disk;
use super::lock::FileLock;
use super::name;
use crate::{CancelToken, Result};

/// More levels than any repository has; a link that leads in circles ends here.
const DEEPEST_DIRECTORY: usize = 8;

#[derive(Clone, Debug)]
pub struct Cache {
    layout: Arc<CacheRepo>,
    repository: PathBuf,
    locks: PathBuf,
    symlinks: bool,
}

/// What the cache knows about one file of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    Present(PathBuf),
    Absent,
    Nothing,
}

impl Cache {
    pub fn new(root: &Path, id: &str, symlinks: bool) -> Self {
        let model = Repo::model(id.to_owned());
        let folder = model.folder_name();
        Self {
            layout: Arc::new(hf_hub::Cache::new(root.to_owned()).repo(model)),
            repository: root.join(&folder),
            locks: root.join(".locks").join(folder),
            symlinks,
        }
    }

    pub fn repository(&self) -> &Path {
        &self.repository
    }

    pub fn blob(&self, etag: &str) -> PathBuf {
        self.repository.join("blobs").join(etag)
    }

    /// Where a blob grows: a place to resume from, or one of this process alone where no lock
    /// keeps others away.
    pub fn incomplete(&self, etag: &str, locked: bool) -> PathBuf {
        let name = if locked {
            format!("{etag}.incomplete")
        } else {
            format!("{etag}.{}.incomplete", std::process::id())
        };
        self.repository.join("blobs").join(name)
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.layout.pointer_path(commit)
    }

    pub fn lookup(&self, commit: &str, file: &str) -> Known {
        let pointer = self.snapshot(commit).join(file);
        if pointer.is_file() {
            return Known::Present(pointer);
        }
        if self.absence(commit, file).is_file() {
            return Known::Absent;
        }
        Known::Nothing
    }

    /// The commit that `revision` stood for when it was last seen.
    pub fn commit_of(&self, revision: &str) -> Option<String> {
        if name::is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.repository.join("refs").join(revision)).ok()?;
        let commit = text.trim();
        name::is_safe_component(commit).then(|| commit.to_owned())
    }

    /// Remembers what a branch or tag stands for. A cache that can't be written to still serves.
    pub fn remember_revision(&self, revision: &str, commit: &str) {
        if revision == commit || self.commit_of(revision).as_deref() == Some(commit) {
            return;
        }
        let path = self.repository.join("refs").join(revision);
        let temporary = unique_sibling(&path);
        let written = create_parent(&path)
            .and_then(|()| fs::write(&temporary, commit))
            .and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
    }

    /// Remembers that a commit has no such file, as far as the cache can be written to.
    pub fn remember_absence(&self, commit: &str, file: &str) {
        let path = self.absence(commit, file);
        let _ = create_parent(&path).and_then(|()| fs::write(&path, b""));
    }

    fn absence(&self, commit: &str, file: &str) -> PathBuf {
        self.repository.join(".no_exist").join(commit).join(file)
    }

    /// Waits until no other thread or process is at work on the blob.
    pub fn lock(&self, etag: &str, cancel: &CancelToken) -> Result<FileLock> {
        FileLock::acquire(&self.locks.join(format!("{etag}.lock")), cancel)
    }

    /// Makes a complete blob appear in a snapshot. `fresh`: nothing else uses the blob yet.
    pub fn link(&self, etag: &str, commit: &str, file: &str, fresh: bool) -> Result<PathBuf> {
        let pointer = self.snapshot(commit).join(file);
        let blob = self.blob(etag);
        let linked = create_parent(&pointer).and_then(|()| {
            if self.symlinks && place_symlink(&pointer, etag, file).is_ok() {
                return Ok(());
            }
            if fresh {
                fs::rename(&blob, &pointer)
            } else {
                place_copy(&blob, &pointer)
            }
        });
        linked.map_err(|error| disk::failure(&pointer, None, &error))?;
        Ok(pointer)
    }

    /// The files of a snapshot, sorted; none when there is no snapshot.
    pub fn files(&self, commit: &str) -> Vec<String> {
        list_files(&self.snapshot(commit))
    }
}

/// The files below `directory` by relative name, sorted.
pub fn list_files(directory: &Path) -> Vec<String> {
    let mut files = Vec::new();
    collect_files(directory, "", 0, &mut files);
    files.sort();
    files
}

fn collect_files(directory: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = entry.path();
        if path.is_file() {
            files.push(format!("{prefix}{name}"));
        } else if path.is_dir() && depth < DEEPEST_DIRECTORY {
            collect_files(&path, &format!("{prefix}{name}/"), depth + 1, files);
        }
    }
}

pub fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// From `snapshots/<commit>/<file>` up to `blobs/`.
fn place_symlink(pointer: &Path, etag: &str, file: &str) -> io::Result<()> {
    let mut target = PathBuf::from("../..");
    target.extend(file.split('/').skip(1).map(|_| ".."));
    target.push("blobs");
    target.push(etag);
    let temporary = unique_sibling(pointer);
    std::os::unix::fs::symlink(target, &temporary)?;
    fs::rename(&temporary, pointer).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

fn place_copy(blob: &Path, pointer: &Path) -> io::Result<()> {
    let temporary = unique_sibling(pointer);
    fs::copy(blob, &temporary)
        .and_then(|_| fs::rename(&temporary, pointer))
        .inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
}

/// A name that no other thread or process uses, to be renamed into place.
fn unique_sibling(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{count}.tmp", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::hub::test_support::TemporaryDirectory;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn with_blob(root: &Path, symlinks: bool) -> Cache {
        let cache = Cache::new(root, "owner/name", symlinks);
        create_parent(&cache.blob("etag")).unwrap();
        fs::write(cache.blob("etag"), "bytes").unwrap();
        cache
    }

    #[test]
    fn a_blob_is_linked_relatively_at_any_depth() {
        let root = TemporaryDirectory::new();
        let cache = with_blob(root.path(), true);
        let pointer = cache
            .link("etag", COMMIT, "1_Pooling/config.json", true)
            .unwrap();
        assert_eq!(
            fs::read_link(&pointer).unwrap(),
            Path::new("../../../blobs/etag")
        );
        assert_eq!(fs::read_to_string(&pointer).unwrap(), "bytes");
        cache.link("etag", COMMIT, "config.json", false).unwrap();
        assert_eq!(
            cache.files(COMMIT),
            ["1_Pooling/config.json", "config.json"]
        );
        let expected = root
            .path()
            .join("models--owner--name/snapshots")
            .join(COMMIT);
        assert_eq!(cache.snapshot(COMMIT), expected);
    }

    #[test]
    fn without_symlinks_the_snapshot_holds_the_file_itself() {
        let root = TemporaryDirectory::new();
        let cache = with_blob(root.path(), false);
        let copied = cache.link("etag", COMMIT, "a.json", false).unwrap();
        assert!(cache.blob("etag").is_file() && !copied.is_symlink());
        let moved = cache.link("etag", COMMIT, "b.json", true).unwrap();
        assert!(!cache.blob("etag").exists());
        assert_eq!(fs::read_to_string(moved).unwrap(), "bytes");
    }

    #[test]
    fn revisions_and_absences_are_remembered() {
        let root = TemporaryDirectory::new();
        let cache = Cache::new(root.path(), "name", true);
        assert_eq!(cache.commit_of("refs/pr/1"), None);
        cache.remember_revision("refs/pr/1", COMMIT);
        assert_eq!(cache.commit_of("refs/pr/1").as_deref(), Some(COMMIT));
        assert_eq!(cache.commit_of(COMMIT).as_deref(), Some(COMMIT));
        assert_eq!(cache.lookup(COMMIT, "x/y.json"), Known::Nothing);
        cache.remember_absence(COMMIT, "x/y.json");
        assert_eq!(cache.lookup(COMMIT, "x/y.json"), Known::Absent);
    }

    #[test]
    fn a_hostile_ref_does_not_lead_out_of_the_cache() {
        let root = TemporaryDirectory::new();
        let cache = Cache::new(root.path(), "name", true);
        let path = cache.repository().join("refs/main");
        create_parent(&path).unwrap();
        fs::write(path, "../../..").unwrap();
        assert_eq!(cache.commit_of("main"), None);
    }
}
