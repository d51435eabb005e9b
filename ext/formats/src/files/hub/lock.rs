//! A lock between threads and processes, of the same kind as Python's `filelock` takes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::{cache, disk, pause};
use crate::{CancelToken, Result};

const POLL: Duration = Duration::from_millis(50);

pub struct FileLock(Option<File>);

impl FileLock {
    pub fn acquire(path: &Path, cancel: &CancelToken) -> Result<Self> {
        let failed = |error: io::Error| disk::failure(path, None, &error);
        cache::create_parent(path).map_err(failed)?;
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.open(path).map_err(failed)?;
            match try_lock(&file) {
                // The holder before us may have removed the file; then the lock guards nothing.
                Ok(()) if is_current(&file, path) => return Ok(Self(Some(file))),
                Ok(()) => cancel.check()?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause(POLL, cancel)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => cancel.check()?,
                Err(error) if is_unsupported(&error) => return Ok(Self(None)),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// False where the file system has no locks.
    pub fn is_held(&self) -> bool {
        self.0.is_some()
    }
}

/// Closing alone would not do: a forked child may share the open file.
impl Drop for FileLock {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // SAFETY: the descriptor is open for as long as `file` lives.
            unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

fn try_lock(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` lives.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_current(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(held), Ok(named)) => held.ino() == named.ino() && held.dev() == named.dev(),
        _ => false,
    }
}

/// Some network file systems have no locks; downloads are then checked, but may happen twice.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSYS | libc::ENOLCK | libc::EOPNOTSUPP)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::hub::test_support::TemporaryDirectory;
    use crate::Error;
    use std::time::Instant;

    #[test]
    fn a_second_holder_waits_and_can_be_cancelled() {
        let root = TemporaryDirectory::new();
        let path = root.path().join("deep/etag.lock");
        let held = FileLock::acquire(&path, &CancelToken::new()).unwrap();
        let cancel = CancelToken::new();
        let waiting = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| FileLock::acquire(&path, &cancel).map(drop));
            std::thread::sleep(Duration::from_millis(120));
            let started = Instant::now();
            cancel.cancel();
            let outcome = waiter.join().unwrap();
            assert!(started.elapsed() < Duration::from_millis(200));
            outcome
        });
        assert!(matches!(waiting, Err(Error::Interrupted)));
        drop(held);
        FileLock::acquire(&path, &CancelToken::new()).unwrap();
    }

    #[test]
    fn a_lock_on_a_removed_file_is_not_taken_for_one() {
        let root = TemporaryDirectory::new();
        let path = root.path().join("etag.lock");
        let held = FileLock::acquire(&path, &CancelToken::new()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let fresh = FileLock::acquire(&path, &CancelToken::new()).unwrap();
        assert!(is_current(fresh.0.as_ref().unwrap(), &path));
        assert!(!is_current(held.0.as_ref().unwrap(), &path));
    }
}
