//! Room on the disk, and errors that say which disk and what to do.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Error;
use base::runtime::memory::format_bytes;

const ADVICE: &str =
    "Free some space, or set HF_HUB_CACHE (or HF_HOME) to a directory on a larger disk";

/// An error unless the disk of `directory` takes `needed` more bytes.
pub fn ensure_room(directory: &Path, needed: u64) -> crate::Result<()> {
    match free_bytes(directory) {
        Some(free) if free < needed => Err(Error::Download(format!(
            "the disk of {} has {} left, but {} are needed. {ADVICE}",
            directory.display(),
            bytes(free),
            bytes(needed)
        ))),
        _ => Ok(()),
    }
}

/// A failure to write below the cache; `needed`: what was still to be written.
pub fn failure(path: &Path, needed: Option<u64>, error: &io::Error) -> Error {
    let directory = path.parent().unwrap_or(path).display();
    let needed = needed.map_or_else(String::new, |count| {
        format!(" ({} more are needed)", bytes(count))
    });
    Error::Download(match error.raw_os_error() {
        Some(libc::ENOSPC) => format!("the disk of {directory} is full{needed}. {ADVICE}"),
        Some(libc::EDQUOT) => format!("the disk quota of {directory} is used up{needed}. {ADVICE}"),
        Some(libc::EFBIG) => format!(
            "{} may not grow further{needed}: the disk or the process (see `ulimit -f`) limits the size of files. \
             Raise the limit, or set HF_HUB_CACHE (or HF_HOME) to a directory on a larger disk",
            path.display()
        ),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => format!(
            "{} cannot be written: {error}. Set HF_HUB_CACHE (or HF_HOME) to a directory of your own",
            path.display()
        ),
        _ => format!("{} cannot be written: {error}", path.display()),
    })
}

fn bytes(count: u64) -> String {
    format_bytes(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Nothing for file systems that do not say.
fn free_bytes(directory: &Path) -> Option<u64> {
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    let mut facts = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is NUL-terminated and `facts` has room for the result.
    let status = unsafe { libc::statvfs(path.as_ptr(), facts.as_mut_ptr()) };
    if status != 0 {
        return None;
    }
    // SAFETY: statvfs succeeded, so it filled the struct.
    let facts = unsafe { facts.assume_init() };
    #[allow(clippy::unnecessary_cast)] // the widths differ between platforms
    let (blocks, free, size) = (
        facts.f_blocks as u64,
        facts.f_bavail as u64,
        facts.f_frsize as u64,
    );
    (blocks > 0).then(|| free.saturating_mul(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_room_is_told_before_the_download() {
        let directory = std::env::temp_dir();
        assert!(ensure_room(&directory, 1).is_ok());
        let error = ensure_room(&directory, 1 << 60).unwrap_err().to_string();
        assert!(error.contains(&directory.display().to_string()), "{error}");
        assert!(
            error.contains("1048576.0 TiB") && error.contains("HF_HOME"),
            "{error}"
        );
    }

    #[test]
    fn a_full_disk_is_named() {
        let error = io::Error::from_raw_os_error(libc::ENOSPC);
        let message = failure(Path::new("/cache/blobs/x"), Some(2048), &error).to_string();
        assert!(
            message.contains("/cache/blobs is full (2.0 KiB more"),
            "{message}"
        );
    }
}
