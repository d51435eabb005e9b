//! Shared, immutable bytes: a range of a memory-mapped file, or of something unpacked from one.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::{Error, Result};

#[derive(Clone)]
pub struct Bytes {
    owner: Arc<Owner>,
    range: Range<usize>,
}

enum Owner {
    /// The file stays open, to be asked how long it is.
    Mapped(Mmap, File),
    Unpacked(Vec<u8>),
}

impl Owner {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(map, _) => map,
            Self::Unpacked(bytes) => bytes,
        }
    }
}

/// Where one page is missed, Linux maps what it has of the 64 KiB around, or the whole folio, of 2 MiB at
/// most, that the page belongs to.
pub const READ_ALONG: usize = 2 << 20;

impl Bytes {
    /// Maps a whole file.
    pub fn map(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| unreadable(path, &error))?;
        let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
        if !metadata.is_file() {
            return Err(Error::ModelNotFound(format!(
                "{} is not a file: give the path of a weight file",
                path.display()
            )));
        }
        if metadata.len() == 0 {
            return Err(Error::corrupt(path, "it is empty"));
        }
        // SAFETY: the map is private and read-only. A file that another process shortens while it is
        // read can't be guarded against, one that was shortened before is noticed by `is_whole`; weight
        // files are replaced by renaming, which keeps the map.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| unreadable(path, &error))?;
        Ok(Self {
            range: 0..map.len(),
            owner: Arc::new(Owner::Mapped(map, file)),
        })
    }

    pub fn unpacked(bytes: Vec<u8>) -> Self {
        Self {
            range: 0..bytes.len(),
            owner: Arc::new(Owner::Unpacked(bytes)),
        }
    }

    /// A part of these bytes, without copying; `None` when it reaches beyond them.
    pub fn slice(&self, start: usize, length: usize) -> Option<Self> {
        let end = start.checked_add(length)?;
        if end > self.range.len() {
            return None;
        }
        Some(Self {
            owner: self.owner.clone(),
            range: self.range.start + start..self.range.start + end,
        })
    }

    /// Lets go of the memory that reading these bytes took, where it only mirrors a file; they can
    /// be read again, and so can their neighbours, of which the system reads some along.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Owner::Mapped(map, _) = &*self.owner {
            let start = self.range.start / READ_ALONG * READ_ALONG;
            let end = self.range.end.next_multiple_of(READ_ALONG).min(map.len());
            if start < end {
                // SAFETY: the map is read-only, so that its pages come back as they were; a range
                // that the system refuses stays where it is.
                let _ = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
    }

    /// Whether reading these bytes reads the file itself, with no copy in memory.
    pub fn is_mapped(&self) -> bool {
        matches!(*self.owner, Owner::Mapped(..))
    }

    /// Whether the file still reaches to the end of these bytes. Reading beyond its end would end the
    /// process.
    pub fn is_whole(&self) -> bool {
        match &*self.owner {
            Owner::Mapped(_, file) => {
                let length = file.metadata().map_or(0, |metadata| metadata.len());
                length >= self.range.end as u64
            }
            Owner::Unpacked(_) => true,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // `slice` and the constructors keep the range inside the owner.
        self.owner
            .as_slice()
            .get(self.range.clone())
            .unwrap_or_default()
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({:?})", self.range)
    }
}

/// Why a file that should be there can't be opened.
pub fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::ModelNotFound(format!(
        "{} cannot be read ({error}): check the path and its permissions",
        path.display()
    ))
}
