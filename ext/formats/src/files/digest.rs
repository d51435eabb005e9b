//! SHA-256 of whole files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{CancelToken, Result};
use base::runtime::bytes::unreadable;

const READ_BYTES: usize = 1 << 20;

/// The hash of a file's bytes, in hexadecimal.
pub fn sha256(path: &Path, cancel: &CancelToken) -> Result<String> {
    let failed = |error: std::io::Error| unreadable(path, &error);
    let mut file = File::open(path).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        cancel.check()?;
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
