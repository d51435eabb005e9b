//! A file that is replaced as a whole: written beside its place, synced to the disk and renamed.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{fchown, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// Names for unfinished files, of which the first one that nobody writes to is taken. Few names, so that what a killed
/// process leaves is found without listing the directory.
const NAMES: usize = 16;
/// More links than a system follows.
const LINKS: usize = 40;

/// Writes a file by `write`, which gets the new file and what makes an error of the system one that names the path.
///
/// The old file stays until the new one is complete. The new one has its mode and owner. A symbolic link is followed;
/// what is not a regular file is refused. `what` is written, as messages name it.
pub fn replace(
    path: &Path,
    what: &str,
    write: impl FnOnce(&File, &dyn Fn(io::Error) -> Error) -> Result<()>,
) -> Result<()> {
    let failed = |error: io::Error| {
        Error::InvalidInput(format!(
            "{what} can't be written to {}: {error}. Check the directory and the room on its disk",
            path.display()
        ))
    };
    let (target, old) = resolved(path).map_err(failed)?;
    if let Some(kind) = old.as_ref().and_then(other_kind) {
        return Err(Error::InvalidInput(format!(
            "{what} can't be written to {}: it is {kind}. Give the path of a regular file",
            target.display()
        )));
    }
    let unfinished = Unfinished::create(&target, old.as_ref()).map_err(failed)?;
    write(&unfinished.file, &failed)?;
    unfinished.rename_to(&target).map_err(failed)?;
    for number in 0..NAMES {
        remove_leftover(&name(&target, number));
    }
    Ok(())
}

/// Where the links of a path lead, and what is there.
fn resolved(path: &Path) -> io::Result<(PathBuf, Option<Metadata>)> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => path = folder_of(&path).join(fs::read_link(&path)?),
            Ok(found) => return Ok((path, Some(found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((path, None)),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

fn other_kind(found: &Metadata) -> Option<&'static str> {
    let kind = found.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_fifo() => Some("a named pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// `vectors.0.red-candle.new` and so on: no name that a user would give a file.
fn name(target: &Path, number: impl std::fmt::Display) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{number}.red-candle.new"));
    target.with_file_name(name)
}

/// A file that grows, locked so that others see that somebody writes to it. Removed unless it is renamed.
struct Unfinished {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Unfinished {
    fn create(target: &Path, old: Option<&Metadata>) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        for number in 0..NAMES {
            let path = name(target, number);
            remove_leftover(&path);
            let mut unfinished = match Self::at(&path, old) {
                Ok(unfinished) => unfinished,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            match unfinished.file.try_lock() {
                Ok(()) if is_current(&unfinished.file, &path) => return Ok(unfinished),
                // Somebody took it for a leftover before it was locked, and removes it.
                Ok(()) | Err(TryLockError::WouldBlock) => unfinished.renamed = true,
                Err(TryLockError::Error(_)) => break,
            }
        }
        // All names are taken, or the file system has no locks.
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        Self::at(
            &name(target, format!("{}-{count}", std::process::id())),
            old,
        )
    }

    fn at(path: &Path, old: Option<&Metadata>) -> io::Result<Self> {
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        let unfinished = Self {
            file: options.open(path)?,
            path: path.to_owned(),
            renamed: false,
        };
        if let Some(old) = old {
            unfinished.take_after(old)?;
        }
        Ok(unfinished)
    }

    /// Gives the file the owner and mode of another one. Only the superuser gives files away; where the group can't be
    /// kept, its rights are those of everybody, so that no other group gets them.
    fn take_after(&self, old: &Metadata) -> io::Result<()> {
        let new = self.file.metadata()?;
        let mut mode = old.mode() & 0o7777;
        if new.uid() != old.uid() {
            let _ = fchown(&self.file, Some(old.uid()), None);
        }
        if new.gid() != old.gid() && fchown(&self.file, None, Some(old.gid())).is_err() {
            mode = (mode & 0o707) | ((mode & 0o007) << 3);
        }
        self.file.set_permissions(fs::Permissions::from_mode(mode))
    }

    fn rename_to(mut self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        self.renamed = true;
        // Not every file system syncs directories; the file itself is safe.
        let _ = File::open(folder_of(target)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
        // Closing alone would not do: a forked child may share the open file.
        let _ = self.file.unlock();
    }
}

/// Removes an unfinished file whose process has ended: one that nobody has locked. What is not a regular file is not
/// one.
fn remove_leftover(path: &Path) {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let Ok(file) = options.open(path) else {
        return;
    };
    let regular = file.metadata().is_ok_and(|found| found.is_file());
    if !regular || file.try_lock().is_err() {
        return;
    }
    if is_current(&file, path) {
        let _ = fs::remove_file(path);
    }
    let _ = file.unlock();
}

fn is_current(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(named)) => held.ino() == named.ino() && held.dev() == named.dev(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::hub::test_support::TemporaryDirectory;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    fn put(path: &Path, text: &str) -> Result<()> {
        replace(path, "the text", |mut file, failed| {
            file.write_all(text.as_bytes()).map_err(failed)
        })
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_new_file_keeps_the_mode_and_owner_of_the_old_one() {
        let root = TemporaryDirectory::new();
        let path = root.path().join("text");
        put(&path, "one").unwrap();
        for wanted in [0o600, 0o640, 0o604, 0o444] {
            fs::set_permissions(&path, fs::Permissions::from_mode(wanted)).unwrap();
            put(&path, "two").unwrap();
            assert_eq!(mode(&path), wanted);
        }
        // Only the superuser can give a file away.
        if fs::metadata(&path).unwrap().uid() == 0 {
            std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
            put(&path, "three").unwrap();
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid()), (1234, 4321));
        }
        assert_eq!(names(root.path()), ["text"]);
    }

    #[test]
    fn links_are_followed() {
        let root = TemporaryDirectory::new();
        let path = root.path().join("link");
        fs::create_dir(root.path().join("deep")).unwrap();
        symlink("deep/second", &path).unwrap();
        symlink("text", root.path().join("deep/second")).unwrap();
        for text in ["new", "replaced"] {
            put(&path, text).unwrap();
            assert!(path.is_symlink());
            let written = fs::read_to_string(root.path().join("deep/text")).unwrap();
            assert_eq!(written, text);
        }
        assert_eq!(names(&root.path().join("deep")), ["second", "text"]);
        symlink("circle", root.path().join("circle")).unwrap();
        assert!(put(&root.path().join("circle"), "x").is_err());
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused() {
        let root = TemporaryDirectory::new();
        let said = |path: &Path| put(path, "x").unwrap_err().to_string();
        assert!(said(root.path()).contains("it is a directory"));
        let socket = root.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(said(&socket).contains("it is a socket"));
        let link = root.path().join("link");
        symlink("socket", &link).unwrap();
        assert!(said(&link).contains("it is a socket"));
        let device = fs::metadata("/dev/null").unwrap();
        assert_eq!(other_kind(&device), Some("a device"));
    }

    #[test]
    fn leftovers_go_but_not_the_files_of_others() {
        let root = TemporaryDirectory::new();
        let path = root.path().join("text");
        for number in [0, 1, 7] {
            fs::write(name(&path, number), "left by a killed process").unwrap();
        }
        fs::write(root.path().join("text.new"), "a user's own").unwrap();
        let busy = File::open(name(&path, 1)).unwrap();
        busy.try_lock().unwrap();
        let trap = name(&path, 2);
        fs::write(root.path().join("precious"), "precious").unwrap();
        symlink("precious", &trap).unwrap();
        put(&path, "new").unwrap();
        let left = [
            "precious",
            "text",
            "text.1.red-candle.new",
            "text.2.red-candle.new",
            "text.new",
        ];
        assert_eq!(names(root.path()), left);
        let precious = fs::read_to_string(root.path().join("precious")).unwrap();
        assert_eq!(precious, "precious");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let root = TemporaryDirectory::new();
        let path = root.path().join("text");
        put(&path, "old").unwrap();
        let failed = replace(&path, "the text", |mut file, failed| {
            file.write_all(b"half").map_err(failed)?;
            Err(Error::Interrupted)
        });
        assert!(matches!(failed, Err(Error::Interrupted)));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(root.path()), ["text"]);
    }

    #[test]
    fn many_writers_of_one_file_leave_one_of_their_texts() {
        let root = TemporaryDirectory::new();
        let path = root.path().join("text");
        std::thread::scope(|scope| {
            for writer in 0..20 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..5 {
                        put(path, &format!("{writer} ").repeat(1000)).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        let first = text.split(' ').next().unwrap();
        assert_eq!(text, format!("{first} ").repeat(1000));
        assert_eq!(names(root.path()), ["text"]);
    }
}
