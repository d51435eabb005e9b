//! The hash that an etag promises, computed while the bytes pass by.

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::name::is_lower_hex;
use crate::files::digest::hex;

/// The hub names large files by their SHA-256, and small ones by their git blob hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sha256,
    GitBlob,
    /// A server of another kind: only the size can be checked.
    Opaque,
}

impl Kind {
    pub fn of(etag: &str) -> Self {
        match etag.len() {
            64 if is_lower_hex(etag) => Self::Sha256,
            40 if is_lower_hex(etag) => Self::GitBlob,
            _ => Self::Opaque,
        }
    }
}

pub enum Checksum {
    Sha256(Sha256),
    GitBlob(Sha1),
    Opaque,
}

impl Checksum {
    /// A git blob's hash covers its length too; without one nothing can be checked.
    pub fn new(kind: Kind, size: Option<u64>) -> Self {
        match (kind, size) {
            (Kind::Sha256, _) => Self::Sha256(Sha256::new()),
            (Kind::GitBlob, Some(size)) => {
                let mut hash = Sha1::new();
                hash.update(format!("blob {size}\0"));
                Self::GitBlob(hash)
            }
            _ => Self::Opaque,
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
            Self::Opaque => {}
        }
    }

    /// Whether the bytes are those that `etag` stands for.
    pub fn matches(self, etag: &str) -> bool {
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()) == etag,
            Self::GitBlob(hash) => hex(&hash.finalize()) == etag,
            Self::Opaque => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(etag: &str, bytes: &[u8]) -> bool {
        let mut checksum = Checksum::new(Kind::of(etag), Some(bytes.len() as u64));
        bytes.chunks(3).for_each(|chunk| checksum.update(chunk));
        checksum.matches(etag)
    }

    /// The values are those of `printf hello | sha256sum` and `git hash-object`.
    #[test]
    fn both_kinds_of_etag_are_checked() {
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        assert!(matches(sha256, b"hello") && !matches(sha256, b"hellO"));
        assert!(matches(git, b"hello") && !matches(git, b"hell"));
        assert!(matches("some-other-server", b"anything"));
        assert_eq!(Kind::of("D41D8CD98F00B204E9800998ECF8427E"), Kind::Opaque);
    }
}
