//! Fetching one blob: resumed, checked, and put in place only when whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::cache::{self, Cache};
use super::checksum::{Checksum, Kind};
use super::client::{Attempt, Failure, Purpose, Response, Resume};
use super::disk;
use super::progress::Progress;
use super::remote::{Description, Remote, Retry, TRIES};
use crate::{CancelToken, Error, Result};

const READ_BYTES: usize = 1 << 20;
/// A connection that breaks again and again may go on as long as each one brings this much.
const WORTHWHILE_BYTES: u64 = 1 << 20;
/// What a download of unknown length leaves free on the disk.
const KEPT_FREE: u64 = 256 << 20;

pub struct Download<'a> {
    pub remote: &'a Remote<'a>,
    pub cache: &'a Cache,
    pub description: &'a Description,
    pub file: &'a str,
    pub progress: bool,
}

impl Download<'_> {
    /// Makes the blob appear in the cache. The caller holds the blob's lock, where there are locks.
    pub fn run(&self, locked: bool, cancel: &CancelToken) -> Result<()> {
        let path = self.cache.incomplete(&self.description.etag, locked);
        let mut partial = Partial::open(path, self.description, cancel)?;
        let outcome = self.complete(&mut partial, cancel);
        if outcome.is_err() && (partial.spoiled || partial.length == 0) {
            partial.remove();
        }
        outcome.map_err(|error| self.remote.about(self.file, error))
    }

    fn complete(&self, partial: &mut Partial, cancel: &CancelToken) -> Result<()> {
        let progress = Progress::new(self.progress, self.file, self.description.size);
        let mut inherited = partial.length > 0;
        loop {
            if let Some(missing) = partial.missing() {
                disk::ensure_room(partial.directory(), missing)?;
            }
            self.fetch(partial, &progress, cancel)?;
            if partial.matches() {
                return partial.install(&self.cache.blob(&self.description.etag));
            }
            if !inherited {
                return Err(partial.spoil(
                    "the bytes received do not match the checksum that the hub names (its etag). They were \
                     thrown away; try again, and check HF_ENDPOINT and the proxy if it happens twice",
                ));
            }
            base::runtime::log::warn(format!(
                "what an earlier download left of {} is damaged; starting over",
                self.file
            ));
            inherited = false;
            partial.restart()?;
        }
    }

    /// Requests what is missing until nothing is.
    fn fetch(
        &self,
        partial: &mut Partial,
        progress: &Progress,
        cancel: &CancelToken,
    ) -> Result<()> {
        let mut retry = Retry::new(TRIES);
        while partial.missing() != Some(0) {
            let before = partial.length;
            let Err(failure) = self.fetch_once(partial, progress, cancel) else {
                break;
            };
            if partial.length >= before + WORTHWHILE_BYTES {
                retry.progressed();
            }
            retry.after(failure, cancel)?;
        }
        Ok(())
    }

    fn fetch_once(
        &self,
        partial: &mut Partial,
        progress: &Progress,
        cancel: &CancelToken,
    ) -> Attempt<()> {
        let url = self.remote.file_url(&self.description.commit, self.file);
        let response =
            self.remote
                .client
                .get(&url, &partial.resume()?, Purpose::Download, cancel)?;
        let total = match response.status {
            200 => {
                partial.restart()?;
                number(response.header("content-length"))
            }
            206 => {
                let (start, total) = content_range(&response);
                if start != Some(partial.length) {
                    partial.restart()?;
                    return Err(transient("the server resumes at another place than asked"));
                }
                total
            }
            416 => {
                partial.restart()?;
                return Err(transient(
                    "the server has fewer bytes than were already fetched",
                ));
            }
            _ => return Err(self.remote.refusal(&self.description.commit, &response)),
        };
        partial.served_as = strong_etag(response.header("etag"));
        partial.learn_size(total)?;
        while let Some(chunk) = response.chunk(cancel)? {
            partial.append(&chunk)?;
            progress.set(partial.length);
        }
        match partial.missing() {
            None | Some(0) => Ok(()),
            Some(missing) => Err(transient(&format!(
                "the connection ended {missing} bytes before the end of the file"
            ))),
        }
    }
}

/// An etag that stands for the very bytes.
fn strong_etag(header: Option<&str>) -> Option<String> {
    let etag = header.map(str::trim)?;
    etag.starts_with('"').then(|| etag.to_owned())
}

fn transient(reason: &str) -> Failure {
    Failure::Transient {
        reason: reason.to_owned(),
        wait: None,
    }
}

fn number(header: Option<&str>) -> Option<u64> {
    header.and_then(|value| value.trim().parse().ok())
}

/// Start and total of `bytes 5-9/10`.
fn content_range(response: &Response) -> (Option<u64>, Option<u64>) {
    let value = response.header("content-range").unwrap_or_default();
    let value = value.trim().trim_start_matches("bytes").trim();
    let (range, total) = value.split_once('/').unwrap_or((value, ""));
    let start = range.split_once('-').map(|(start, _)| start);
    (number(start), number(Some(total)))
}

/// The file that grows, with the checksum of what it holds.
struct Partial {
    path: PathBuf,
    file: File,
    length: u64,
    size: Option<u64>,
    etag: String,
    checksum: Checksum,
    /// What the server that sent the bytes calls them.
    served_as: Option<String>,
    /// Set when the bytes are of no use to a later download.
    spoiled: bool,
}

impl Partial {
    fn open(path: PathBuf, description: &Description, cancel: &CancelToken) -> Result<Self> {
        let failed = |error: io::Error| disk::failure(&path, description.size, &error);
        cache::create_parent(&path).map_err(failed)?;
        // A link would have the bytes written somewhere else.
        if fs::symlink_metadata(&path).is_ok_and(|facts| facts.is_symlink()) {
            fs::remove_file(&path).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(failed)?;
        let kind = Kind::of(&description.etag);
        let mut partial = Self {
            file,
            length: 0,
            size: description.size,
            etag: description.etag.clone(),
            checksum: Checksum::new(kind, description.size),
            path: path.clone(),
            served_as: None,
            spoiled: false,
        };
        let left = partial.file.metadata().map_err(failed)?.len();
        let resumable = left > 0
            && !matches!(partial.checksum, Checksum::Opaque)
            && description.size.is_none_or(|size| left <= size);
        if resumable {
            partial.take_over(cancel)?;
        } else {
            partial.truncate().map_err(failed)?;
        }
        Ok(partial)
    }

    /// Reads what an earlier download left, for the checksum.
    fn take_over(&mut self, cancel: &CancelToken) -> Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            cancel.check()?;
            let count = self
                .file
                .read(&mut buffer)
                .map_err(|error| disk::failure(&self.path, None, &error))?;
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
                return Ok(());
            };
            self.checksum.update(bytes);
            self.length += bytes.len() as u64;
        }
    }

    /// Where to go on. Without a checksum to tell, only bytes of the same name are added to these.
    fn resume(&mut self) -> Result<Resume> {
        let opaque = matches!(self.checksum, Checksum::Opaque);
        if opaque && self.served_as.is_none() && self.length > 0 {
            self.restart()?;
        }
        Ok(Resume {
            start: self.length,
            etag: self.served_as.clone().filter(|_| opaque),
        })
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// How many bytes are still to come, if that is known.
    fn missing(&self) -> Option<u64> {
        self.size.map(|size| size.saturating_sub(self.length))
    }

    fn restart(&mut self) -> Result<()> {
        self.truncate()
            .map_err(|error| disk::failure(&self.path, None, &error))
    }

    fn spoil(&mut self, reason: impl Into<String>) -> Error {
        self.spoiled = true;
        Error::Download(reason.into())
    }

    fn truncate(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.length = 0;
        self.checksum = Checksum::new(Kind::of(&self.etag), self.size);
        Ok(())
    }

    /// Two answers of the server must agree on the size.
    fn learn_size(&mut self, total: Option<u64>) -> Result<()> {
        match (self.size, total) {
            (Some(size), Some(total)) if size != total => Err(self.spoil(format!(
                "the server announces {size} bytes and then offers {total}. Try again later"
            ))),
            (None, Some(total)) => {
                self.size = Some(total);
                if self.length == 0 {
                    self.checksum = Checksum::new(Kind::of(&self.etag), self.size);
                }
                disk::ensure_room(self.directory(), total)
            }
            _ => Ok(()),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let length = self.length + bytes.len() as u64;
        if self.size.is_some_and(|size| length > size) {
            return Err(
                self.spoil("the server sends more bytes than it announced. Try again later")
            );
        }
        if self.size.is_none() {
            let room = disk::ensure_room(self.directory(), bytes.len() as u64 + KEPT_FREE);
            if let Err(error) = room {
                self.spoiled = true;
                return Err(error);
            }
        }
        if let Err(error) = self.file.write_all(bytes) {
            // Given back at once: a full disk harms more than this download.
            self.spoiled = true;
            return Err(disk::failure(&self.path, self.missing(), &error));
        }
        self.checksum.update(bytes);
        self.length = length;
        Ok(())
    }

    /// Whether the bytes are the right ones; asked once they are all there.
    fn matches(&mut self) -> bool {
        std::mem::replace(&mut self.checksum, Checksum::Opaque).matches(&self.etag)
    }

    /// On the disk first, then under its name: a crash leaves one or the other.
    fn install(&self, blob: &Path) -> Result<()> {
        self.file
            .sync_all()
            .and_then(|()| fs::rename(&self.path, blob))
            .map_err(|error| disk::failure(&self.path, None, &error))?;
        // Not every file system syncs directories; the file itself is safe.
        let _ = File::open(self.directory()).and_then(|directory| directory.sync_all());
        Ok(())
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}
