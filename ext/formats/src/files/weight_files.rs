//! Which files hold a model's tensors.

use std::path::{Path, PathBuf};

use crate::files::gguf_choice::is_gguf;
use crate::Result;
use base::runtime::bytes::Bytes;

/// How whisper.cpp's files begin, which is `ggml` as a number.
pub const GGML_MAGIC: &[u8; 4] = b"lmgg";
/// Names in a message.
const LISTED_FILES: usize = 20;

/// The files that hold a model's tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightFiles {
    Safetensors(Vec<PathBuf>),
    Gguf(PathBuf),
    Pickle(Vec<PathBuf>),
    /// whisper.cpp's
    Ggml(PathBuf),
}

impl WeightFiles {
    /// What a single file is: GGUF by its name, the others by how they begin.
    pub(super) fn of_file(path: PathBuf) -> Result<Self> {
        if is_gguf(&file_name(&path)) {
            return Ok(Self::Gguf(path));
        }
        let start = Bytes::map(&path)?;
        Ok(if start.starts_with(GGML_MAGIC) {
            Self::Ggml(path)
        } else {
            Self::Pickle(vec![path])
        })
    }
}

/// The last part of a path.
pub(super) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The names of the files of a directory, and not of those inside it.
pub(super) fn names_in(directory: &Path) -> Vec<String> {
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Some names, for a message.
pub(super) fn listed(files: &[String]) -> String {
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
